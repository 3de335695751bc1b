//! The cost model: estimates the seconds of a kernel on a target from its nests.
//!
//! A kernel costs its bytes over bandwidth or its operations over throughput, one launch,
//! and for every stage the time a workgroup needs before its readers can start. This file counts
//! these [`Features`]; the machine's [`Coefficients`] make them seconds. Variables count with a
//! typical value, so that a context limit of 200,000 positions that is rarely filled does not
//! dominate.

pub mod occupancy;

use crate::ir::mma::fragment::MmaSum;
use crate::ir::mma::lane_tile::is_laid_out;
use crate::ir::mma::product::MmaProduct;
use crate::ir::mma::tile_axes;
use crate::ir::nest::{global_ranges, outermost_reductions};
use crate::ir::size_estimate::typical;
use gristmill_uop::features::{Amounts, Coefficients, Feature, Features};
use gristmill_uop::fragment::Fragment;
use gristmill_uop::machine::{Machine, MachineKind};
use gristmill_uop::program::Estimate;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Node, Op, RangeKind, Scalar};
use rustc_hash::{FxHashMap, FxHashSet};

/// Minimum SIMD lanes for packed words that a CPU multiplies together: the
/// narrowest vector. Not measured.
const MIN_LANES: f64 = 4.0;

/// Modelled cost of one kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Seconds, including the launch.
    pub seconds: f64,
    /// What they consist of.
    pub features: Features,
    /// Bytes moved and operations.
    pub estimate: Estimate,
    /// Seconds before the last nests can start: the chain of stages.
    pub stages: f64,
    /// Lower bound in seconds over all workgroup shapes, surplus elements aside: the launch, plus
    /// the larger of the weights' memory time and the operations of the outputs.
    pub floor: f64,
}

struct Counter<'a> {
    g: &'a Graph,
    machine: &'a Machine,
    by: Coefficients,
    sizes: FxHashMap<Id, f64>,
}

impl Counter<'_> {
    fn new<'a>(g: &'a Graph, target: &'a Target) -> Counter<'a> {
        Counter {
            g,
            machine: &target.machine,
            by: target.machine.coefficients(),
            sizes: FxHashMap::default(),
        }
    }
    fn size(&mut self, range: Id) -> f64 {
        let g = self.g;
        *self
            .sizes
            .entry(range)
            .or_insert_with(|| typical(g, g[range].src[0]))
    }
    fn product(&mut self, ranges: impl IntoIterator<Item = Id>) -> f64 {
        ranges.into_iter().map(|r| self.size(r)).product()
    }
}

/// Loop iterations with loads in flight together, where each thread runs all of them. Not measured.
const ITERATIONS_IN_FLIGHT: f64 = 8.0;

