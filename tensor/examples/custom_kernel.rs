//! A custom kernel in a model: SwiGLU in a small decoder, generated or handwritten in C and CUDA C.
//!
//! The decoder has quantised weights, RoPE and a KV cache. Both variants are captured as a decode
//! step through all layers, compared with the reference evaluator, and timed alternately, as a
//! whole and per kernel.
//!
//! `cargo run --release -p gristmill-tensor --example custom_kernel [-- DEVICE]`, by default
//! on the best available device.

use gristmill_backend::{Opened, Options, Precision};
use gristmill_compiler::ir::layout::Layout;
use gristmill_runtime::{Buffer, Error, Memory, Replay};
use gristmill_tensor::evaluate::{Env, evaluate_all};
use gristmill_tensor::function::Capture;
use gristmill_tensor::jit::{Call, Jit, Ready};
use gristmill_tensor::{dims, nn};
use gristmill_uop::custom::CustomKernel;
use gristmill_uop::function::{Function, Slot, SlotKind, Storage};
use gristmill_uop::{Encoding, Scalar};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Format of the weights: blocks of 32 elements, an f16 scale and then an i8 code per element.
static BYTES: Encoding = Encoding {
    name: "bytes",
    elements: 32,
    bytes: 34,
    value: |b| b.i8(b.k() + 2) * b.f16(0),
};

/// `gate · sigmoid(gate) · up`, 64 elements per workgroup.
///
/// The C text computes e^-x as 2^n · e^r: n is the nearest integer to -x / ln 2, 2^n is built from
/// float bits, and e^r is a polynomial of degree 5 in the remainder r.
static SWIGLU: CustomKernel = CustomKernel {
    name: "swiglu by hand",
    texts: &[
        (
            "c",
            "for (i64 i = first * 64; i < end * 64; i++) {
                f32 x = gate[i] < -80 ? -80 : gate[i] > 80 ? 80 : gate[i], t = x * -1.44269504f;
                f32 n = (f32)(i32)(t + (t < 0 ? -0.5f : 0.5f)), r = (t - n) * 0.693147181f;
                f32 e = 1 + r * (1 + r * (0.5f + r * (0.166666667f + r * (0.0416666667f + r * 0.00833333333f))));
                union { i32 bits; f32 value; } power = { ((i32)n + 127) << 23 };
                y[i] = gate[i] / (1 + e * power.value) * up[i];
            }",
        ),
        (
            "cuda",
            "for (i64 i = w * 64 + thread; i < (w + 1) * 64; i += threads)
                y[i] = gate[i] / (1 + expf(-gate[i])) * up[i];",
        ),
    ],
    output: "y",
    arguments: &["gate", "up"],
    accessors: &[],
    operations: 12,
};

/// Elements per workgroup of the handwritten kernel.
const PIECE: usize = 64;

/// Dimensions of the decoder.
#[derive(Clone, Copy)]
pub struct Sizes {
    /// Number of decoder layers, all equal.
    pub layers: usize,
    /// Elements of the hidden state.
    pub width: usize,
    /// Attention heads, each with its own KV head.
    pub heads: usize,
    /// Elements of an attention head.
    pub head: usize,
    /// Elements of the feed-forward's intermediate vector, a multiple of 64.
    pub inner: usize,
    /// Capacity of the KV cache in positions.
    pub positions: usize,
}

