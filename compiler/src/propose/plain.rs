//! Workgroup shapes for elementwise kernels and reductions, that is, kernels without
//! a contraction of weights.

use super::context::{ProposalContext, Uncut};
use super::factors::tiled;
use crate::cost::occupancy::resident_workgroups;
use crate::decompose::f16_mma;
use crate::ir::nest::{Nest, divisor, host_bound};
use crate::plan::{AxisPart, Proposal, Workgroup, proposals};
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op, RangeKind};

/// Minimum terms per thread. Fewer mean more threads and workgroups, with launch and address costs
/// above that of a term. Not measured.
const TERMS_OF_THREAD: i64 = 4;
/// Terms below which a single CPU worker computes the whole kernel: waking other workers would
/// cost more. Not measured.
const ELEMENTS_OF_ONE_WORKER: i64 = 2048;
/// Maximum elements of a CPU workgroup along the last axis, with constant and with data-dependent
/// length. Shorter chunks cost scheduling, longer ones limit load balance. Not measured.
const CHUNK_ELEMENTS: i64 = 64;
const CHUNK_ELEMENTS_OF_DATA: i64 = 16;

/// Bytes of a sector of a GPU's cache, which a thread reads of a row.
const SECTOR: i64 = 32;

/// Candidate workgroups with enough of them for the machine and the last axes inside; only the
/// heuristic's unless `all` is set. `own` are the axes of a contraction's factors.
pub fn plain(
    g: &Graph,
    of: Uncut,
    own: Option<[usize; 2]>,
    around: &ProposalContext,
    all: bool,
) -> Vec<Proposal<Workgroup>> {
    let Uncut { nests, axes } = of;
    let target = around.target;
    let of = Plain::new(g, nests, axes, around);
    let in_order = of.in_order_of_halves(nests, around);
    let turned = of.turned(nests, target);
    let first = match (target.machine.kind, &in_order) {
        (MachineKind::Cpu, _) => of.for_workers(ELEMENTS_OF_ONE_WORKER, CHUNK_ELEMENTS),
        (MachineKind::Gpu, Some(of_units)) if !of_units.waits => of_units.workgroup.clone(),
        (MachineKind::Gpu, _) => turned.unwrap_or_else(|| of.for_threads(of.elements(target))),
    };
    if !all {
        return proposals(first, []);
    }
    let tiled = |[a, b]: [usize; 2]| {
        [
            ("tiles", tiled(g, axes, [a, b])),
            ("turned tiles", tiled(g, axes, [b, a])),
        ]
    };
    let both = [("one workgroup", Workgroup::default())]
        .into_iter()
        .chain(own.map(tiled).into_iter().flatten());
    match target.machine.kind {
        MachineKind::Gpu => {
            let left = of.elements(target);
            let others = [
                ("fewer elements", (left / 4).max(1)),
                ("more elements", left.saturating_mul(4)),
            ];
            let others = others.map(|(name, left)| (name, of.for_threads(left)));
            let in_order = in_order.map(|of_units| ("units of products", of_units.workgroup));
            proposals(first, others.into_iter().chain(both).chain(in_order))
        }
        MachineKind::Cpu => {
            let spread = |small, chunk| of.for_workers(small, chunk);
            let others = [
                ("smaller chunks", spread(0, CHUNK_ELEMENTS / 4)),
                ("larger chunks", spread(0, 4 * CHUNK_ELEMENTS)),
            ];
            proposals(first, others.into_iter().chain(both))
        }
    }
}

/// A workgroup with threads that write units of a product's operand.
struct OfUnits {
    workgroup: Workgroup,
    /// Whether there are fewer workgroups than units and each computes the sums of all of its rows.
    /// Steps of 8 rows of Youtu took 14 % longer this way on an H100.
    waits: bool,
}

/// Inputs of the shapes.
struct Plain<'a> {
    g: &'a Graph,
    axes: &'a [Id],
    /// Axes that may be spread over the launch.
    spread: Vec<usize>,
    /// Maximum elements of each axis in `spread`.
    sizes: Vec<i64>,
    /// Elements written for each of these: the parts of a `Cat` differ in its axis, which then
    /// stays inside the workgroup.
    part_elements: i64,
    /// Maximum terms of an element.
    work: i64,
    /// Whether a reduction has data-dependent length.
    ends_with_data: bool,
    /// Axes with elements that are added in order.
    in_order: Vec<usize>,
    /// Axes with data-dependent length if the machine multiplies tiles: rows gathered for these.
    of_data: Vec<usize>,
    /// Number of cores or multiprocessors.
    units: i64,
}

