//! What is fused into a kernel of one's own: a gated unit between elementwise operations, generated, written by hand with pointers, and written by hand with functions, which compute what is before and
//! behind it. All three are held to the truth, and timed in turns.
//!
//! `cargo run --release -p gristmill-tensor --example fused_kernel`; with `cuda` or `interp` behind `--` on that device.

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

/// `gate / (1 + |gate|) · up`, a piece of 64 elements in each workgroup, with these words for an element of either and for the result.
macro_rules! gated {
    ($gate:literal, $up:literal, $y:literal, $end:literal) => {
        &[
            (
                "c",
                concat!(
                    // Without the word loops of lanes are the compiler's only where it need not ask whether buffers overlap.
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

/// Elements of one of its workgroups.
const PIECE: usize = 64;

/// Its arguments and its output are buffers, whatever they are computed from.
static BY_POINTERS: CustomKernel = CustomKernel {
    name: "gated by pointers",
    texts: gated!("gate[i]", "up[i]", "y[i] = ", ";"),
    output: "y",
    arguments: &["gate", "up"],
    accessors: &[],
    operations: 8,
};

/// It asks for an element of either once, and gives away what it has computed.
static BY_FUNCTIONS: CustomKernel = CustomKernel {
    name: "gated by functions",
    texts: gated!("gate(i)", "up(i)", "y(i, ", ");"),
    accessors: &[("gate", 1), ("up", 1), ("y", 1)],
    ..BY_POINTERS
};

/// A sum of two tensors by a third, through the gate, and what is added to that.
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

/// One of the three, captured.
struct Way {
    name: &'static str,
    launches: usize,
    step: Box<dyn Replay>,
    /// Its slots, the output last.
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

/// Numbers for every slot.
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

/// On the device that is named, or the best there is.
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

/// So many rows and columns, in each way so many times.
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