impl Counter<'_> {
    /// Number of memory latencies a thread waits before it knows its operands' addresses.
    ///
    /// Applies if the workgroup plan already assigns the nest's threads: each thread then computes
    /// by itself the reductions that an address depends on, iteration by iteration.
    fn serial(&mut self, nest: Id) -> f64 {
        let g = self.g;
        let counted = g[nest].src[3..]
            .iter()
            .any(|&r| g.range_kind(r) == Some(RangeKind::Vector));
        if self.machine.kind != MachineKind::Gpu || !counted {
            return 0.0;
        }
        let outermost = outermost_reductions(g, nest);
        let sums: Vec<Id> = g
            .toposort(&[g[nest].src[2]])
            .into_iter()
            .filter(|&n| g[n].op == Op::Reduce)
            .collect();
        let inner = sums.into_iter().filter(|n| !outermost.contains(n));
        let far =
            inner.filter(|&n| g.any(n, |_, n| n.op == Op::Load && g[n.src[0]].op == Op::Param));
        let loops = far.filter(|&n| {
            g[n].src[1..]
                .iter()
                .any(|&r| g.range_kind(r) == Some(RangeKind::Reduce))
        });
        let terms = |n: Id| g[n].src[1..].to_vec();
        loops
            .map(terms)
            .map(|ranges| (self.product(ranges) / ITERATIONS_IN_FLIGHT).ceil())
            .sum()
    }
    /// Whether a CPU loads a word of a packed weight together with adjacent words, as
    /// lanes of a vector.
    ///
    /// That needs a range along which words are contiguous; if it is an output range, every other
    /// load that depends on it must be contiguous along it, too. A workgroup with one of several
    /// interleaved rows loads its words one by one, and so does a nest whose other operands are
    /// strided across those rows. `order` holds the nodes of the nest.
    fn loads_neighbours(&mut self, load: Id, closed: &[Id], order: &[Id]) -> bool {
        let g = self.g;
        if self.machine.kind != MachineKind::Cpu || self.machine.lanes <= 1 {
            return true;
        }
        let own: Vec<Id> = neighbours(g, load)
            .into_iter()
            .filter(|&r| g.range_kind(r) != Some(RangeKind::Global))
            .collect();
        let lanes = |r: Id| {
            let across = |&n: &Id| {
                g[n].op == Op::Load
                    && g.free_ranges(n).contains(&r)
                    && !neighbours(g, n).contains(&r)
            };
            !closed.contains(&r) || !order.iter().any(across)
        };
        own.into_iter()
            .any(|r| self.size(r) >= MIN_LANES && lanes(r))
    }
}

/// Ranges along which the elements of a load are contiguous in memory.
fn neighbours(g: &Graph, load: Id) -> Vec<Id> {
    let unit = g[load].dtype.scalar.bytes() as i64 / g.unit_bytes(g[load].src[0]);
    let along = g
        .linear(g[load].src[1])
        .terms
        .into_iter()
        .filter(|&(_, step)| step == unit);
    along
        .flat_map(|(term, _)| g.free_ranges(term).to_vec())
        .collect()
}

/// The cost of a kernel that consists of these nests.
pub fn kernel(g: &Graph, nests: &[Id], target: &Target) -> Cost {
    let mut c = Counter::new(g, target);
    let by = c.by;
    let globals = global_ranges(g, nests);
    let groups = c.product(globals.iter().copied());
    let mut estimate = Estimate::default();
    let mut seen_bytes: FxHashSet<(Id, Vec<Id>)> = FxHashSet::default();
    let mut seen_weights: FxHashSet<Id> = FxHashSet::default();
    let mut indices = Indices::default();
    let (mut main_ops, mut main_cached, mut jumps) = (Amounts::default(), 0.0, 0.0);
    let mut stages = Amounts::default();
    let resident = occupancy::resident_of(g, nests, target);
    // With one workgroup per processor unit, memory and arithmetic time add up; with several, they
    // overlap.
    let both = |ops: Amounts, cached: f64| {
        let cached = Feature::Cache.times(cached);
        if resident == 1 {
            ops + cached
        } else {
            ops.longer(cached, &by)
        }
    };
    for &nest in nests {
        let staged = g[g[nest].src[0]].op == Op::Local;
        let runs = runs(&mut c, nest, &globals, target);
        let closed: Vec<Id> = g[nest].src[3..].to_vec();
        let (ops, cached) = work(&mut c, nest, &closed, &mut estimate, &mut seen_bytes);
        indices.add(g, nest, &globals);
        let bytes = weights(&mut c, nest, &indices, &mut seen_weights);
        estimate.weight_bytes += bytes;
        if target.machine.kind == MachineKind::Cpu {
            jumps += jumps_of(&mut c, nest, &globals);
        }
        if staged && target.machine.kind == MachineKind::Gpu && copies(g, nest) {
            // Async copies overlap compute; they are charged to the consumer as memory time.
            main_cached += groups * cached;
        } else if staged {
            // Every worker does its share of the runs; the rest of the workgroup waits meanwhile.
            let once = both(ops.staged(&by), cached) * runs;
            stages += once.longer(weights_again(&mut c, nest, &globals, bytes, runs), &by);
            let again = closed.iter().copied();
            let again = again.filter(|&r| g.range_kind(r) == Some(RangeKind::Fused));
            stages += wait(g, nest, groups / resident as f64, target) * c.product(again);
        } else {
            main_ops += ops * runs;
            main_cached += runs * cached;
        }
        if !staged && target.machine.kind == MachineKind::Gpu {
            stages += Feature::Wait.times(rows_in_turn(&mut c, nest, &globals) - 1.0);
        }
        stages += Feature::Wait.times(c.serial(nest) * rounds(groups / resident as f64, target));
    }
    estimate.operations += main_ops.operations(&by);
    let memory = Feature::Memory.times(estimate.weight_bytes)
        + Feature::Jump.times(jumps / target.machine.units as f64);
    let (launch, idle) = (Feature::Launch.times(1.0), idle(groups, target));
    let features = Features {
        fixed: launch + stages,
        memory: memory * idle,
        compute: both(main_ops, main_cached) * idle,
    };
    let least = Features {
        fixed: launch,
        memory,
        compute: main_ops,
    };
    Cost {
        seconds: features.seconds(&by),
        features,
        estimate,
        stages: stages.seconds(&by),
        floor: least.seconds(&by),
    }
}

