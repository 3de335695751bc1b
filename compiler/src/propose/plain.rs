//! Kernels that are no contraction of weights: elementwise work and reductions.

use super::around::{ProposalContext, Uncut};
use super::factors::tiled;
use crate::cost::occupancy::room;
use crate::decompose::f16_mma;
use crate::ir::nest::{divisor, host_bound};
use crate::plan::{AxisPart, Proposal, Workgroup, proposals};
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op, RangeKind};

/// Terms that a thread computes of what is no contraction of weights, at least. Not measured: fewer are more threads and workgroups, whose launch and addresses cost more than a term.
const TERMS_OF_THREAD: i64 = 4;
/// Workgroups for each multiprocessor, at most: beyond, another costs more than it spreads. GLM's prompts on an H200 with tens of thousands and with so many: encodings 60 us a layer and 20, combining
/// attention's parts 87 and 10 (experiments, 35; other limits were not measured).
const MOST_WAVES: i64 = 16;
/// Terms of a kernel below which one of a CPU's workers computes all of it. Not measured: what other cores would take over is less than what it costs to tell them.
const ELEMENTS_OF_ONE_WORKER: i64 = 2048;
/// Elements of a CPU's workgroup along the last axis, at most, and where only data says how many there are. Not measured: shorter ones are more to hand out, longer ones leave less to share.
const CHUNK_ELEMENTS: i64 = 64;
const CHUNK_ELEMENTS_OF_DATA: i64 = 16;

/// Enough workgroups for the machine, the last axes inside; `own` are the axes of a contraction's factors. Other shapes only if `all` are wanted.
pub fn plain(
    g: &Graph,
    of: Uncut,
    own: Option<[usize; 2]>,
    around: &ProposalContext,
    all: bool,
) -> Vec<Proposal<Workgroup>> {
    let Uncut { nests, axes } = of;
    let (target, tiles) = (around.target, around.derived.tiles);
    // Axes that may go over the launch.
    let threads = target.machine.kind == MachineKind::Gpu;
    let ordered = |i: &usize| g.range_kind(axes[*i]) == Some(RangeKind::Reduce);
    let spread: Vec<usize> = (0..axes.len()).filter(|&i| !ordered(&i) && (threads || host_bound(g, axes[i]))).collect();
    let in_order: Vec<usize> = (0..axes.len()).filter(ordered).collect();
    let again: i64 = in_order.iter().map(|&i| g.max_of(g[axes[i]].src[0])).product();
    let of = Plain {
        g,
        axes,
        spread: &spread,
        sizes: spread.iter().map(|&i| g.max_of(g[axes[i]].src[0])).collect(),
        part_elements: part_elements(g, nests, axes),
        ends_with_data: nests.iter().any(|&n| ends_with_data(g, n)),
        work: nests.iter().map(|&n| terms(g, n)).max().unwrap_or(1).saturating_mul(again),
        in_order,
        of_data: (0..axes.len()).filter(|&i| tiles.is_some() && !ordered(&i) && !host_bound(g, axes[i])).collect(),
        units: target.machine.units.max(1) as i64,
    };
    let in_order = of.in_order_of_halves(nests, around);
    let first = match (target.machine.kind, &in_order) {
        (MachineKind::Cpu, _) => of.for_workers(ELEMENTS_OF_ONE_WORKER, CHUNK_ELEMENTS),
        (MachineKind::Gpu, Some(of_units)) if !of_units.waits => of_units.workgroup.clone(),
        (MachineKind::Gpu, _) => of.for_threads(of.elements(target)),
    };
    if !all {
        return proposals(first, []);
    }
    let tiled = |[a, b]: [usize; 2]| [("tiles", tiled(g, axes, [a, b])), ("turned tiles", tiled(g, axes, [b, a]))];
    let both = [("one workgroup", Workgroup::default())].into_iter().chain(own.map(tiled).into_iter().flatten());
    match target.machine.kind {
        MachineKind::Gpu => {
            let left = of.elements(target);
            let others = [("fewer elements", (left / 4).max(1)), ("more elements", left.saturating_mul(4))];
            let others = others.map(|(name, left)| (name, of.for_threads(left)));
            let in_order = in_order.map(|of_units| ("units of products", of_units.workgroup));
            proposals(first, others.into_iter().chain(both).chain(in_order))
        }
        MachineKind::Cpu => {
            let spread = |small, chunk| of.for_workers(small, chunk);
            let others =
                [("smaller chunks", spread(0, CHUNK_ELEMENTS / 4)), ("larger chunks", spread(0, 4 * CHUNK_ELEMENTS))];
            proposals(first, others.into_iter().chain(both))
        }
    }
}

