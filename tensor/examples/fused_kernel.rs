//! Fusion into a custom kernel: a gated unit between elementwise ops, in three variants.
//!
//! It is generated, handwritten with pointers, or handwritten with accessor functions. Adjacent
//! elementwise ops can be fused into the kernel through accessors, but not through pointers. All
//! three are compared with the reference evaluator and timed alternately.
//!
//! `cargo run --release -p gristmill-tensor --example fused_kernel [-- DEVICE]`, by default
//! on the best available device.

use gristmill_backend::{Opened, Options};
use gristmill_runtime::{Buffer, Error, Memory, Replay};
use gristmill_tensor::dims;
use gristmill_tensor::evaluate::{Env, evaluate_all};
use gristmill_tensor::function::Capture;
use gristmill_tensor::jit::{Call, Jit};
use gristmill_uop::Scalar;
use gristmill_uop::custom::{CustomKernel, CustomRef};
use gristmill_uop::function::Function;
use std::sync::Arc;
use std::time::Instant;

/// Kernel texts of `gate / (1 + |gate|) · up`, 64 elements per workgroup.
///
/// The arguments are the expressions of an element of `gate` and of `up`, and the text before and
/// after the result.
macro_rules! gated {
    ($gate:literal, $up:literal, $y:literal, $end:literal) => {
        &[
            (
                "c",
                concat!(
                    // Without the pragma, the compiler vectorises only if it can prove or check
                    // that the buffers do not overlap.
                    "for (i64 piece = first; piece < end; piece++) {
                        _Pragma(\"GCC ivdep\")
                        for (i64 i = piece * 64; i < piece * 64 + 64; i++) { f32 x = ",
                    $gate,
                    "; ",
                    $y,
                    "x / (1 + __builtin_fabsf(x)) * ",
                    $up,
                    $end,
                    "} }"
                ),
            ),
            (
                "cuda",
                concat!(
                    "for (i64 i = w * 64 + thread; i < (w + 1) * 64; i += threads) { f32 x = ",
                    $gate,
                    "; ",
                    $y,
                    "x / (1 + (x < 0 ? -x : x)) * ",
                    $up,
                    $end,
                    "}"
                ),
            ),
        ]
    };
}

/// Elements per workgroup of the handwritten kernels.
const PIECE: usize = 64;

/// The kernel with buffers as arguments and output: its operands are materialised.
static BY_POINTERS: CustomKernel = CustomKernel {
    name: "gated by pointers",
    texts: gated!("gate[i]", "up[i]", "y[i] = ", ";"),
    output: "y",
    arguments: &["gate", "up"],
    accessors: &[],
    operations: 8,
};

/// The kernel with accessor functions, each called once per element.
static BY_FUNCTIONS: CustomKernel = CustomKernel {
    name: "gated by functions",
    texts: gated!("gate(i)", "up(i)", "y(i, ", ");"),
    accessors: &[("gate", 1), ("up", 1), ("y", 1)],
    ..BY_POINTERS
};

/// Captures `3 · gated(2 · x + moved, up / 2) + residual` over `[rows, columns]`.
///
/// With `own`, that custom kernel computes `gated`.
fn unit(name: &str, [rows, columns]: [usize; 2], own: Option<CustomRef>) -> Function {
    let c = Capture::new(name);
    let [x, moved, up, residual] = ["x", "moved", "up", "residual"]
        .map(|name| c.input(name, dims![rows, columns], Scalar::F32));
    let (gate, up) = (x * 2.0 + moved, up * 0.5);
    let middle = gate / (gate.maximum(-gate) + 1.0) * up;
    let middle = match own {
        Some(kernel) => middle.computed_by(kernel, c.int(rows * columns / PIECE), &[gate, up]),
        None => middle,
    };
    c.output("y", middle * 3.0 + residual);
    c.finish()
}

/// A captured variant, with the seconds of its fastest run.
struct Way {
    name: &'static str,
    launches: usize,
    step: Box<dyn Replay>,
    /// A buffer for each slot of the function.
    buffers: Vec<Buffer>,
    least: f64,
}

impl Way {
    fn new(
        opened: &Opened,
        size: [usize; 2],
        name: &'static str,
        own: Option<CustomRef>,
    ) -> Result<Way, Error> {
        let function = Arc::new(unit(name, size, own));
        let mut jit = Jit::new(opened.clone());
        let ready = jit
            .prepare(std::slice::from_ref(&function), &|_, _| ())?
            .swap_remove(0);
        let device = jit.device().clone();
        let mut buffers = Vec::new();
        for (slot, numbers) in inputs(&function).into_iter().enumerate() {
            let bytes: Vec<u8> = numbers
                .iter()
                .flat_map(|&v| (v as f32).to_le_bytes())
                .collect();
            let buffer = device.alloc(
                4 * function.slots[slot].dims.iter().product::<i64>() as usize,
                Memory::State,
            )?;
            device.write(&buffer, 0, &bytes)?;
            buffers.push(buffer);
        }
        let arena = device.alloc(ready.compiled.arena.max(64), Memory::Scratch)?;
        let launches = ready.compiled.programs.len();
        let step = jit.capture(
            &[Call {
                function: ready,
                args: buffers.clone(),
            }],
            &arena,
        )?;
        Ok(Way {
            name,
            launches,
            step,
            buffers,
            least: f64::INFINITY,
        })
    }
}

/// Deterministic values for every slot of the function.
fn inputs(function: &Function) -> Vec<Vec<f64>> {
    let of = |slot: usize, count: i64| {
        (0..count)
            .map(|i| f64::from(((i * 7 + slot as i64) as f32 * 0.37).sin()))
            .collect()
    };
    function
        .slots
        .iter()
        .enumerate()
        .map(|(slot, of_slot)| of(slot, of_slot.dims.iter().product()))
        .collect()
}

/// Runs the example on the device named by the first argument, or on the best available device.
pub fn main() -> Result<(), Error> {
    let opened = match std::env::args()
        .nth(1)
        .filter(|name| !name.starts_with('-'))
    {
        Some(device) => gristmill_backend::open(&device, &Options::default())?,
        None => gristmill_backend::best(&Options::default())?.0,
    };
    run(&opened, [256, 4096], 20)
}

/// Runs each variant `times` times on `[rows, columns]` tensors and checks the results.
pub fn run(opened: &Opened, size: [usize; 2], times: usize) -> Result<(), Error> {
    let function = unit("truth", size, None);
    let all = inputs(&function);
    let env = all
        .iter()
        .enumerate()
        .fold(Env::new(), |env, (slot, values)| {
            env.values(slot as u32, values)
        });
    let (slot, root) = (function.outputs[0].0 as usize, function.outputs[0].1);
    let wanted = evaluate_all(&function.graph, &[root], &env)
        .swap_remove(0)
        .data;
    let ways = [
        ("generated", None),
        ("by pointers", Some(&BY_POINTERS)),
        ("by functions", Some(&BY_FUNCTIONS)),
    ];
    let mut ways: Vec<Way> = ways
        .into_iter()
        .map(|(name, own)| Way::new(opened, size, name, own))
        .collect::<Result<_, Error>>()?;
    for _ in 0..times {
        for way in &mut ways {
            let start = Instant::now();
            way.step.replay(&[])?;
            way.least = way.least.min(start.elapsed().as_secs_f64());
        }
    }
    for way in &ways {
        let mut bytes = vec![0; 4 * wanted.len()];
        opened.device.read(&way.buffers[slot], 0, &mut bytes)?;
        let got = bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f64::from(f32::from_le_bytes(*b)));
        let off = got
            .zip(&wanted)
            .fold(0f64, |most, (a, b)| most.max((a - b).abs()));
        assert!(off < 1e-5, "{}: off by {off}", way.name);
        let Way {
            name,
            launches,
            least,
            ..
        } = way;
        println!(
            "{name:12} {:8.1} us in {launches} launches on {}",
            1e6 * least,
            opened.device.name()
        );
    }
    Ok(())
}
