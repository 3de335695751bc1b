//! Matrix products of any operand types: f16, bf16 and f32, weights and activations, odd sizes.

use crate::harness::{Case, Way, check};
use crate::on_cpu;
use gristmill_backend::Opened;
use gristmill_backend::cpu::{Isa, dialect};
use gristmill_backend::cuda::dialect::Cuda;
use gristmill_compiler::{Cheapest, Dialect, compile};
use gristmill_encodings::by_name;
use gristmill_tensor::dims;
use gristmill_uop::Scalar;
use gristmill_uop::machine::Machine;
use gristmill_uop::target::Target;

/// `[m, k] × [k, n]` of one type; the second operand is stored by rows or by columns.
fn stored(scalar: Scalar, [m, n, k]: [usize; 3], across: bool) -> Case {
    let how = if across { "across" } else { "along" };
    Case::new(format!("{m} x {n} over {k} {} {how}", scalar.name()), |c| {
        let a = c.input("a", dims![m, k], scalar);
        let b = match across {
            true => c.input("b", dims![k, n], scalar),
            false => c.input("b", dims![n, k], scalar).permute(&[1, 0]),
        };
        c.output("y", a.matmul(b));
    })
}

/// F32 activations with a weight of that type, which determines their rounding.
fn weight(name: &str, rows: usize, most: usize) -> Case {
    let e = by_name(name).expect("an encoding");
    Case::new(format!("{rows} rows of {name}, {most} tokens"), |c| {
        let n = c.var("n", 1, most);
        let x = c.input("x", dims![n, 64], Scalar::F32);
        let bias = c.input("bias", dims![rows], Scalar::F32);
        c.output("y", x.linear(c.weight("w", &[rows, 64], e)) + bias);
    })
    .vars(&[
        &[("n", 1)],
        &[("n", most as i64 - 9)],
        &[("n", most as i64)],
    ])
}

/// Attention written without its op: scores of queries and keys, and weighted values.
pub fn scores(scalar: Scalar, [tokens, heads, depth]: [usize; 3]) -> Case {
    Case::new(
        format!("scores and values of {} for {tokens} tokens", scalar.name()),
        |c| {
            let side = |name| {
                c.input(name, dims![tokens, heads, depth], scalar)
                    .permute(&[1, 0, 2])
            };
            let [q, k, v] = ["q", "k", "v"].map(side);
            let scores = q.matmul(k.permute(&[0, 2, 1])) * 0.125;
            let weights = (scores - scores.max(&[2]).unsqueeze(2)).exp();
            let sums = weights.sum(&[2]).unsqueeze(2);
            c.output("y", (weights / sums).cast(scalar).matmul(v));
        },
    )
}

pub fn cases() -> Vec<Case> {
    let types = [Scalar::F16, Scalar::BF16, Scalar::F32];
    let mut out = Vec::new();
    for scalar in types {
        out.push(stored(scalar, [64, 48, 64], false));
        out.push(stored(scalar, [40, 33, 32], true));
        out.push(scores(scalar, [32, 3, 32]));
    }
    out.extend(["f16", "bf16", "f32"].map(|name| weight(name, 48, 33)));
    out
}

/// F16 and bf16 products use MMA fragments if available, with a weight on either side.
///
/// F32 products do not, and operands are never rounded to a type that they are not stored as.
#[test]
fn fragments_multiply_halves() {
    // Kernels of a few tokens are fused, because a launch costs more than they do.
    let few = |case: &Case| case.name.starts_with("scores");
    let many = [Scalar::F16, Scalar::BF16, Scalar::F32].map(|s| scores(s, [512, 8, 64]));
    for case in cases().into_iter().filter(|case| !few(case)).chain(many) {
        let on = Target {
            threads: 64,
            ..Target::named("h200")
        };
        let off = Target {
            machine: Machine {
                fragments: &[],
                ..on.machine.clone()
            },
            ..on.clone()
        };
        let texts = |target: &Target| -> String {
            let compiled = compile(
                &case.function,
                target,
                Some(&Cuda as &dyn Dialect),
                &mut Cheapest,
            );
            compiled
                .programs
                .iter()
                .map(|p| p.source.as_str())
                .collect()
        };
        let text = texts(&on);
        let found = ["mma_halves(", "mma_bf16("].map(|name| text.contains(name));
        let of = |name: &str| {
            case.name
                .split(' ')
                .any(|word| word.trim_end_matches(',') == name)
        };
        // Activations are not rounded to bf16 for a bf16 weight.
        let kept = case.name.contains("rows of bf16");
        assert_eq!(
            found,
            [of("f16"), of("bf16") && !kept],
            "{}:\n{text}",
            case.name
        );
        assert!(!texts(&off).contains("mma"), "{}", case.name);
    }
}

/// Bf16 products of activations use AMX tiles if their sizes are divisible.
#[test]
fn tiles_multiply_activations() {
    let amx = Isa::Amx.target();
    let cases = cases();
    let products = |case: &Case| {
        let compiled = compile(
            &case.function,
            &amx,
            Some(&dialect::C as &dyn Dialect),
            &mut Cheapest,
        );
        compiled
            .programs
            .iter()
            .filter(|p| p.source.contains("TILE_PRODUCT"))
            .count()
    };
    for case in cases.iter().filter(|case| !case.name.starts_with("scores")) {
        assert_eq!(
            products(case),
            usize::from(case.name == "64 x 48 over 64 bf16 along"),
            "{}",
            case.name
        );
    }
    // In attention only the scores do: weights are rounded where they are read.
    assert_eq!(products(&scores(Scalar::BF16, [512, 8, 64])), 1);
    let device = Opened {
        target: amx,
        ..on_cpu(Isa::Plain, 2)
    };
    check(
        cases,
        vec![Way {
            name: "amx simulated".into(),
            device,
            seed: None,
            same_as: None,
        }],
    );
}