/// Workgroups whose threads write units of a product's operand.
struct OfUnits {
    workgroup: Workgroup,
    /// Are there fewer than the machine has units, of which each computes the sums of all of its rows? Steps of 8 rows of Youtu took an H100 14 % longer so.
    waits: bool,
}

/// What the shapes follow from.
struct Plain<'a> {
    g: &'a Graph,
    axes: &'a [Id],
    spread: &'a [usize],
    /// Elements of the axes in `spread`, at most.
    sizes: Vec<i64>,
    /// Elements that are written for each of these: parts of a join have other lengths of its axis, which is none of the workgroup's then.
    part_elements: i64,
    /// Terms of an element, at most.
    work: i64,
    /// Does data say how many?
    ends_with_data: bool,
    /// Axes whose elements are added one after the other.
    in_order: Vec<usize>,
    /// Axes whose length is data, where the machine multiplies tiles: rows that are gathered for these.
    of_data: Vec<usize>,
    /// Cores, or multiprocessors.
    units: i64,
}

impl Plain<'_> {
    fn total(&self) -> i64 {
        self.sizes.iter().product()
    }
    fn fixed(&self, axis: usize) -> Option<i64> {
        self.g.int_value(self.g[self.axes[axis]].src[0])
    }
    /// Elements of a workgroup of threads: as many as keep every thread busy, and as leave no more workgroups than the machine takes in a few rounds. Where elements alone are work for a quarter of
    /// the machine's threads, and data says where their sums end, no more threads share a sum than the machine has beside: of the 3 or 5 chunks that 8 rows of GLM have behind 256 positions,
    /// of 96 that they may have, eight threads took an H100 7.3 us with the exponentials, which had a launch of their own, and one 2.5; 10.0 and 6.1 behind 3,000.
    fn elements(&self, target: &Target) -> i64 {
        let (units, threads) = (target.machine.units as i64, target.threads as i64);
        let most = TERMS_OF_THREAD * threads / self.work.max(1);
        let total = self.total().saturating_mul(self.part_elements);
        let share = (total / units).max(threads / 8);
        let of_room = total / room(target);
        let most = if self.ends_with_data && 4 * of_room >= threads { of_room.min(threads) } else { most };
        (most.max(total / (MOST_WAVES * units)).min(share) / self.part_elements).max(1)
    }
    /// Workgroups of threads that write activations in the order in which products read them (`decompose/f16_mma.rs`): a unit of 16 bytes each, neighbours beside one another. Rows as they
    /// are would write two bytes here and there: 2,048 rows of 5,120 took an H200 31 us, bound by requests to its second-level cache.
    fn in_order_of_halves(&self, nests: &[Id], around: &ProposalContext) -> Option<OfUnits> {
        let (&[nest], &order) = (nests, around.derived.rounded.get(&around.node)?) else { return None };
        let (&[.., row, column], g) = (self.spread, self.g) else { return None };
        let stages = g.any(nest, |_, n| n.op == Op::Local);
        let whole = self.fixed(column).is_some_and(|n| n % order.step == 0);
        let [of_unit, of_units] = f16_mma::digits(order);
        let loads = order.step / f16_mma::LANES / f16_mma::WIDE;
        let beside: i64 = of_units.iter().map(|d| d[0]).product();
        let rows = around.target.threads as i64 / (loads * beside);
        if stages || !whole || self.spread.len() != self.axes.len() || rows < 1 {
            return None;
        }
        let digit = |kind: RangeKind| move |[count, apart]: [i64; 2]| AxisPart::new(column, kind, count, apart);
        let others = self.spread[..self.spread.len() - 2].iter().map(|&i| AxisPart::rest(i, RangeKind::Global, 1));
        let tile =
            [AxisPart::rest(column, RangeKind::Global, order.step), AxisPart::rest(row, RangeKind::Global, rows)];
        let threads = [
            AxisPart::new(column, RangeKind::Vector, loads, f16_mma::WIDE),
            AxisPart::new(row, RangeKind::Vector, rows, 1),
        ];
        let of_threads = of_units.into_iter().rev().map(digit(RangeKind::Vector));
        let of_thread = of_unit.into_iter().rev().map(digit(RangeKind::Upcast));
        let parts = others.chain(tile).chain(threads).chain(of_threads).chain(of_thread);
        let few = self.total() < self.units * rows * order.step;
        let waits = few && g.any(nest, |_, n| n.op == Op::Reduce);
        Some(OfUnits { workgroup: Workgroup { parts: parts.collect() }, waits })
    }
    /// Workgroups of threads: the last axes inside, about so many elements.
    fn for_threads(&self, mut left: i64) -> Workgroup {
        let mut parts = Vec::new();
        for (&axis, &most) in self.spread.iter().zip(&self.sizes).rev() {
            let bound = self.fixed(axis);
            let tile = bound.map_or(left.min(most), |n| divisor(n, left));
            match bound {
                Some(n) if n <= left => left /= n,
                _ => {
                    parts.extend(AxisPart::tiled(axis, tile.max(1), RangeKind::Global, RangeKind::Loop));
                    left = 1;
                }
            }
        }
        Workgroup { parts }
    }
    /// Workgroups of one worker: the first axes over the launch until there are enough, the last in chunks; all in one below so many elements.
    fn for_workers(&self, small: i64, chunk: i64) -> Workgroup {
        // Rows that data asks for are written one after the other.
        let mut parts: Vec<AxisPart> =
            self.in_order.iter().chain(&self.of_data).map(|&i| AxisPart::rest(i, RangeKind::Loop, 1)).collect();
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
                // Chunks that vectors divide, if there are any; long ones where each has a part of every row that the data asks for.
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
    [AxisPart::rest(axis, RangeKind::Global, chunk), AxisPart::new(axis, RangeKind::Loop, chunk, 1)]
}

