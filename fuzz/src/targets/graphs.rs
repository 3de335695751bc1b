//! Random functions, computed in two ways and compared with the f64 evaluator.
//!
//! The bytes of an input choose ops, shapes, encodings, dynamic lengths, and a variant of
//! compilation: another machine description, some optimisations disabled, a perturbed schedule. The
//! conformance suite's harness runs the function on `interp` with the cheapest schedule and with
//! that variant, and compares both with the f64 evaluator. The function is also cut in parts for
//! two devices, which the evaluator compares with the whole.

mod build;
#[expect(dead_code, reason = "the conformance suite uses the rest")]
#[path = "../../../tensor/tests/conformance/harness.rs"]
mod harness;
mod placed;

use crate::Target;
use crate::bytes::FuzzInput;
use build::Drawn;
use gristmill_backend::cpu::dialect::C;
use gristmill_backend::cuda::dialect::Cuda;
use gristmill_backend::interp::InterpDevice;
use gristmill_backend::{Opened, Precision};
use gristmill_compiler::{Cheapest, Dialect, Perturb, Policy, compile};
use gristmill_uop::machine::{Machine, NAMED};
use gristmill_uop::target::{FLAGS, PARAMETERS, Target as Kind};
use harness::{Way, check};
use std::sync::Arc;

/// Input: a byte string of choices.
pub const TARGET: Target = Target {
    name: "graphs",
    about: "random functions of ops, shapes and encodings: two schedules on interp against the f64 evaluator",
    run,
    seeds,
    words: &[],
    longest: 256,
    tries: 150,
};

fn run(input: &[u8]) {
    let mut bytes = FuzzInput::new(input);
    let machine = machine(&mut bytes);
    let seed = Some(u64::from(bytes.byte())).filter(|&seed| seed % 2 == 1);
    let written = bytes.below(4) == 0;
    let Drawn { case, int8 } = build::draw(&mut bytes);
    let machine = Kind { int8, ..machine };
    placed::check(&mut bytes, &case);
    if written {
        let dialect: &dyn Dialect = if machine.threads > 1 { &Cuda } else { &C };
        let mut policy: Box<dyn Policy> = match seed {
            Some(seed) => Box::new(Perturb::new(seed)),
            None => Box::new(Cheapest),
        };
        let compiled = compile(&case.function, &machine, Some(dialect), policy.as_mut());
        assert!(
            compiled
                .programs
                .iter()
                .all(|program| !program.source.is_empty()),
            "a kernel without a text"
        );
    }
    let plain = Opened::new(Arc::new(InterpDevice::new()), None).with_precision(Precision::Exact);
    let varied = Opened {
        target: machine,
        ..plain.clone()
    };
    let way = |name: &str, device, seed| Way {
        name: name.into(),
        device,
        seed,
        same_as: None,
    };
    check(
        vec![case],
        vec![way("cheapest", plain, None), way("varied", varied, seed)],
    );
}

/// Draws a machine description: a CPU or a GPU, with random tuning parameters
/// and some optimisations disabled.
fn machine(bytes: &mut FuzzInput) -> Kind {
    let mut machine = match bytes.below(6) {
        0 => Kind {
            threads: 64,
            ..Kind::named("h200")
        },
        1 => Kind::named(NAMED[bytes.below(NAMED.len())].name),
        kind => {
            let lanes = bytes.pick(&[4, 8, 16]);
            let workers = 1 + bytes.below(3);
            Kind::new(Machine {
                pairs: kind == 2,
                signed_bytes: kind == 3,
                ..Machine::cpu("fuzz", lanes, workers)
            })
        }
    };
    let off = u32::from_le_bytes([bytes.byte(), bytes.byte(), bytes.byte(), bytes.byte()]);
    FLAGS
        .iter()
        .enumerate()
        .filter(|(i, _)| off >> i & 1 == 1)
        .for_each(|(_, flag)| (flag.off)(&mut machine));
    let tuned = bytes.byte();
    for (i, parameter) in PARAMETERS.iter().enumerate() {
        *(parameter.field)(&mut machine.tuning) =
            parameter.values[usize::from(tuned >> (2 * i) & 3) % parameter.values.len()];
    }
    machine
}

fn seeds() -> Vec<Vec<u8>> {
    // The generator gives the bytes their meaning: a few hundred for each kind of machine reach
    // every op.
    let mut random = crate::mutate::SplitMix(1);
    (0..24)
        .map(|i| {
            (0..16 + 8 * (i % 12))
                .map(|_| random.bits() as u8)
                .collect()
        })
        .collect()
}
