//! The golden tiny models (`docs/deepseek2.md`, section 8), in every form and kind of step.

use crate::golden_support::Form::{self, Number, Written};
use crate::golden_support::{Fixture, TOKENS, Tiny, Way, generate, logits, run};
use gristmill_llm::arch::Bind;
use gristmill_llm::arch::CacheType;
use gristmill_uop::function::Function;
use gristmill_uop::{Arg, Id, Op};

const STEPS: Way = Way {
    form: Written,
    chunk: None,
    cache: CacheType::F32,
};

fn chunk(form: Form, n: usize) -> Way {
    Way {
        form,
        chunk: Some(n),
        cache: CacheType::F32,
    }
}

struct Golden {
    first: ([f64; 6], f64),
    last: ([f64; 6], f64),
    argmax: [usize; 8],
}

#[rustfmt::skip]
fn golden(tiny: Tiny) -> Golden {
    let (first, last, argmax) = match tiny {
        Tiny::A => (([-1.350660, -1.890369, -1.465497, -2.040221, 1.001666, -2.245648], 65.47500),
                    ([-1.773523, -2.249440, -1.154348, -1.371908, 1.269783, -2.592814], 67.40704),
                    [32, 17, 33, 25, 37, 17, 31, 25]),
        Tiny::B => (([-1.229342, -1.885848, 0.203789, -1.941639, 0.327256, -1.240999], 58.50049),
                    ([-0.835266, -1.067737, -1.200882, -0.404495, 2.834748, -1.448767], 59.34945),
                    [33, 17, 33, 25, 42, 42, 25, 4]),
        Tiny::C => (([7.138301, 11.094801, -2.403443, -0.073237, -1.807172, 4.984573], 245.91677),
                    ([4.339475, -0.151798, 3.806141, -4.028098, -8.643742, 8.503867], 290.11868),
                    [1, 63, 15, 57, 44, 17, 63, 8]),
        Tiny::D => (([-1.171809, -1.374207, -0.832822, -2.018030, 0.235626, -3.397192], 64.61095),
                    ([-1.696821, -1.933473, 0.210669, -0.751445, 1.672655, -2.064527], 73.31909),
                    [32, 33, 42, 25, 37, 17, 39, 25]),
    };
    Golden { first, last, argmax }
}

/// Golden numbers are rounded to 6 (sums: 5) decimals.
fn check(found: &[Vec<f64>], golden: &Golden) {
    for (row, (expected, sum)) in [(&found[0], golden.first), (&found[7], golden.last)] {
        let near = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-6;
        assert!(
            row.iter().zip(&expected).all(near),
            "{:?} should be {expected:?}",
            &row[..6]
        );
        let found = row.iter().map(|v| v.abs()).sum::<f64>();
        assert!((found - sum).abs() < 1e-5, "sum {found} should be {sum}");
    }
    let argmax = |row: &Vec<f64>| {
        row.iter()
            .enumerate()
            .max_by(|a, b| a.1.total_cmp(b.1))
            .map_or(0, |m| m.0)
    };
    assert_eq!(found.iter().map(argmax).collect::<Vec<_>>(), golden.argmax);
}

/// Returns the largest difference between two tables of logits.
fn distance(a: &[Vec<f64>], b: &[Vec<f64>]) -> f64 {
    assert_eq!(a.len(), b.len());
    let pairs = a.iter().flatten().zip(b.iter().flatten());
    pairs
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, |m, d| if d.is_nan() { f64::NAN } else { m.max(d) })
}

#[test]
fn weights_follow_from_their_names() {
    let e = generate("token_embd.weight", 3);
    let n = generate("blk.0.attn_norm.weight", 3);
    for (a, b) in e.iter().chain(&n).zip([
        0.199825406,
        0.583574653,
        -0.42686379,
        1.16828477,
        1.01700163,
        1.06724107,
    ]) {
        assert!((a - b).abs() < 1e-8, "{a} {b}");
    }
}

fn every_way(tiny: Tiny) {
    let split = Fixture::new(tiny, true);
    let steps = logits(&split, &TOKENS, STEPS);
    check(&steps, &golden(tiny));
    let legacy = Fixture::new(tiny, false);
    let mut ways = vec![
        (&split, "chunk of 8", chunk(Written, 8)),
        (&split, "chunks of 3", chunk(Written, 3)),
        (&legacy, "legacy", STEPS),
        (&legacy, "legacy chunk", chunk(Written, 8)),
    ];
    // Every form from the rewrite rules, in both formats: absorbed, values alone,
    // keys alone, and mixtures.
    for number in 0..Form::MOST {
        ways.push((
            &split,
            "a form of a step",
            Way {
                form: Number(number),
                ..STEPS
            },
        ));
        ways.push((&split, "a form of a chunk", chunk(Number(number), 8)));
        ways.push((
            &legacy,
            "a form of a legacy chunk",
            chunk(Number(number), 8),
        ));
    }
    for (fixture, name, way) in ways {
        let d = distance(&steps, &logits(fixture, &TOKENS, way));
        assert!(d < 1e-9, "{tiny:?} {name} {:?}: {d}", way.form);
    }
}