/// Elements that the nests of a kernel, stages aside, have beside its axes: at least one.
fn part_elements(g: &Graph, nests: &[Id], axes: &[Id]) -> i64 {
    let own = |&n: &Id| -> i64 {
        let inner = g[n].src[3..].iter().filter(|r| !axes.contains(r));
        inner.map(|&r| g.max_of(g[r].src[0])).fold(1, i64::saturating_mul)
    };
    let written = nests.iter().filter(|&&n| g[g[n].src[0]].op != Op::Local);
    written.map(own).max().unwrap_or(1).max(1)
}

/// Has a nest a reduction whose length is data?
fn ends_with_data(g: &Graph, nest: Id) -> bool {
    g.any(nest, |_, n| n.op == Op::Reduce && n.src[1..].iter().any(|&r| g.int_value(g[r].src[0]).is_none()))
}

/// Terms of a nest's longest reduction for each element: elements that have it in common share them.
fn terms(g: &Graph, nest: Id) -> i64 {
    let all = |ranges: &[Id]| -> i64 {
        let most = ranges.iter().map(|&r| g.bounds(g[r].src[0]).map_or(1, |b| b.1));
        most.fold(1, i64::saturating_mul)
    };
    let elements = all(&g[nest].src[3..]);
    let sums = g.toposort(&[nest]).into_iter().filter(|&n| g[n].op == Op::Reduce);
    let terms = sums.map(|n| all(g.free_ranges(g[n].src[0])) / elements.max(1));
    terms.max().unwrap_or(1).max(1)
}