/// Accumulates the cost of a custom kernel and of the expressions fused into it.
#[derive(Default)]
pub struct TextCost {
    /// Bytes moved and operations.
    pub estimate: Estimate,
    /// Bytes read through the cache.
    pub cached: f64,
}

impl TextCost {
    /// Adds an expression that is evaluated `times` times for each index of `range`, the custom
    /// kernel's own result excluded.
    pub fn expression(&mut self, g: &Graph, value: Id, range: Option<Id>, times: f64) {
        let size = range.map_or(1.0, |r| typical(g, g[r].src[0]));
        let mut seen: FxHashSet<Id> = FxHashSet::default();
        for n in g.toposort_within(&[value], |n| g[n].op != Op::Call) {
            let (node, varies) = (&g[n], range.is_some_and(|r| g.free_ranges(n).contains(&r)));
            let indices = if varies { size } else { 1.0 };
            self.estimate.operations += times * indices * weight(node).unwrap_or(0.0);
            if node.op != Op::Load {
                continue;
            }
            let (bytes, first) = (node.dtype.scalar.bytes() as f64, seen.insert(node.src[0]));
            let different = g
                .bounds(node.src[1])
                .map_or(size, |(least, most)| (most - least + 1) as f64)
                .min(indices);
            match g[node.src[0]].arg {
                Arg::Packed(_, e) if first => {
                    self.estimate.weight_bytes += indices * e.bytes as f64 / e.elements as f64
                }
                Arg::Packed(..) => {}
                _ => {
                    self.cached += times * indices * bytes;
                    self.estimate.other_bytes += if first { different * bytes } else { 0.0 };
                }
            }
        }
    }
    /// Adds bytes that are moved once.
    pub fn bytes(&mut self, bytes: f64) {
        self.estimate.other_bytes += bytes;
        self.cached += bytes;
    }
    /// The cost: weights come from memory and everything else from the cache, as in other kernels.
    pub fn cost(self, machine: &Machine) -> Cost {
        let TextCost { estimate, cached } = self;
        let by = machine.coefficients();
        let operations = Feature::Operation.times(estimate.operations);
        let features = Features {
            fixed: Feature::Launch.times(1.0),
            memory: Feature::Memory.times(estimate.weight_bytes),
            compute: Feature::Cache.times(cached).longer(operations, &by),
        };
        let seconds = features.seconds(&by);
        Cost {
            seconds,
            features,
            estimate,
            stages: 0.0,
            floor: seconds,
        }
    }
}