#[test]
fn a_glm_like() {
    every_way(Tiny::A);
}

#[test]
fn b_v2_lite_like() {
    every_way(Tiny::B);
}

#[test]
fn c_youtu_like() {
    every_way(Tiny::C);
}

#[test]
fn d_v3_like() {
    every_way(Tiny::D);
}

#[test]
fn a6_latent_epsilon_of_transformers() {
    let f = Fixture::changed(Tiny::A, |h| h.latent_eps = 1e-6);
    let found = logits(&f, &TOKENS, STEPS);
    let golden = Golden {
        first: (
            [
                -1.350659, -1.890373, -1.465495, -2.040224, 1.001667, -2.245645,
            ],
            65.47500,
        ),
        last: (
            [
                -1.773513, -2.249443, -1.154338, -1.371909, 1.269789, -2.592821,
            ],
            67.40705,
        ),
        ..golden(Tiny::A)
    };
    check(&found, &golden);
}

#[test]
fn fused_gate_and_up_are_the_same() {
    let (apart, fused) = (
        Fixture::new(Tiny::A, true),
        Fixture::stored(Tiny::A, true, true),
    );
    for way in [STEPS, chunk(Written, 8)] {
        let d = distance(&logits(&apart, &TOKENS, way), &logits(&fused, &TOKENS, way));
        assert!(d < 1e-9, "{d}");
    }
}

#[test]
fn a_half_precision_cache_is_near() {
    let f = Fixture::new(Tiny::A, true);
    let half = Way {
        cache: CacheType::F16,
        ..STEPS
    };
    let d = distance(&logits(&f, &TOKENS, STEPS), &logits(&f, &TOKENS, half));
    assert!(d > 1e-9 && d < 1e-2, "{d}");
}

#[test]
fn a_cache_of_bytes_is_near() {
    let f = Fixture::new(Tiny::A, true);
    let bytes = Way {
        cache: CacheType::Int8,
        ..STEPS
    };
    let d = distance(&logits(&f, &TOKENS, STEPS), &logits(&f, &TOKENS, bytes));
    assert!(d > 1e-9 && d < 1e-1, "{d}");
    for form in [Written, Number(0), Number(1)] {
        let chunked = Way {
            cache: CacheType::Int8,
            ..chunk(form, 8)
        };
        let d = distance(&logits(&f, &TOKENS, bytes), &logits(&f, &TOKENS, chunked));
        assert!(d < 1e-6, "{form:?}: {d}");
    }
}

/// Returns the slot of the routed experts' down projection.
fn experts_slot(f: &Function) -> Option<usize> {
    f.slots.iter().position(|s| s.name == "ffn_down_exps")
}

/// Returns the index by which that slot is gathered.
fn experts_index(f: &Function) -> Option<Id> {
    let (slot, g) = (experts_slot(f)?, &f.graph);
    let of_slot = |id: Id| matches!(g[id].arg, Arg::Packed(s, _) if s as usize == slot);
    let roots: Vec<Id> = f.outputs.iter().map(|o| o.1).collect();
    let order = g.toposort(&roots);
    let gather = order
        .into_iter()
        .find(|&id| g[id].op == Op::Gather && g.any(g[id].src[0], |n, _| of_slot(n)));
    gather.map(|id| g[id].src[1])
}

/// Returns the experts of layers 1 and 2 for the first and the last token, best first.
fn choices(tiny: Tiny) -> [[Vec<i64>; 2]; 2] {
    let mut found: [[Vec<i64>; 2]; 2] = Default::default();
    run(
        &Fixture::new(tiny, true),
        &TOKENS,
        STEPS,
        experts_index,
        |pos, call, index| {
            let slot = experts_slot(&call.function).expect("a block with experts");
            let Bind::Weight(name) = &call.binds[slot] else {
                panic!("a weight bound to {:?}", call.binds[slot])
            };
            let layer: usize = name
                .split('.')
                .nth(1)
                .and_then(|l| l.parse().ok())
                .expect("a layer");
            if let Some(token) = [0, 7].iter().position(|&p| p == pos) {
                found[token][layer - 1] = index.data.iter().map(|&e| e as i64).collect();
            }
        },
    );
    found
}

#[test]
fn experts_are_the_golden_ones() {
    let expected = [
        (Tiny::A, [[[7, 0, 2], [6, 1, 4]], [[7, 1, 5], [7, 2, 1]]]),
        (Tiny::B, [[[2, 7, 1], [2, 5, 6]], [[3, 2, 6], [1, 7, 2]]]),
        (Tiny::D, [[[7, 0, 1], [4, 6, 7]], [[5, 0, 1], [7, 0, 1]]]),
    ];
    for (tiny, experts) in expected {
        assert_eq!(
            choices(tiny),
            experts.map(|token| token.map(|layer| layer.to_vec())),
            "{tiny:?}"
        );
    }
}