impl<'a> Plain<'a> {
    fn new(g: &'a Graph, nests: &[Id], axes: &'a [Id], around: &ProposalContext) -> Plain<'a> {
        let (target, tiles) = (around.target, around.derived.tiles);
        let threads = target.machine.kind == MachineKind::Gpu;
        let ordered = |i: &usize| g.range_kind(axes[*i]) == Some(RangeKind::Reduce);
        let spread: Vec<usize> = (0..axes.len())
            .filter(|&i| !ordered(&i) && (threads || host_bound(g, axes[i])))
            .collect();
        let in_order: Vec<usize> = (0..axes.len()).filter(ordered).collect();
        let again: i64 = in_order
            .iter()
            .map(|&i| g.max_of(g[axes[i]].src[0]))
            .product();
        Plain {
            g,
            axes,
            sizes: spread
                .iter()
                .map(|&i| g.max_of(g[axes[i]].src[0]))
                .collect(),
            spread,
            part_elements: part_elements(g, nests, axes),
            ends_with_data: nests.iter().any(|&n| ends_with_data(g, n)),
            work: nests
                .iter()
                .map(|&n| terms(g, n))
                .max()
                .unwrap_or(1)
                .saturating_mul(again),
            in_order,
            of_data: (0..axes.len())
                .filter(|&i| tiles.is_some() && !ordered(&i) && !host_bound(g, axes[i]))
                .collect(),
            units: target.machine.units.max(1) as i64,
        }
    }
    fn total(&self) -> i64 {
        self.sizes.iter().product()
    }
    fn fixed(&self, axis: usize) -> Option<i64> {
        self.g.int_value(self.g[self.axes[axis]].src[0])
    }
    /// Elements of a workgroup: enough to occupy its threads, and to keep the launch
    /// within a few waves.
    ///
    /// If elements alone occupy a quarter of the machine's threads and reductions have
    /// data-dependent length, a sum is shared only by threads that would be idle. Of GLM's 96
    /// possible chunks, 8 rows at a context depth of 256 use 3 to 5: on an H100 eight threads per
    /// sum took 7.3 us, one 2.5; at 3,000, 10.0 and 6.1.
    fn elements(&self, target: &Target) -> i64 {
        let (units, threads) = (target.machine.units as i64, target.threads as i64);
        let most = TERMS_OF_THREAD * threads / self.work.max(1);
        let total = self.total().saturating_mul(self.part_elements);
        let share = (total / units).max(threads / 8);
        let per_resident = total / resident_workgroups(target);
        let most = if self.ends_with_data && 4 * per_resident >= threads {
            per_resident.min(threads)
        } else {
            most
        };
        let waves = target.machine.gpu_facts().plain_waves;
        (most.max(total / (waves * units)).min(share) / self.part_elements).max(1)
    }
    /// Workgroups that write activations in the order in which products read them
    /// (`decompose/f16_mma.rs`), a 16-byte unit per thread with contiguous units.
    ///
    /// In row order a thread would scatter two-byte writes: 2,048 rows of 5,120 took an H200 31 us,
    /// bound by L2 requests (docs/experiments/103).
    fn in_order_of_halves(&self, nests: &[Id], around: &ProposalContext) -> Option<OfUnits> {
        let (&[nest], &order) = (nests, around.derived.rounded.get(&around.node)?) else {
            return None;
        };
        let (&[.., row, column], g) = (&self.spread[..], self.g) else {
            return None;
        };
        let stages = g.any(nest, |_, n| n.op == Op::Local);
        let whole = self.fixed(column).is_some_and(|n| n % order.step == 0);
        let [of_unit, of_units] = f16_mma::digits(order);
        let loads = order.step / f16_mma::LANES / f16_mma::WIDE;
        let beside: i64 = of_units.iter().map(|d| d[0]).product();
        let rows = around.target.threads as i64 / (loads * beside);
        if stages || !whole || self.spread.len() != self.axes.len() || rows < 1 {
            return None;
        }
        let digit = |kind: RangeKind| {
            move |[count, apart]: [i64; 2]| AxisPart::new(column, kind, count, apart)
        };
        let others = self.spread[..self.spread.len() - 2]
            .iter()
            .map(|&i| AxisPart::rest(i, RangeKind::Global, 1));
        let tile = [
            AxisPart::rest(column, RangeKind::Global, order.step),
            AxisPart::rest(row, RangeKind::Global, rows),
        ];
        let threads = [
            AxisPart::new(column, RangeKind::Vector, loads, f16_mma::WIDE),
            AxisPart::new(row, RangeKind::Vector, rows, 1),
        ];
        let of_threads = of_units.into_iter().rev().map(digit(RangeKind::Vector));
        let of_thread = of_unit.into_iter().rev().map(digit(RangeKind::Upcast));
        let parts = others
            .chain(tile)
            .chain(threads)
            .chain(of_threads)
            .chain(of_thread);
        let few = self.total() < self.units * rows * order.step;
        let waits = few && g.any(nest, |_, n| n.op == Op::Reduce);
        Some(OfUnits {
            workgroup: Workgroup {
                parts: parts.collect(),
            },
            waits,
        })
    }
    /// Workgroups that read rows and write columns of elements, such as copies in transposed order:
    /// threads are adjacent along the columns that are written, and each reads adjacent elements of
    /// a row, a sector of the cache. Row by row, every thread would read a sector for one element:
    /// weights of Llama 3.1 8B, dequantised in transposed order on an H200, took 4.8 ms a layer.
    ///
    /// For targets with halves; copies of other steps are smaller and were not measured.
    fn turned(&self, nests: &[Id], target: &Target) -> Option<Workgroup> {
        let (&[nest], g) = (nests, self.g) else {
            return None;
        };
        if !target.has_halves()
            || g.any(nest, |_, n| matches!(n.op, Op::Reduce | Op::Local))
            || self.spread.len() != self.axes.len()
            || g[g[nest].src[0]].op == Op::Local
        {
            return None;
        }
        let Nest { offset, value, .. } = Nest::from_store(g, nest);
        let written = g.linear(offset);
        let column = (0..self.axes.len()).find(|&i| written.coefficient(self.axes[i]) == 1)?;
        let (row, bytes) =
            (g.toposort(&[value]).into_iter()).find_map(|load| self.read_across(load, column))?;
        let (of_thread, threads) = (SECTOR / bytes, target.threads as i64);
        let whole = self.fixed(row).is_some_and(|n| n % of_thread == 0);
        let wide = self.fixed(column).map(|n| divisor(n, threads))?;
        let workgroups = self.total() / of_thread.saturating_mul(wide);
        if !whole || 4 * wide < threads || workgroups < self.units {
            return None;
        }
        let others = (0..self.axes.len()).filter(|&i| i != row && i != column);
        let parts = others
            .map(|i| AxisPart::rest(i, RangeKind::Global, 1))
            .chain([
                AxisPart::rest(row, RangeKind::Global, of_thread),
                AxisPart::rest(column, RangeKind::Global, wide),
                AxisPart::new(column, RangeKind::Loop, wide, 1),
                AxisPart::new(row, RangeKind::Upcast, of_thread, 1),
            ]);
        Some(Workgroup {
            parts: parts.collect(),
        })
    }
    /// The axis along which a load reads adjacent elements, and the bytes of one, if `column` is
    /// another axis along which it does not.
    fn read_across(&self, load: Id, column: usize) -> Option<(usize, i64)> {
        let g = self.g;
        if g[load].op != Op::Load {
            return None;
        }
        let (free, at) = (g.free_ranges(load), g.linear(g[load].src[1]));
        let apart = at.coefficient(self.axes[column]);
        // A packed row's elements have addresses that are no multiples of their numbers.
        let adjacent = |&i: &usize| {
            i != column
                && free.contains(&self.axes[i])
                && matches!(at.coefficient(self.axes[i]), 0 | 1)
        };
        let row = (0..self.axes.len()).find(adjacent)?;
        (apart > 1).then(|| (row, g.scalar(load).bytes() as i64))
    }
    /// Workgroups of threads, with about `left` elements of the last axes inside.
    fn for_threads(&self, mut left: i64) -> Workgroup {
        let mut parts = Vec::new();
        for (&axis, &most) in self.spread.iter().zip(&self.sizes).rev() {
            let bound = self.fixed(axis);
            let tile = bound.map_or(left.min(most), |n| divisor(n, left));
            match bound {
                Some(n) if n <= left => left /= n,
                _ => {
                    parts.extend(AxisPart::tiled(
                        axis,
                        tile.max(1),
                        RangeKind::Global,
                        RangeKind::Loop,
                    ));
                    left = 1;
                }
            }
        }
        Workgroup { parts }
    }
    /// Workgroups of one CPU worker: leading axes over the launch until there are enough, the last
    /// axis in chunks. A kernel with fewer than `small` terms is one workgroup.
    fn for_workers(&self, small: i64, chunk: i64) -> Workgroup {
        // Rows with data-dependent count are written in sequence.
        let mut parts: Vec<AxisPart> = self
            .in_order
            .iter()
            .chain(&self.of_data)
            .map(|&i| AxisPart::rest(i, RangeKind::Loop, 1))
            .collect();
        if self.total().saturating_mul(self.work) < small {
            return Workgroup { parts };
        }
        let mut groups = 1;
        for (i, (&axis, &n)) in self.spread.iter().zip(&self.sizes).enumerate() {
            if groups >= 8 * self.units {
                break;
            }
            if i + 1 < self.spread.len() {
                parts.push(AxisPart::rest(axis, RangeKind::Global, 1));
                groups *= n;
            } else if let Some(b) = self.fixed(axis) {
                // Chunks that vectors divide, if possible; long chunks if each covers a part
                // of every gathered row.
                let long = b / (2 * self.units) * chunk / CHUNK_ELEMENTS;
                let chunk = divisor(b, if self.of_data.is_empty() { chunk } else { long }).max(1);
                if chunk >= 4 || self.work > CHUNK_ELEMENTS {
                    parts.extend(chunks(axis, chunk));
                }
            } else {
                parts.extend(chunks(axis, CHUNK_ELEMENTS_OF_DATA));
            }
        }
        Workgroup { parts }
    }
}