/// Captures a decoder layer for one token; `own` selects the handwritten kernel.
fn layer(name: &str, s: Sizes, own: bool) -> Function {
    let c = Capture::new(name);
    let (pos, norm) = (c.var("pos", 0, s.positions - 1), |name: &str| {
        c.input(name, dims![s.width], Scalar::F32)
    });
    let weight = |name: &str, rows: usize, columns: usize| c.weight(name, &[rows, columns], &BYTES);
    let x = c.input("x", dims![1, s.width], Scalar::F32);
    let angles = c
        .input("angles", dims![s.positions, s.head / 2, 2], Scalar::F32)
        .slice(0, pos, 1);
    let all = s.heads * s.head;
    let normed = nn::rms_norm(x, norm("attn_norm"), 1e-5);
    let heads = |name: &str| {
        normed
            .linear(weight(name, all, s.width))
            .reshape(dims![1, s.heads, s.head])
    };
    let turned = |name: &str| nn::rope(heads(name), angles, nn::Pairing::Halves);
    let cache = |name: &str| c.state(name, dims![s.positions, s.heads, s.head], Scalar::F32);
    let (q, k, v) = (turned("attn_q"), turned("attn_k"), heads("attn_v"));
    let (keys, values) = (cache("keys").assign(k, pos), cache("values").assign(v, pos));
    let attended = q.attention(keys, values, pos, pos + 1, (s.head as f64).sqrt().recip());
    let x = x + attended
        .reshape(dims![1, all])
        .linear(weight("attn_output", s.width, all));
    let normed = nn::rms_norm(x, norm("ffn_norm"), 1e-5);
    let (gate, up) = (
        normed.linear(weight("ffn_gate", s.inner, s.width)),
        normed.linear(weight("ffn_up", s.inner, s.width)),
    );
    // The definition in tensors. Devices for which the kernel has no text compute it, and the
    // evaluator uses it as the kernel's value.
    let middle = nn::Glu::Swiglu.apply(gate, up);
    let middle = if own {
        middle.computed_by(&SWIGLU, c.int(s.inner / PIECE), &[gate, up])
    } else {
        middle
    };
    c.output("y", x + middle.linear(weight("ffn_down", s.width, s.inner)));
    c.output_state(keys);
    c.output_state(values);
    c.finish()
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
    run(
        &opened,
        Sizes {
            layers: 4,
            width: 256,
            heads: 4,
            head: 64,
            inner: 768,
            positions: 64,
        },
    )
}

/// Checks both variants and times them alternately.
///
/// Without integer dot products, both are compared with the evaluator. With the device's usual
/// options, they are compared with each other.
pub fn run(opened: &Opened, s: Sizes) -> Result<(), Error> {
    let wanted = truth(s);
    let largest = wanted.iter().fold(0f64, |m, v| m.max(v.abs()));
    for mut way in both(&opened.clone().with_precision(Precision::Exact), s)? {
        let off = off(&way.token(0)?.0, wanted.iter().copied());
        assert!(
            off < 1e-4 * largest,
            "{}: off by {off} beside {largest}",
            way.name
        );
    }
    let mut ways = both(opened, s)?;
    let mut least = [f64::INFINITY; 2];
    for pos in 0..s.positions {
        let mut results = Vec::new();
        for (way, least) in ways.iter_mut().zip(&mut least) {
            let (result, seconds) = way.token(pos)?;
            *least = least.min(seconds);
            results.push(result);
        }
        // Products with quantised weights quantise activations to int8, where a difference in the
        // last place may change a code.
        let off = off(&results[1], results[0].iter().map(|&v| f64::from(v)));
        assert!(
            off < 1e-2 * largest,
            "off by {off} beside {largest} at {pos}"
        );
    }
    for (way, seconds) in ways.iter_mut().zip(least) {
        println!(
            "{:10} {:8.1} us a token, {} launches",
            way.name,
            1e6 * seconds,
            way.kernels.len()
        );
        for (kernel, seconds) in way.profile(s.positions - 1)? {
            println!("{:10} {:8.1} us  {kernel}", "", 1e6 * seconds);
        }
    }
    println!(
        "by hand it takes {:.2} times the time on {}",
        least[1] / least[0],
        opened.device.name()
    );
    Ok(())
}

/// Returns the generated decoder and the one with the handwritten kernel.
fn both(opened: &Opened, s: Sizes) -> Result<Vec<Decoder>, Error> {
    [false, true]
        .map(|own| Decoder::new(opened, s, own))
        .into_iter()
        .collect()
}

/// Largest absolute difference of two vectors.
fn off(result: &[f32], wanted: impl Iterator<Item = f64>) -> f64 {
    result
        .iter()
        .zip(wanted)
        .fold(0f64, |most, (&a, b)| most.max((f64::from(a) - b).abs()))
}

