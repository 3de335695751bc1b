//! A kernel of one's own: one op of a feed-forward in C and CUDA C, with what surrounds it fused as ever, and both ways timed.
//!
//! `cargo run --release -p gristmill-tensor --example custom_kernel`; with `cuda` or `interp` behind `--` on that device.

use gristmill_backend::{Opened, Options};
use gristmill_runtime::{Buffer, Error, Memory};
use gristmill_tensor::evaluate::{Env, evaluate_all};
use gristmill_tensor::function::Capture;
use gristmill_tensor::jit::{Call, Jit};
use gristmill_tensor::{dims, nn};
use gristmill_uop::Scalar;
use gristmill_uop::custom::CustomKernel;
use gristmill_uop::function::{Function, SlotKind};
use std::sync::Arc;
use std::time::Instant;

/// `gate / (1 + |gate|) · up`, a row of `width` elements in each workgroup.
static GATED: CustomKernel = CustomKernel {
    name: "gated",
    texts: &[
        (
            "c",
            "for (i64 i = first * width; i < end * width; i++)
                y[i] = gate[i] / (1.0f + (gate[i] < 0 ? -gate[i] : gate[i])) * up[i];",
        ),
        (
            "cuda",
            "for (i64 i = w * width + thread; i < (w + 1) * width; i += threads)
                y[i] = gate[i] / (1.0f + (gate[i] < 0 ? -gate[i] : gate[i])) * up[i];",
        ),
    ],
    output: "y",
    arguments: &["gate", "up", "width"],
    operations: 4,
};

/// A feed-forward of `tokens` rows of `width` elements, through `inner`: norm, two products, what gates one by the other, a product, the residual.
fn feed_forward(name: &str, [tokens, width, inner]: [usize; 3], own: bool) -> Function {
    let c = Capture::new(name);
    let columns = c.var("width", inner, inner);
    let x = c.input("x", dims![tokens, width], Scalar::F32);
    let normed = nn::rms_norm(x, c.input("norm", dims![width], Scalar::F32), 1e-5);
    let weight = |name: &str, rows: usize, columns: usize| c.input(name, dims![1, rows, columns], Scalar::F32);
    let gate = (normed.reshape(dims![tokens, 1, width]) * weight("gate", inner, width)).sum(&[2]);
    let up = (normed.reshape(dims![tokens, 1, width]) * weight("up", inner, width)).sum(&[2]);
    // What it means, in tensors: other devices compute that, and the kernel is judged by it.
    let middle = gate / (gate.maximum(-gate) + 1.0) * up;
    let middle = if own { middle.computed_by(&GATED, c.int(tokens), &[gate, up, columns]) } else { middle };
    let down = (middle.reshape(dims![tokens, 1, inner]) * weight("down", width, inner)).sum(&[2]);
    c.output("y", down + x);
    c.finish()
}

/// On the device that is named, or the best there is.
pub fn main() -> Result<(), Error> {
    let opened = match std::env::args().nth(1).filter(|name| !name.starts_with('-')) {
        Some(device) => gristmill_backend::open(&device, &Options::default())?,
        None => gristmill_backend::best(&Options::default())?.0,
    };
    run(&opened, [4, 256, 1024])
}

/// Both ways, compared with the truth and timed.
pub fn run(opened: &Opened, sizes: [usize; 3]) -> Result<(), Error> {
    let [tokens, width, inner] = sizes;
    let mut seconds = Vec::new();
    for own in [false, true] {
        let function = Arc::new(feed_forward(if own { "own" } else { "generated" }, sizes, own));
        let values = inputs(&function);
        let (got, time, launches) = timed(opened, &function, &values, inner)?;
        let wanted = truth(&function, &values, inner);
        let largest = wanted.iter().fold(0f64, |m, v| m.max(v.abs()));
        let off = got.iter().zip(&wanted).fold(0f64, |m, (&a, b)| m.max((f64::from(a) - b).abs()));
        assert!(off < 1e-4 * largest, "off by {off} beside {largest}");
        let how = if own { "with a kernel of one's own" } else { "all generated" };
        println!(
            "{how:26} {:8.1} us a call, {launches} launches, off by {:.0e} of the largest",
            1e6 * time,
            off / largest
        );
        seconds.push(time);
    }
    println!(
        "{tokens} by {width} by {inner} on {}: {:.2} times the time",
        opened.device.name(),
        seconds[1] / seconds[0]
    );
    Ok(())
}

/// Numbers for each slot that is read.
fn inputs(function: &Function) -> Vec<Vec<f32>> {
    let count = |dims: &[i64]| dims.iter().product::<i64>() as usize;
    let number = |slot: usize, i: usize| ((i * 7 + slot * 31) as f32 * 0.37).sin() / 8.0;
    let read = |slot: usize| function.slots[slot].kind != SlotKind::Output;
    let filled = |slot: usize| (0..count(&function.slots[slot].dims)).map(|i| number(slot, i)).collect();
    (0..function.slots.len()).map(|slot| if read(slot) { filled(slot) } else { Vec::new() }).collect()
}

/// By the definition of the ops.
fn truth(function: &Function, values: &[Vec<f32>], width: usize) -> Vec<f64> {
    let wide: Vec<Vec<f64>> = values.iter().map(|v| v.iter().map(|&x| f64::from(x)).collect()).collect();
    let mut env = Env::new().var("width", width as i64);
    for (slot, values) in wide.iter().enumerate() {
        env = env.values(slot as u32, values);
    }
    let roots: Vec<_> = function.outputs.iter().map(|o| o.1).collect();
    evaluate_all(&function.graph, &roots, &env).swap_remove(0).data
}

/// What the function computes, the seconds that a captured call takes (the least of several), and its launches.
fn timed(
    opened: &Opened,
    function: &Arc<Function>,
    values: &[Vec<f32>],
    width: usize,
) -> Result<(Vec<f32>, f64, usize), Error> {
    let mut jit = Jit::new(opened.clone());
    let ready = jit.prepare(std::slice::from_ref(function), &|_, _| ())?.swap_remove(0);
    let device = jit.device().clone();
    let buffer = |slot: usize| -> Result<Buffer, Error> {
        let slot_of = &function.slots[slot];
        let bytes = slot_of.storage.bytes(&slot_of.dims).unwrap_or(0);
        let buffer = device.alloc(bytes, Memory::Scratch)?;
        let data: Vec<u8> = values[slot].iter().flat_map(|v| v.to_le_bytes()).collect();
        device.write(&buffer, 0, &data)?;
        Ok(buffer)
    };
    let args = (0..function.slots.len()).map(buffer).collect::<Result<Vec<Buffer>, Error>>()?;
    let arena = device.alloc(ready.compiled.arena.max(64), Memory::Scratch)?;
    let launches = ready.compiled.programs.len();
    let mut step = jit.capture(&[Call { function: ready, args: args.clone() }], &arena)?;
    let mut least = f64::INFINITY;
    for _ in 0..20 {
        let start = Instant::now();
        step.replay(&[("width", width as i64)])?;
        least = least.min(start.elapsed().as_secs_f64());
    }
    let output = function.outputs[0].0 as usize;
    let mut bytes = vec![0; args[output].len()];
    device.read(&args[output], 0, &mut bytes)?;
    let got = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    Ok((got, least, launches))
}