/// An axis as chunks over the launch.
fn chunks(axis: usize, chunk: i64) -> [AxisPart; 2] {
    [
        AxisPart::rest(axis, RangeKind::Global, chunk),
        AxisPart::new(axis, RangeKind::Loop, chunk, 1),
    ]
}

/// Elements of a kernel's nests, stages aside, per element of its axes; at least 1.
fn part_elements(g: &Graph, nests: &[Id], axes: &[Id]) -> i64 {
    let own = |&n: &Id| -> i64 {
        let inner = g[n].src[3..].iter().filter(|r| !axes.contains(r));
        inner
            .map(|&r| g.max_of(g[r].src[0]))
            .fold(1, i64::saturating_mul)
    };
    let written = nests.iter().filter(|&&n| g[g[n].src[0]].op != Op::Local);
    written.map(own).max().unwrap_or(1).max(1)
}

/// Whether a nest has a reduction with data-dependent length.
fn ends_with_data(g: &Graph, nest: Id) -> bool {
    g.any(nest, |_, n| {
        n.op == Op::Reduce
            && n.src[1..]
                .iter()
                .any(|&r| g.int_value(g[r].src[0]).is_none())
    })
}

/// Terms of the longest reduction per element. Elements that share a reduction divide its terms.
fn terms(g: &Graph, nest: Id) -> i64 {
    let all = |ranges: &[Id]| -> i64 {
        let most = ranges
            .iter()
            .map(|&r| g.bounds(g[r].src[0]).map_or(1, |b| b.1));
        most.fold(1, i64::saturating_mul)
    };
    let elements = all(&g[nest].src[3..]);
    let sums = g
        .toposort(&[nest])
        .into_iter()
        .filter(|&n| g[n].op == Op::Reduce);
    let terms = sums.map(|n| all(g.free_ranges(g[n].src[0])) / elements.max(1));
    terms.max().unwrap_or(1).max(1)
}