/// Element `i` of a slot of a layer: around 1 for norm weights, around 0 for others.
fn number(layer: usize, slot: &Slot, i: usize) -> f32 {
    let seed = slot
        .name
        .bytes()
        .fold(layer * 131, |h, b| h * 31 % 65_521 + usize::from(b));
    let wave = ((i * 7 + seed) as f32 * 0.37).sin();
    match slot.name.as_str() {
        name if name.ends_with("norm") => 1.0 + wave / 4.0,
        // Cosine and sine of one angle for all pairs.
        "angles" => {
            if i.is_multiple_of(2) {
                0.8
            } else {
                0.6
            }
        }
        _ => wave,
    }
}

/// Initial bytes of a slot of a layer.
///
/// Weights are rows of blocks, inputs are f32, and states are zero.
fn bytes(layer: usize, slot: &Slot) -> Vec<u8> {
    let count = slot.dims.iter().product::<i64>() as usize;
    let numbers = (0..count).map(|i| number(layer, slot, i));
    match slot.storage {
        Storage::Packed(of) => {
            let columns = *slot.dims.last().expect("columns") as f32;
            let scale = half::f16::from_f32(1.0 / 127.0 / columns.sqrt()).to_le_bytes();
            let codes: Vec<u8> = numbers.map(|v| (v * 127.0) as i8 as u8).collect();
            codes
                .chunks(of.elements)
                .flat_map(|codes| scale.into_iter().chain(codes.iter().copied()))
                .collect()
        }
        Storage::Plain(_) if slot.kind == SlotKind::Input => {
            numbers.flat_map(f32::to_le_bytes).collect()
        }
        Storage::Plain(_) => vec![0; 4 * count],
    }
}

/// A captured variant of the decoder.
struct Decoder {
    name: &'static str,
    jit: Jit,
    step: Box<dyn Replay>,
    /// Input of the first layer and output of the last; one buffer if the layer count is even.
    ends: [Buffer; 2],
    input: Vec<u8>,
    /// Titles of the kernels, in launch order.
    kernels: Vec<String>,
}

impl Decoder {
    fn new(opened: &Opened, s: Sizes, own: bool) -> Result<Decoder, Error> {
        let name = if own { "by hand" } else { "generated" };
        let function = Arc::new(layer(name, s, own));
        let mut jit = Jit::new(opened.clone());
        // All layers are one function: it is compiled once and called with the weights and the KV
        // cache of each layer.
        let ready = jit
            .prepare(std::slice::from_ref(&function), &|_, _| ())?
            .swap_remove(0);
        let device = jit.device().clone();
        // Hidden states are double-buffered. The capture orders launches by their buffers, custom
        // kernels included: a layer waits for the writes to its input and for reads of its output
        // buffer.
        let row = || device.alloc(4 * s.width, Memory::State);
        let hidden = [row()?, row()?];
        let mut calls = Vec::new();
        for layer in 0..s.layers {
            let buffer = |(slot, of): (usize, &Slot)| match of.name.as_str() {
                "x" => Ok(hidden[layer % 2].clone()),
                "y" => Ok(hidden[(layer + 1) % 2].clone()),
                _ => filled(&mut jit, &ready, slot, &bytes(layer, of)),
            };
            let args = function
                .slots
                .iter()
                .enumerate()
                .map(buffer)
                .collect::<Result<Vec<Buffer>, Error>>()?;
            calls.push(Call {
                function: ready.clone(),
                args,
            });
        }
        let arena = device.alloc(ready.compiled.arena.max(64), Memory::Scratch)?;
        let step = jit.capture(&calls, &arena)?;
        let titles = ready.compiled.programs.iter().map(|p| p.title.clone());
        let kernels = (0..s.layers).flat_map(|_| titles.clone()).collect();
        let input = bytes(0, &function.slots[slot_of(&function, "x")]);
        let ends = [hidden[0].clone(), hidden[s.layers % 2].clone()];
        Ok(Decoder {
            name,
            jit,
            step,
            ends,
            input,
            kernels,
        })
    }
    /// Runs a decode step at position `pos`; returns the last layer's output and the seconds.
    fn token(&mut self, pos: usize) -> Result<(Vec<f32>, f64), Error> {
        let device = self.jit.device();
        device.write(&self.ends[0], 0, &self.input)?;
        let start = Instant::now();
        self.step.replay(&[("pos", pos as i64)])?;
        let seconds = start.elapsed().as_secs_f64();
        let mut bytes = vec![0; self.input.len()];
        device.read(&self.ends[1], 0, &mut bytes)?;
        Ok((
            bytes
                .as_chunks::<4>()
                .0
                .iter()
                .map(|b| f32::from_le_bytes(*b))
                .collect(),
            seconds,
        ))
    }
    /// Seconds of a decode step by kernel title, in descending order.
    fn profile(&mut self, pos: usize) -> Result<Vec<(String, f64)>, Error> {
        let mut all: BTreeMap<&str, f64> = BTreeMap::new();
        for (kernel, seconds) in self
            .kernels
            .iter()
            .zip(self.step.replay_timed(&[("pos", pos as i64)])?)
        {
            *all.entry(kernel).or_default() += seconds;
        }
        let mut all: Vec<_> = all
            .into_iter()
            .map(|(kernel, seconds)| (kernel.to_string(), seconds))
            .collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        Ok(all)
    }
}

