//! Test harness: cases, random inputs, reference results, and the ways of a device to compute them.

pub mod accuracy;
mod progress;
mod schedules;
mod suite;
mod truths;

use gristmill_backend::Opened;
use gristmill_tensor::evaluate::{Env, HostArray, evaluate_all};
use gristmill_tensor::function::Capture;
use gristmill_uop::encoding::EncodingRef;
use gristmill_uop::fold::Value;
use gristmill_uop::function::{Function, Slot, SlotKind, Storage};
use gristmill_uop::{Arg, Graph, Id, Node, Op, Scalar};
use half::{bf16, f16};
use progress::Record;
use std::sync::Arc;
use suite::Suite;

type Outputs = Vec<Vec<u8>>;

/// Values of the variables of one run.
pub type Vars = Vec<(&'static str, i64)>;

/// Contents of a slot before a run.
#[derive(Clone, Debug)]
pub enum Fill {
    /// Uniformly distributed floats in this interval.
    Uniform(f64, f64),
    /// Random integers in `lo..hi`.
    Whole(i64, i64),
    /// These values, repeated.
    Values(Vec<f64>),
}

/// Tolerance of floats. Integers and infinities must be equal.
#[derive(Clone, Copy)]
pub enum Within {
    /// Relative to the largest magnitude in the output.
    Scale(f64),
    /// An absolute bound, from the rounding of inputs of magnitude up to one.
    Absolute(f64),
    /// Relative to the value itself (or the smallest normal number).
    Each(f64),
    /// Bit-identical, except for the sign of zero.
    Exact,
}

/// A function with its inputs and the tolerance of its outputs.
pub struct Case {
    pub name: String,
    pub function: Arc<Function>,
    fills: Vec<Option<Fill>>,
    vars: Vec<Vars>,
    within: Within,
}

impl Case {
    /// A captured function; the default tolerance is 1e-5 of the largest magnitude.
    pub fn new(name: impl Into<String>, body: impl FnOnce(&Capture)) -> Case {
        let name = name.into();
        let capture = Capture::new(name.clone());
        body(&capture);
        Case::from_function(name, capture.finish())
    }
    /// A function written with graph nodes, with one input for each shape.
    pub fn raw(
        name: impl Into<String>,
        inputs: &[(&[i64], Scalar)],
        body: impl FnOnce(&mut Graph, &[Id]) -> Vec<Id>,
    ) -> Case {
        let name = name.into();
        let mut g = Graph::new();
        let mut slots = Vec::new();
        let mut ids = Vec::new();
        for (slot, &(dims, scalar)) in inputs.iter().enumerate() {
            let d: Vec<Id> = dims.iter().map(|&n| g.int(n)).collect();
            ids.push(g.param(slot as u32, &d, scalar));
            let storage = Storage::Plain(scalar);
            slots.push(Slot {
                name: format!("x{slot}"),
                kind: SlotKind::Input,
                dims: dims.to_vec(),
                storage,
            });
        }
        let mut outputs = Vec::new();
        for id in body(&mut g, &ids) {
            let dims = g.shape(id).iter().map(|&d| g.max_of(d)).collect();
            outputs.push((slots.len() as u32, id));
            let storage = Storage::Plain(g.scalar(id));
            slots.push(Slot {
                name: "y".into(),
                kind: SlotKind::Output,
                dims,
                storage,
            });
        }
        Case::from_function(
            name.clone(),
            Function {
                name,
                graph: g,
                slots,
                outputs,
            },
        )
    }
    fn from_function(name: String, function: Function) -> Case {
        let fills = vec![None; function.slots.len()];
        Case {
            name,
            function: Arc::new(function),
            fills,
            vars: vec![vec![]],
            within: Within::Scale(1e-5),
        }
    }
    /// Sets the contents of a slot; by default floats in -1..1 and integers below 100.
    pub fn fill(mut self, slot: usize, fill: Fill) -> Case {
        self.fills[slot] = Some(fill);
        self
    }
    /// Sets the values of the variables, one list for each run.
    pub fn vars(mut self, vars: &[&[(&'static str, i64)]]) -> Case {
        self.vars = vars.iter().map(|v| v.to_vec()).collect();
        self
    }
    /// Adds a suffix to the name, which also changes the random inputs.
    pub fn renamed(mut self, suffix: &str) -> Case {
        self.name = format!("{}, {suffix}", self.name);
        self
    }
    /// True if a weight is packed in blocks.
    pub fn has_packed(&self) -> bool {
        self.function
            .slots
            .iter()
            .any(|s| matches!(s.storage, Storage::Packed(e) if e.elements > 1))
    }
    pub fn within(mut self, within: Within) -> Case {
        self.within = within;
        self
    }
}

/// splitmix64.
pub struct Random(u64);

impl Random {
    pub fn from_name(name: &str) -> Random {
        Random(name.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| {
            (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
        }))
    }
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    pub fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
    pub fn below(&mut self, n: i64) -> i64 {
        (self.next() % n as u64) as i64
    }
}

/// Random blocks: arbitrary bytes, except that fields read as floats have moderate values.
pub fn blocks(e: EncodingRef, count: usize, r: &mut Random) -> Vec<u8> {
    // The offsets of float fields, from the encoding's description.
    let mut g = Graph::new();
    let buffer = g.packed(0, &[e.elements as i64], e);
    let base = g.int(0);
    let mut floats: Vec<(usize, Scalar)> = Vec::new();
    for k in 0..e.elements {
        let k = g.int(k as i64);
        let value = e.decode(&mut g, buffer, base, k);
        for n in g.toposort(&[value]) {
            let s = g.scalar(n);
            if g[n].op == Op::Load && s.is_float() {
                let at = g.int_value(g[n].src[1]).expect("a constant offset") as usize;
                if !floats.contains(&(at, s)) {
                    floats.push((at, s));
                }
            }
        }
    }
    let mut out = Vec::with_capacity(count * e.bytes);
    for _ in 0..count {
        let mut block: Vec<u8> = (0..e.bytes).map(|_| r.next() as u8).collect();
        for &(at, s) in &floats {
            let v = if e.elements == 1 {
                2.0 * r.unit() - 1.0
            } else {
                (r.unit() - 0.3) * 0.01
            };
            put(&mut block, at, s, v);
        }
        if e.name == "mxfp4" {
            block[0] = 118 + (r.next() % 8) as u8;
        }
        out.extend(block);
    }
    out
}

/// Writes `v` as a `scalar` at byte `at`.
fn put(bytes: &mut [u8], at: usize, scalar: Scalar, v: f64) {
    let mut set = |b: &[u8]| bytes[at..at + b.len()].copy_from_slice(b);
    match scalar {
        Scalar::F64 => set(&v.to_le_bytes()),
        Scalar::F32 => set(&(v as f32).to_le_bytes()),
        Scalar::F16 => set(&f16::from_f64(v).to_le_bytes()),
        Scalar::BF16 => set(&bf16::from_f64(v).to_le_bytes()),
        _ => set(&(v as i64).to_le_bytes()[..scalar.bytes()]),
    }
}

fn get(bytes: &[u8], at: usize, scalar: Scalar) -> f64 {
    fn le<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
        bytes[at..at + N].try_into().expect("N bytes")
    }
    match scalar {
        Scalar::F64 => f64::from_le_bytes(le(bytes, at)),
        Scalar::F32 => f32::from_le_bytes(le(bytes, at)).into(),
        Scalar::F16 => f16::from_le_bytes(le(bytes, at)).to_f64(),
        Scalar::BF16 => bf16::from_le_bytes(le(bytes, at)).to_f64(),
        Scalar::Bool | Scalar::U8 => bytes[at].into(),
        Scalar::I8 => (bytes[at] as i8).into(),
        Scalar::I16 => i16::from_le_bytes(le(bytes, at)).into(),
        Scalar::U16 => u16::from_le_bytes(le(bytes, at)).into(),
        Scalar::I32 => i32::from_le_bytes(le(bytes, at)).into(),
        Scalar::U32 => u32::from_le_bytes(le(bytes, at)).into(),
        Scalar::I64 => i64::from_le_bytes(le(bytes, at)) as f64,
    }
}

/// Flat positions of a tensor of dims `dims` in a buffer with the strides of dims `most`.
fn places(dims: &[usize], most: &[i64]) -> Vec<usize> {
    let mut out = vec![0];
    for (&n, &m) in dims.iter().zip(most) {
        out = out
            .iter()
            .flat_map(|&p| (0..n).map(move |i| p * m as usize + i))
            .collect();
    }
    out
}

/// Expected outputs: slot, values, and their positions in the slot.
pub type Want = Vec<(u32, HostArray, Vec<usize>)>;

/// Relative error of f32 sums before they are rounded to a narrow float. A sum this close to the
/// middle of two floats may round either way, with any effect on the outputs.
const ROUNDED: f64 = 1e-6;

/// A run: contents of all slots, their values if unpacked, and the expected outputs.
pub struct Run {
    pub vars: Vars,
    pub before: Vec<Vec<u8>>,
    pub values: Vec<Vec<f64>>,
    pub want: Want,
    /// Additional tolerance per output element for roundings that may go either way; empty if none.
    slack: Vec<Vec<f64>>,
}

/// Differences of the outputs if values before rounding are slightly larger or smaller.
///
/// Empty if no sum is rounded to a narrow float.
fn slack(
    f: &Function,
    vars: &Vars,
    before: &[Vec<u8>],
    values: &[Vec<f64>],
    want: &Want,
) -> Vec<Vec<f64>> {
    let roots: Vec<Id> = f.outputs.iter().map(|o| o.1).collect();
    let rounds = |n: &Node| {
        n.op == Op::Cast && n.dtype.scalar.is_half() && f.graph.scalar(n.src[0]) == Scalar::F32
    };
    if !f
        .graph
        .toposort(&roots)
        .into_iter()
        .any(|n| rounds(&f.graph[n]))
    {
        return vec![];
    }
    let moved =
        [ROUNDED, -ROUNDED].map(|part| truth(f, vars, before, values, Env::new().nudged(part)));
    let of = |n: usize, i: usize, w: f64| {
        let far: f64 = moved.iter().map(|m| (m[n].1.data[i] - w).abs()).sum();
        if far.is_finite() { far } else { 0.0 }
    };
    let each = |(n, (_, w, _)): (usize, &(u32, HostArray, Vec<usize>))| {
        w.data
            .iter()
            .enumerate()
            .map(|(i, &w)| of(n, i, w))
            .collect()
    };
    want.iter().enumerate().map(each).collect()
}

/// Evaluates a function for the inputs of a run, in the given environment.
fn truth<'a>(
    f: &Function,
    vars: &Vars,
    before: &'a [Vec<u8>],
    values: &'a [Vec<f64>],
    mut env: Env<'a>,
) -> Want {
    for &(name, v) in vars {
        env = env.var(name, v);
    }
    for (i, slot) in f.slots.iter().enumerate() {
        env = match slot.storage {
            Storage::Packed(_) => env.packed(i as u32, &before[i]),
            _ => env.values(i as u32, &values[i]),
        };
    }
    let roots: Vec<Id> = f.outputs.iter().map(|o| o.1).collect();
    let found = evaluate_all(&f.graph, &roots, &env).into_iter();
    let placed = |(&(slot, _), a): (&(u32, Id), HostArray)| {
        let places = places(&a.dims, &f.slots[slot as usize].dims);
        (slot, a, places)
    };
    f.outputs.iter().zip(found).map(placed).collect()
}

pub fn runs(case: &Case) -> Vec<Run> {
    let f = &case.function;
    let roots: Vec<Id> = f.outputs.iter().map(|o| o.1).collect();
    let order = f.graph.toposort(&roots);
    let mut r = Random::from_name(&case.name);
    case.vars
        .iter()
        .map(|vars| {
            let value = |name: &str| vars.iter().find(|v| v.0 == name).map(|v| v.1);
            let mut before = Vec::new();
            let mut values: Vec<Vec<f64>> = Vec::new();
            for (i, slot) in f.slots.iter().enumerate() {
                let size = slot.storage.bytes(&slot.dims).expect("a size");
                // Unwritten elements are NaN, or a large number.
                let mut bytes = vec![0xff; size];
                let mut data = Vec::new();
                match slot.storage {
                    _ if slot.kind == SlotKind::Output => {}
                    Storage::Packed(e) => bytes = blocks(e, size / e.bytes, &mut r),
                    Storage::Plain(s) => {
                        let is_it = |n: &Node| n.op == Op::Param && n.arg == Arg::Param(i as u32);
                        let node = order.iter().copied().find(|&n| is_it(&f.graph[n]));
                        let dims: Vec<usize> = match node {
                            Some(n) => f.graph[n]
                                .src
                                .iter()
                                .map(|&d| {
                                    f.graph
                                        .evaluate_index(d, &value)
                                        .expect("a dim of variables")
                                        as usize
                                })
                                .collect(),
                            None => slot.dims.iter().map(|&d| d as usize).collect(),
                        };
                        let fill = case.fills[i].clone().unwrap_or(match s.is_float() {
                            true => Fill::Uniform(-1.0, 1.0),
                            false => Fill::Whole(0, if s == Scalar::Bool { 2 } else { 100 }),
                        });
                        for (n, at) in places(&dims, &slot.dims).into_iter().enumerate() {
                            let v = match &fill {
                                Fill::Uniform(lo, hi) => lo + (hi - lo) * r.unit(),
                                Fill::Whole(lo, hi) => (lo + r.below(hi - lo)) as f64,
                                Fill::Values(v) => v[n % v.len()],
                            };
                            let v = if s.is_float() {
                                Value::Float(v).stored_as(s).float()
                            } else {
                                v
                            };
                            put(&mut bytes, at * s.bytes(), s, v);
                            data.push(v);
                        }
                    }
                }
                before.push(bytes);
                values.push(data);
            }
            let want = truth(f, vars, &before, &values, Env::new());
            let slack = slack(f, vars, &before, &values, &want);
            Run {
                vars: vars.clone(),
                before,
                values,
                want,
                slack,
            }
        })
        .collect()
}

/// Largest change of an output by errors of up to `part` in every result of float arithmetic, over
/// `tries` draws of errors; at least `part` of the largest output.
pub fn rounding_error(case: &Case, part: f64, tries: u64) -> f64 {
    let f = &case.function;
    let mut error: f64 = 0.0;
    for run in runs(case) {
        for seed in 0..tries {
            let env = Env::new().jittered(part, seed);
            let moved = truth(f, &run.vars, &run.before, &run.values, env);
            for ((_, exact, _), (_, moved, _)) in run.want.iter().zip(&moved) {
                for (a, b) in exact.data.iter().zip(&moved.data) {
                    error = error.max((a - b).abs()).max(part * a.abs());
                }
            }
        }
    }
    error
}

/// Describes the first element that matches none of `wants`; the message cites the first of them.
///
/// `slack` is an additional tolerance per element, and `allows(want, got)` accepts further values.
fn wrong(
    wants: &[&HostArray],
    got: &[f64],
    scalar: Scalar,
    within: Within,
    slack: &[f64],
    allows: &dyn Fn(f64, f64) -> bool,
) -> Option<String> {
    let finite = wants[0]
        .data
        .iter()
        .filter(|v| v.is_finite())
        .fold(0f64, |m, v| m.max(v.abs()));
    let value = |want: &HostArray, i: usize| match scalar.is_float() {
        true => Value::Float(want.data[i]).stored_as(scalar).float(),
        false => want.data[i],
    };
    let limit = |w: f64, i: usize| {
        let slack = slack.get(i).copied().unwrap_or(0.0);
        match within {
            Within::Exact => 0.0,
            _ if !scalar.is_float() => slack,
            Within::Scale(t) => t * finite + slack,
            Within::Absolute(t) => t + slack,
            Within::Each(t) => t * w.abs().max(f64::from(f32::MIN_POSITIVE)) + slack,
        }
    };
    let is_good = |w: f64, g: f64, i: usize| match w.is_finite() {
        true => (w - g).abs() <= limit(w, i) || allows(w, g),
        false => w == g || w.is_nan() && g.is_nan(),
    };
    let wrong = |&(i, &g): &(usize, &f64)| !wants.iter().any(|want| is_good(value(want, i), g, i));
    let (i, g) = got.iter().enumerate().find(wrong)?;
    let (w, dims) = (value(wants[0], i), &wants[0].dims);
    Some(format!(
        "element {i} of {dims:?}: {g:e} should be {w:e} (within {:e})",
        limit(w, i)
    ))
}

/// Tolerance for integer contractions, against a reference with the same int8 activations. f32 and
/// f64 may round `x·127/max` differently at a tie: an error of 1/127 of the largest activation in a
/// sum of tens of products, about a thousandth of the largest result.
const DERIVED: Within = Within::Scale(3e-3);
/// As [`DERIVED`], if f16 MMA feeds int8 activations: dequantised f16 weights have errors of 2^-11
/// per term, so a few of a hundred codes are off by one, not only ties. SwiGLU of Q6_K by MMA, then
/// int8: mean error 6e-4, at most 3.4e-3 (by MMA alone 2e-4 and 8e-4).
const MIXED: Within = Within::Scale(6e-3);
/// Tolerance against the original function: an int8 activation is off by up to half of 1/127 of the
/// largest in its group, and a network propagates that.
const ENCODED: Within = Within::Scale(2e-2);

/// A way to compute: name, device, and optional seed of a perturbed schedule.
#[derive(Clone)]
pub struct Way {
    pub name: String,
    pub device: Opened,
    pub seed: Option<u64>,
    /// Outputs of ways with equal marks must be bit-identical.
    pub same_as: Option<&'static str>,
}

/// Number of perturbed schedules requested by `GRISTMILL_PERTURB`.
pub fn asked() -> Option<u64> {
    std::env::var("GRISTMILL_PERTURB")
        .ok()
        .and_then(|v| v.parse().ok())
}

/// Seeds of perturbed schedules: the requested number of them, or `usual`.
pub fn seeds(usual: u64) -> impl Iterator<Item = u64> {
    1..=asked().unwrap_or(usual)
}

/// Schedules compiled together: enough to compile shared kernels once and start few compilers, few
/// enough to record results every minute.
const BATCH: usize = 256;

/// Named in the panic if the record cannot be written.
const RECORD: &str = "the folder of GRISTMILL_RECORD";

/// Runs all cases in all ways, in batches; panics with all failures.
///
/// Without `GRISTMILL_PERTURB`, each case runs its cheapest schedules and one perturbed schedule,
/// by rotation. A slow device runs one schedule per case, cheapest or perturbed. So every seed runs
/// a part of each group of cases.
pub fn check(cases: Vec<Case>, mut ways: Vec<Way>) {
    let only = std::env::var("GRISTMILL_CASE").ok();
    if let Ok(text) = std::env::var("GRISTMILL_WAY") {
        ways.retain(|way| way.name.contains(&text));
    }
    let record = Record::open().expect(RECORD);
    let wanted = |c: &Case| {
        only.as_ref().is_none_or(|o| c.name.contains(o.as_str())) && !record.has(&c.name)
    };
    let shard = shard();
    let part = |(i, case): (usize, Case)| (i % shard.1 == shard.0).then_some(case);
    let cases: Vec<Case> = cases
        .into_iter()
        .enumerate()
        .filter_map(part)
        .filter(wanted)
        .collect();
    let turns = if asked().is_some() {
        vec![ways]
    } else {
        in_turn(ways)
    };
    let mut of_turn: Vec<Vec<Case>> = turns.iter().map(|_| Vec::new()).collect();
    cases
        .into_iter()
        .enumerate()
        .for_each(|(i, case)| of_turn[i % turns.len()].push(case));
    let errors: Vec<String> = of_turn
        .into_iter()
        .zip(&turns)
        .flat_map(|(cases, ways)| run(cases, ways, &record))
        .collect();
    assert!(
        errors.is_empty(),
        "{} wrong:\n{}",
        errors.len(),
        errors[..errors.len().min(40)].join("\n")
    );
}

/// Cases of a slow device with the first cheapest schedule, for each case with a given perturbed
/// one.
const CHEAPEST: usize = 2;

/// Slow devices, by device or machine name. Emulated, simulated and interpreted kernels take as
/// long as all others together (CPU time of CI: NEON 240 s, simulated CUDA 430 s, interpreter 190
/// s); the CPU runs perturbed schedules too. Vulkan on a CPU takes 0.1 to 1 s to compile a kernel
/// with barriers.
const SLOW: [&str; 4] = ["emulated", "simulated", "interp", "llvmpipe"];

/// Sets of ways to be assigned to successive cases by rotation.
fn in_turn(ways: Vec<Way>) -> Vec<Vec<Way>> {
    let called = |way: &Way, name: &str| {
        way.device.device.name() == name || way.device.target.name.contains(name)
    };
    let slow = ways
        .iter()
        .any(|way| SLOW.iter().any(|name| called(way, name)));
    let (cheapest, perturbed): (Vec<Way>, Vec<Way>) =
        ways.into_iter().partition(|way| way.seed.is_none());
    if !slow {
        return match perturbed.is_empty() {
            true => vec![cheapest],
            false => perturbed
                .into_iter()
                .map(|way| cheapest.iter().cloned().chain([way]).collect())
                .collect(),
        };
    }
    // Ways of one device stay together, for bitwise comparison. A restricted variant is another
    // device.
    let mut turns: Vec<Vec<Way>> = Vec::new();
    for way in cheapest {
        let id = |way: &Way| way.device.device.id();
        match turns.iter_mut().find(|turn| id(&turn[0]) == id(&way)) {
            Some(turn) => turn.push(way),
            None => turns.push(vec![way]),
        }
    }
    let again = turns.first().cloned().filter(|_| !perturbed.is_empty());
    let again = again
        .into_iter()
        .flat_map(|first| std::iter::repeat_n(first, CHEAPEST - 1));
    again
        .chain(turns)
        .chain(perturbed.into_iter().map(|way| vec![way]))
        .collect()
}

/// Runs cases in these ways and returns their failures.
fn run(mut cases: Vec<Case>, ways: &[Way], record: &Record) -> Vec<String> {
    // Interpreted devices do not compile, so each case is recorded by itself.
    let batch = if ways.iter().any(|way| way.device.dialect.is_some()) {
        BATCH / ways.len()
    } else {
        1
    };
    let mut errors = Vec::new();
    while !cases.is_empty() {
        let rest = cases.split_off(batch.clamp(1, cases.len()));
        let (finished, stages) = Suite::new(std::mem::replace(&mut cases, rest)).run(ways, record);
        record.add(&finished, &stages, cases.len()).expect(RECORD);
        errors.extend(finished.into_iter().flat_map(|f| f.wrong));
    }
    errors
}

/// Index and number of shards: `GRISTMILL_SHARD=2/3` is every third case from the second on.
fn shard() -> (usize, usize) {
    let Ok(text) = std::env::var("GRISTMILL_SHARD") else {
        return (0, 1);
    };
    let parsed = text
        .split_once('/')
        .and_then(|(i, n)| Some((i.parse::<usize>().ok()?, n.parse::<usize>().ok()?)));
    let (i, n) = parsed
        .filter(|(i, n)| (1..=*n).contains(i))
        .expect("GRISTMILL_SHARD=2/3");
    (i - 1, n)
}