/// Slowdown of a kernel with that many workgroups against one that keeps all units busy.
fn idle(groups: f64, target: &Target) -> f64 {
    let units = target.machine.units as f64;
    match target.machine.kind {
        MachineKind::Cpu => (units / groups.max(1.0)).clamp(1.0, units),
        MachineKind::Gpu => (units / 2.0 / groups.max(1.0)).clamp(1.0, 64.0),
    }
}

/// The repeated reads of a CPU stage's weights from memory. None if they fit the cache; otherwise
/// each run reads them again.
fn weights_again(c: &mut Counter, nest: Id, globals: &[Id], bytes: f64, runs: f64) -> Amounts {
    if c.machine.kind != MachineKind::Cpu || bytes <= c.machine.stage_bytes() as f64 {
        return Amounts::default();
    }
    let mine = c.g.free_ranges(nest);
    let different = c.product(globals.iter().copied().filter(|r| mine.contains(r)));
    Feature::Memory.times(bytes * (runs / different).max(1.0))
}

/// How often the nest runs: once per workgroup. A CPU runs a stage once per chunk, or whenever an
/// index that it depends on changes.
fn runs(c: &mut Counter, nest: Id, globals: &[Id], target: &Target) -> f64 {
    let g = c.g;
    let (staged, mine) = (g[g[nest].src[0]].op == Op::Local, g.free_ranges(nest));
    let units = target.machine.units as f64;
    let groups = c.product(globals.iter().copied());
    match (staged, target.machine.kind) {
        (false, _) => c.product(mine.iter().copied()),
        // Workgroups run in parallel: a single one takes as long as one on every multiprocessor.
        (true, MachineKind::Gpu) => groups.max(units),
        (true, MachineKind::Cpu) => {
            let last = globals.iter().rposition(|r| mine.contains(r));
            let n = c.product(globals[..last.map_or(0, |l| l + 1)].iter().copied());
            n.max(units.min(groups))
        }
    }
}

/// Waits of workgroups at the end of a stage: a barrier and the latency of its loads (less if none
/// is from memory), once per wave. A single workgroup does not fill the machine.
fn wait(g: &Graph, nest: Id, workgroups: f64, target: &Target) -> Amounts {
    let barrier = Feature::Barrier.times(1.0);
    if target.machine.kind == MachineKind::Cpu {
        return barrier;
    }
    let far = g.any(nest, |_, n| n.op == Op::Load && g[n.src[0]].op == Op::Param);
    let latency = Feature::Wait.times(if far { 1.0 } else { 0.2 });
    (barrier + latency) * rounds(workgroups, target)
}

/// Waves of a GPU launch, given its workgroups divided by those that are resident on a unit.
fn rounds(workgroups: f64, target: &Target) -> f64 {
    (workgroups / target.machine.units as f64).max(1.0)
}

/// Whether the nest is a plain copy from memory, which a GPU performs asynchronously.
fn copies(g: &Graph, nest: Id) -> bool {
    let value = &g[g[nest].src[2]];
    value.op == Op::Load && g[value.src[0]].op == Op::Param
}

/// Launch ranges that each stage depends on.
#[derive(Default)]
struct Indices(FxHashMap<Id, FxHashSet<Id>>);

impl Indices {
    /// Records one more nest; stages must precede their readers.
    fn add(&mut self, g: &Graph, nest: Id, globals: &[Id]) {
        let stage = g[nest].src[0];
        if g[stage].op == Op::Local {
            let own = g
                .free_ranges(nest)
                .iter()
                .copied()
                .filter(|r| globals.contains(r));
            let ranges: FxHashSet<Id> = own.chain(self.read_by(g, g[nest].src[2])).collect();
            self.0.entry(stage).or_default().extend(ranges);
        }
    }
    /// Launch ranges of all stages that a value reads.
    fn read_by(&self, g: &Graph, value: Id) -> FxHashSet<Id> {
        let stages = g
            .toposort(&[value])
            .into_iter()
            .filter(|&n| g[n].op == Op::Load);
        stages
            .filter_map(|n| self.0.get(&g[n].src[0]))
            .flatten()
            .copied()
            .collect()
    }
}