/// Returns the index of the slot with this name.
fn slot_of(function: &Function, name: &str) -> usize {
    function
        .slots
        .iter()
        .position(|slot| slot.name == name)
        .expect("a slot of that name")
}

/// Allocates a slot's buffer with these bytes, repacking a weight to the layout of its function.
fn filled(jit: &mut Jit, ready: &Ready, slot: usize, bytes: &[u8]) -> Result<Buffer, Error> {
    let device = jit.device().clone();
    let file = device.alloc(bytes.len(), Memory::State)?;
    device.write(&file, 0, bytes)?;
    let of = &ready.function.slots[slot];
    let layout = ready
        .compiled
        .layouts
        .iter()
        .find(|l| l.0 as usize == slot)
        .map_or(Layout::File, |l| l.1);
    let Storage::Packed(encoding) = of.storage else {
        return Ok(file);
    };
    if layout == Layout::File {
        return Ok(file);
    }
    let kind = (encoding, layout, of.dims[1] as usize);
    jit.prepare_packers(&[kind])?;
    let packed = device.alloc(
        layout.bytes(encoding, &of.dims).expect("a size"),
        Memory::State,
    )?;
    jit.packer(kind)?
        .pack(&file, &packed, of.dims[0] as usize)?;
    Ok(packed)
}

/// Evaluates the decoder in f64 for the first token; returns the last layer's output.
fn truth(s: Sizes) -> Vec<f64> {
    let function = layer("truth", s, false);
    let floats = |bytes: &[u8]| {
        bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f64::from(f32::from_le_bytes(*b)))
            .collect()
    };
    let mut x: Vec<f64> = floats(&bytes(0, &function.slots[slot_of(&function, "x")]));
    for layer in 0..s.layers {
        let all: Vec<Vec<u8>> = function
            .slots
            .iter()
            .map(|slot| bytes(layer, slot))
            .collect();
        let values: Vec<Vec<f64>> = function
            .slots
            .iter()
            .zip(&all)
            .map(|(slot, bytes)| match slot.storage {
                Storage::Packed(_) => vec![],
                _ if slot.name == "x" => x.clone(),
                Storage::Plain(_) => floats(bytes),
            })
            .collect();
        let mut env = Env::new().var("pos", 0);
        for (number, slot) in function.slots.iter().enumerate() {
            env = match slot.storage {
                Storage::Packed(_) => env.packed(number as u32, &all[number]),
                Storage::Plain(_) => env.values(number as u32, &values[number]),
            };
        }
        let y = function
            .outputs
            .iter()
            .find(|o| o.0 as usize == slot_of(&function, "y"))
            .expect("an output")
            .1;
        x = evaluate_all(&function.graph, &[y], &env)
            .swap_remove(0)
            .data;
    }
    x
}