/// Bytes of the packed weights that a nest reads, each weight once: the elements that
/// its loads distinguish together.
///
/// A block is read by several loads, scales depend on fewer ranges than codes, and the parts of a
/// code on different ones. An index from a stage, such as a chosen expert's, counts with the ranges
/// that the stage depends on.
fn weights(c: &mut Counter, nest: Id, indices: &Indices, seen: &mut FxHashSet<Id>) -> f64 {
    let (g, mut bytes) = (c.g, 0.0);
    let mut found: Vec<(Id, FxHashSet<Id>, bool)> = Vec::new();
    for n in g.toposort(&[g[nest].src[2]]) {
        let node = &g[n];
        if node.op != Op::Load
            || !matches!(g[node.src[0]].arg, Arg::Packed(..))
            || seen.contains(&node.src[0])
        {
            continue;
        }
        let at = found
            .iter()
            .position(|f| f.0 == node.src[0])
            .unwrap_or_else(|| {
                found.push((node.src[0], FxHashSet::default(), false));
                found.len() - 1
            });
        found[at].1.extend(
            g.free_ranges(n)
                .iter()
                .copied()
                .chain(indices.read_by(g, node.src[1])),
        );
        found[at].2 |= node.dtype.scalar == Scalar::U32;
    }
    for (buffer, ranges, words) in found {
        let Arg::Packed(_, e) = g[buffer].arg else {
            continue;
        };
        // A word holds four elements.
        let elements = c.product(ranges) * if words { 4.0 } else { 1.0 };
        bytes += elements * e.bytes as f64 / e.elements as f64;
        seen.insert(buffer);
    }
    bytes
}

/// How often a nest jumps to another address of a packed weight because data selects it (a chosen
/// expert): once per change of an index that the selection depends on. In loop order, that is the
/// product of all ranges up to the innermost such index.
fn jumps_of(c: &mut Counter, nest: Id, globals: &[Id]) -> f64 {
    let mut most = 0.0f64;
    for (_, chosen) in chosen_rows(c.g, nest) {
        // Launch indices are outside those of a workgroup, and are themselves in order.
        let last = globals
            .iter()
            .rposition(|r| chosen.contains(r))
            .map_or(0, |l| l + 1);
        let within: Vec<Id> = chosen
            .into_iter()
            .filter(|r| !globals.contains(r))
            .collect();
        let outer = if within.is_empty() {
            &globals[..last]
        } else {
            globals
        };
        let ranges: Vec<Id> = outer.iter().copied().chain(within).collect();
        most = most.max(c.product(ranges));
    }
    most
}

/// Data-selected rows of a packed weight (experts) that a GPU workgroup processes in sequence, at
/// least 1. Each one starts with a full memory latency. Qwen3-30B-A3B down projection on an H100,
/// eight experts in sequence or one: 17.1 and 8.7 us (docs/experiments/107).
fn rows_in_turn(c: &mut Counter, nest: Id, globals: &[Id]) -> f64 {
    let g = c.g;
    let of = chosen_rows(g, nest).into_iter().map(|(address, chosen)| {
        // A range that the index is summed over selects no row.
        let own = g.free_ranges(address).iter().copied();
        c.product(own.filter(|r| chosen.contains(r) && !globals.contains(r)))
    });
    of.fold(1.0, f64::max)
}

/// Addresses of packed weights that depend on data, each with the ranges that
/// the selection depends on.
fn chosen_rows(g: &Graph, nest: Id) -> Vec<(Id, FxHashSet<Id>)> {
    let packed = |&n: &Id| g[n].op == Op::Load && matches!(g[g[n].src[0]].arg, Arg::Packed(..));
    let addresses = g
        .toposort(&[g[nest].src[2]])
        .into_iter()
        .filter(packed)
        .map(|n| g[n].src[1]);
    let chosen = |address: Id| -> FxHashSet<Id> {
        let read = g
            .toposort(&[address])
            .into_iter()
            .filter(|&m| g[m].op == Op::Load);
        read.flat_map(|m| g.free_ranges(m).to_vec()).collect()
    };
    addresses
        .map(|address| (address, chosen(address)))
        .filter(|(_, chosen)| !chosen.is_empty())
        .collect()
}

/// Cost of an elementwise node in f32 operations; `None` for index arithmetic.
fn weight(node: &Node) -> Option<f64> {
    let scalar = node.dtype.scalar;
    match node.op {
        op if !op.is_elementwise() || scalar == Scalar::I64 => None,
        _ if !scalar.is_float() => Some(0.25),
        Op::Exp | Op::Log => Some(12.0),
        Op::Exp2 => Some(8.0),
        Op::Sqrt | Op::Div | Op::Recip => Some(4.0),
        Op::Cast | Op::Bitcast => Some(0.25),
        _ => Some(1.0),
    }
}

/// A sum of a nest that MMA fragments compute.
struct Multiplied {
    id: Id,
    sum: MmaSum,
    by: &'static Fragment,
    /// Computed over needed outputs: tiles are always whole.
    surplus: f64,
}

impl Multiplied {
    /// Finds sums computed by the tile unit of a core or subgroup, if the nest has its tile, or by
    /// warp fragments over half-precision or dequantised operands.
    fn all(g: &Graph, nest: Id, machine: &Machine) -> Vec<Multiplied> {
        let id = g[nest].src[2];
        if tile_axes::ranges(g, &g[nest].src[3..], machine).is_some()
            && let Some(by) = machine.tile_fragment()
            && let Some(sum) = MmaSum::from_node(g, id).filter(|sum| sum.operand == by.operand)
        {
            return vec![Multiplied {
                id,
                sum,
                by,
                surplus: 1.0,
            }];
        }
        if let Some(product) = MmaProduct::from_store(g, nest, machine) {
            let surplus =
                (product.tiles_beside() * product.of_tile()) as f64 / product.outputs as f64;
            return vec![Multiplied {
                id: product.id,
                sum: product.sum,
                by: product.of,
                surplus,
            }];
        }
        if machine.kind == MachineKind::Gpu {
            let sums = g
                .toposort(&[g[nest].src[2]])
                .into_iter()
                .filter(|&n| g[n].op == Op::Reduce);
            let closed = &g[nest].src[3..];
            let of = |id: Id| {
                let sum = MmaSum::unpacked(g, id)?;
                let of_operand = |by: &&&'static Fragment| by.operand == sum.operand;
                let mut all: Vec<&'static Fragment> = machine
                    .fragments
                    .iter()
                    .filter(|by| of_operand(&by))
                    .collect();
                // Fragments of several warps first.
                all.sort_by_key(|by| -by.rows);
                let by = all
                    .into_iter()
                    .find(|by| is_laid_out(g, by, closed, sum.rows, sum.columns))?;
                Some(Multiplied {
                    id,
                    sum,
                    by,
                    surplus: 1.0,
                })
            };
            return sums.filter_map(of).collect();
        }
        vec![]
    }
    /// Nodes that the product absorbs: conversions, and staged columns, which
    /// cause no cache traffic.
    fn contained(&self, g: &Graph) -> Vec<Id> {
        let product = g[self.id].src[0];
        let staged = Some(self.sum.columns).filter(|_| self.sum.staged_columns(g));
        [product, g[product].src[0], g[product].src[1]]
            .into_iter()
            .chain(staged)
            .collect()
    }
}

/// Whether a GPU dequantises the rows of that sum one by one to multiply them in half precision.
fn unpacked_alone(g: &Graph, sum: Id, machine: &Machine) -> bool {
    machine.kind == MachineKind::Gpu && MmaSum::unpacked(g, sum).is_some()
}

/// Whether a GPU thread reads a packed weight of that sum element by element instead of in words.
fn reads_elements(g: &Graph, sum: Id, machine: &Machine) -> bool {
    if machine.kind != MachineKind::Gpu {
        return false;
    }
    let loads: Vec<Id> = g
        .toposort(&[sum])
        .into_iter()
        .filter(|&n| g[n].op == Op::Load)
        .collect();
    // Encodings with one element per block are plain numbers.
    let packed = |n: &Id| matches!(g[g[*n].src[0]].arg, Arg::Packed(_, e) if e.elements > 1);
    let in_words = |buffer: Id| {
        loads
            .iter()
            .any(|&n| g[n].src[0] == buffer && g[n].dtype.scalar == Scalar::U32)
    };
    loads
        .iter()
        .filter(|n| packed(n))
        .any(|&n| !in_words(g[n].src[0]))
}

/// Instructions and cached bytes of one run of a nest, over its closed and reduce ranges. Adds the
/// reads other than weights to the estimate.
fn work(
    c: &mut Counter,
    nest: Id,
    closed: &[Id],
    estimate: &mut Estimate,
    seen: &mut FxHashSet<(Id, Vec<Id>)>,
) -> (Amounts, f64) {
    let g = c.g;
    let (mut ops, mut cached) = (Amounts::default(), 0.0);
    // Whether words of a weight are loaded one by one.
    let mut has_lone_words = false;
    let order = g.toposort(&[g[nest].src[2], g[nest].src[1]]);
    // Nodes absorbed by a matrix product are not counted again.
    let products = Multiplied::all(g, nest, c.machine);
    let of_product: FxHashSet<Id> = products
        .iter()
        .flat_map(|product| product.contained(g))
        .collect();
    // A node is evaluated once per index of its free ranges; an accumulation also once per index
    // of its reduce ranges.
    for &n in &order {
        let node = &g[n];
        if of_product.contains(&n) {
            continue;
        }
        let free = g.free_ranges(n).to_vec();
        let inside: Vec<Id> = free
            .iter()
            .copied()
            .filter(|&r| g.range_kind(r) != Some(RangeKind::Global))
            .collect();
        match node.op {
            Op::Load => {
                let times = c.product(inside.iter().copied());
                let buffer = &g[node.src[0]];
                let packed = matches!(buffer.arg, Arg::Packed(..));
                let bytes = node.dtype.scalar.bytes() as f64;
                if packed
                    && node.dtype.scalar == Scalar::U32
                    && !c.loads_neighbours(n, closed, &order)
                {
                    has_lone_words = true;
                }
                // Every workgroup reads the weights of a stage again.
                if !packed || g[g[nest].src[0]].op == Op::Local {
                    cached += times * bytes;
                }
                if !packed && buffer.op == Op::Param && seen.insert((node.src[0], free.clone())) {
                    estimate.other_bytes += c.product(free.iter().copied()) * bytes;
                }
            }
            Op::Reduce => {
                let (feature, weight) = match products.iter().find(|p| p.id == n) {
                    Some(p) => (Feature::Matrix, p.surplus * c.machine.term_of(p.by)),
                    None if unpacked_alone(g, n, c.machine) => (Feature::UnpackedTerm, 1.0),
                    None if reads_elements(g, n, c.machine) => (Feature::LoneTerm, 1.0),
                    None => (Feature::Operation, 1.0),
                };
                let terms = inside.iter().copied().chain(node.src[1..].iter().copied());
                ops += feature.times(weight * c.product(terms));
            }
            Op::Dot4 | Op::SignedDot4 if has_lone_words => {
                let words = c.machine.lanes as f64 * c.product(inside.iter().copied());
                ops += Feature::LoneWord.times(words);
            }
            _ => {
                let Some(weight) = weight(node) else { continue };
                ops += Feature::Operation.times(weight * c.product(inside.iter().copied()));
            }
        }
    }
    let written = c.product(closed.iter().copied()) * g[nest].dtype.scalar.bytes() as f64;
    (ops, cached + written)
}
