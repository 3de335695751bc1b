//! Decides how fused nodes are read: computed in place, or from a stage, a workgroup-local buffer
//! (GPU shared memory, or a CPU worker's scratch). A default rule decides this and the row layout
//! of stages; a plan may override it.

use super::draft::{Destination, Draft, DraftContext, Illegal, Placeholders, Span};
use super::draft::{closed_ranges, enclosing, nests_for, ranges_of};
use super::rangeify::Expander;
use crate::ir::nest::{Indices, flatten};
use crate::plan::BANKS;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::shape::Dims;
use gristmill_uop::{Arg, Graph, Id, Node, Op, RangeKind, Scalar};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::smallvec;

/// Offset in bytes between consecutive rows of a staged operand, modulo the 128 bytes of the banks:
/// every other row starts in the other half.
const BANKS_OF_ONE: i64 = 64;
/// Same offset with both operands staged, where lanes load a word of each row: eight rows start
/// four banks apart.
const BANKS_OF_BOTH: i64 = 16;

/// Whether computing `node` from materialised nodes involves a reduction.
fn reduces(g: &Graph, node: Id, around: &DraftContext) -> bool {
    let mut stack = vec![node];
    let mut seen = FxHashSet::default();
    while let Some(n) = stack.pop() {
        if g[n].op == Op::Reduce {
            return true;
        }
        let below = g[n]
            .src
            .iter()
            .copied()
            .filter(|s| !around.buffers.contains_key(s));
        stack.extend(below.filter(|&s| seen.insert(s)));
    }
    false
}

/// Decides for every fused node, readers before their sources, whether it is computed
/// in place or staged.
pub fn fuse(
    g: &mut Graph,
    x: &mut Expander,
    out: &mut Draft,
    around: &DraftContext,
) -> Result<(), Illegal> {
    let mut placeholders = Placeholders::default();
    loop {
        let found = placeholders.found(g, &out.nests);
        let Some((&node, reads)) = found.iter().max_by_key(|(n, _)| around.order[n]) else {
            return Ok(());
        };
        let distinct: FxHashSet<Id> = reads.iter().map(|r| r.0).collect();
        let mut possible =
            distinct.len() == 1 && g[node].op != Op::Cat && g[reads[0].0].dtype == g[node].dtype;
        possible &= !around
            .hints
            .get(&out.root)
            .is_some_and(|h| h.staged.contains(&node));
        let mut in_place = possible;
        // A sum needed by several nests is not recomputed in each of them.
        let several = reads.iter().any(|r| r.1 != reads[0].1);
        in_place = in_place && !(several && reduces(g, node, around));
        in_place = in_place && computes_once(g, &out.nests, reads);
        in_place = match around
            .stages
            .and_then(|s| s.staged.get(out.stage_plan.staged.len()))
        {
            Some(&staged) => possible && !staged,
            None => in_place,
        };
        // A stage is filled before the shared loop, so it cannot hold a value that the loop carries
        // and that is read after it.
        let in_loop = |r: &(Id, usize)| {
            x.shared
                .is_some_and(|shared| enclosing(g, out.nests[r.1], r.0).contains(&shared))
        };
        in_place |= possible && x.reads_carried(g, node) && !reads.iter().any(in_loop);
        out.stage_plan.staged.push(!in_place);
        if in_place {
            let read = reads[0].0;
            let index: Indices = g[read].src[1..].into();
            let value = x.compute(g, node, &index);
            placeholders.replace(g, &mut out.nests, FxHashMap::from_iter([(read, value)]));
            continue;
        }
        let reads: Vec<Id> = distinct.into_iter().collect();
        let first = found[&node].iter().map(|r| r.1).min().unwrap_or(0);
        let stage = stage(
            g,
            x,
            out,
            around,
            Staged {
                node,
                reads: &reads,
            },
        )?;
        placeholders.replace(g, &mut out.nests, stage.loads);
        // Filled before its first reader.
        out.nests.splice(first..first, stage.nests);
    }
}

/// Returns whether a node that these reads compute in place is computed once per index. This holds
/// if the enclosing loops are all its own, or its own come first.
fn computes_once(g: &Graph, nests: &[Id], reads: &[(Id, usize)]) -> bool {
    reads.iter().all(|&(read, nest)| {
        let mine = ranges_of(g, read);
        let closed = closed_ranges(g, nests[nest]);
        let around_it = enclosing(g, nests[nest], read);
        let prefix = closed.iter().take_while(|r| mine.contains(r)).count();
        let of_closed = closed.iter().filter(|r| mine.contains(r)).count();
        let of_reduce = around_it.iter().filter(|r| mine.contains(r)).count();
        match of_reduce {
            0 => prefix == of_closed,
            n => prefix == closed.len() && n == around_it.len(),
        }
    })
}

/// A fused node that gets a stage.
struct Staged<'a> {
    node: Id,
    /// Distinct placeholders that read the node.
    reads: &'a [Id],
}

/// The stage of a node.
struct Stage {
    /// Nests that fill it.
    nests: Vec<Id>,
    /// Replacement for each read of the node.
    loads: FxHashMap<Id, Id>,
}

/// Builds the stage of a node: the region that the workgroup reads.
fn stage(
    g: &mut Graph,
    x: &mut Expander,
    out: &mut Draft,
    around: &DraftContext,
    of: Staged,
) -> Result<Stage, Illegal> {
    let Staged { node, reads } = of;
    let region = region(g, x, node, reads);
    let streamed = x.looped.is_some() || x.fused.is_some_and(|f| f.staged);
    let resident = around
        .hints
        .values()
        .filter_map(|h| h.resident)
        .any(|r| around.fused.contains(&r.node));
    let mut extents: Dims = region.iter().map(|r| r.extent).collect();
    let dtype = g[node].dtype;
    if let Some(row) = extents.last_mut()
        && around.target.machine.kind == MachineKind::Gpu
        && let Some(bytes) = operand_row(g, *row, dtype.scalar)
    {
        let both = if resident || streamed {
            BANKS_OF_BOTH
        } else {
            BANKS_OF_ONE
        };
        let begin = around.stages.and_then(|s| s.banks).unwrap_or(both);
        out.stage_plan.banks = Some(begin);
        *row = g.int((bytes + (BANKS + begin - bytes % BANKS) % BANKS) / 2);
    }
    let size: i64 = extents.iter().map(|&e| g.max_of(e)).product();
    out.stage_bytes += held_bytes(g, x, node, &region, size);
    let most = if resident || streamed {
        around.target.machine.shared_per_workgroup
    } else {
        around.target.machine.stage_bytes()
    };
    if out.stage_bytes > most {
        return Err(Illegal::StageTooLarge(out.stage_bytes));
    }
    let elements = g.int(size);
    let local = g.intern(Node {
        op: Op::Local,
        dtype,
        src: smallvec![elements],
        arg: Arg::Int(out.stages.len() as i64),
    });
    out.stages.push(node);
    let mut address = |g: &mut Graph, index: &[Id]| flatten(g, &extents, index);
    let nests = nests_for(
        g,
        x,
        node,
        Destination {
            buffer: local,
            region: &region,
            address: &mut address,
        },
    );
    let threads = around.target.machine.kind == MachineKind::Gpu;
    let layout = StageLayout {
        local,
        region: &region,
        extents: &extents,
    };
    let loads = loads(g, reads, &layout, threads);
    Ok(Stage { nests, loads })
}

/// Returns the bytes that a stage of `size` elements holds at once. In a loop shared by nests, it
/// holds one iteration (`lower/loops/loop_fusion.rs`), and two slots of a carried value
/// (`lower/loops/loop_carried.rs`).
fn held_bytes(g: &Graph, x: &Expander, node: Id, region: &[Span], size: i64) -> usize {
    let iterations: i64 = region
        .iter()
        .filter(|s| s.shared.is_some())
        .map(|s| g.max_of(s.extent))
        .product();
    let slots = if x.is_carried(node) { 2 } else { 1 };
    slots * (size / iterations.max(1)) as usize * g[node].dtype.scalar.bytes()
}

/// Memory layout of a stage.
struct StageLayout<'a> {
    local: Id,
    region: &'a [Span],
    /// Extents in memory, with padded rows.
    extents: &'a Dims,
}

/// Returns a load from the stage for each read; `threads` says whether a GPU's threads read it.
fn loads(g: &mut Graph, reads: &[Id], stage: &StageLayout, threads: bool) -> FxHashMap<Id, Id> {
    let mut loads = FxHashMap::default();
    for &read in reads {
        let index: Indices = g[read].src[1..].into();
        // On a CPU the clamp is kept, so that vectorisation recognises
        // contiguous accesses through it.
        let place = |(&i, r): (&Id, &Span)| {
            if threads {
                index_in_stage(g, i, r)
            } else {
                g.sub(i, r.base)
            }
        };
        let local_index: Indices = index.iter().zip(stage.region).map(place).collect();
        let offset = flatten(g, stage.extents, &local_index);
        let as_read = g[read].dtype;
        loads.insert(read, g.load(stage.local, offset, as_read));
    }
    loads
}

/// Converts an index to the stage's coordinates. Past the last element the stage repeats it, so
/// readers need no clamp.
fn index_in_stage(g: &mut Graph, index: Id, span: &Span) -> Id {
    let n = &g[index];
    if n.op == Op::Min && span.last == Some(n.src[1]) {
        let held = n.src[0];
        let (fixed, _) = split_global(g, held);
        return g.sub(held, fixed.base);
    }
    g.sub(index, span.base)
}

/// The region of `node` that a workgroup reads: per axis, a base that depends on the workgroup and
/// the number of elements from there.
fn region(g: &mut Graph, x: &mut Expander, node: Id, reads: &[Id]) -> Vec<Span> {
    let dims: Dims = g.shape(node);
    let zero = g.int(0);
    let mut region: Vec<Span> = Vec::new();
    for (axis, &dim) in dims.iter().enumerate() {
        let last = axis + 1 == dims.len();
        if let Some(r) = shared_loop(g, reads, axis) {
            region.push(Span {
                base: zero,
                extent: g[r].src[0],
                last: None,
                shared: Some(r),
            });
            continue;
        }
        let mut agreed: Option<(Fixed, i64)> = None;
        let mut whole = false;
        for &read in reads {
            let (fixed, bounds) = split_global(g, g[read].src[1 + axis]);
            // A word load reads the four bytes from its index on.
            let more = if last {
                (g[read].dtype.scalar.bytes() / g[node].dtype.scalar.bytes()) as i64
            } else {
                1
            };
            match (bounds, agreed) {
                (Some((lo, hi)), None) if lo >= 0 => agreed = Some((fixed, hi + more)),
                (Some((lo, hi)), Some((f, n))) if lo >= 0 && f == fixed => {
                    agreed = Some((f, n.max(hi + more)))
                }
                _ => whole = true,
            }
        }
        let full = x.dim(g, dim);
        let max = g.max_of(full);
        region.push(match agreed {
            Some((f, n)) if !whole && n < max => Span {
                base: f.base,
                extent: g.int(n),
                last: f.last,
                shared: None,
            },
            _ => Span {
                base: zero,
                extent: full,
                last: None,
                shared: None,
            },
        });
    }
    // A `Cat` is staged whole along its axis.
    if let (Op::Cat, Arg::Axes(a)) = (g[node].op, g[node].arg.clone()) {
        let full = x.dim(g, dims[a[0] as usize]);
        region[a[0] as usize] = Span {
            base: zero,
            extent: full,
            last: None,
            shared: None,
        };
    }
    region
}

/// The shared loop, if all reads use it as their index on that axis.
fn shared_loop(g: &Graph, reads: &[Id], axis: usize) -> Option<Id> {
    let first = g[*reads.first()?].src[1 + axis];
    let all = reads.iter().all(|&read| g[read].src[1 + axis] == first);
    (all && g.range_kind(first) == Some(RangeKind::Fused)).then_some(first)
}

/// Bytes of a stage's row, if it is a half-precision MMA operand: the lanes of a warp then read 64
/// bytes of eight rows at once.
fn operand_row(g: &Graph, row: Id, scalar: Scalar) -> Option<i64> {
    g.int_value(row)
        .map(|n| 2 * n)
        .filter(|bytes| scalar == Scalar::F16 && bytes % 32 == 0)
}

/// The part of an index that depends only on the workgroup.
#[derive(Clone, Copy, PartialEq)]
struct Fixed {
    /// Lowest value of the index.
    base: Id,
    /// Clamp limit of the index.
    last: Option<Id>,
}

/// Splits an index into its workgroup-dependent part and the bounds of the rest.
fn split_global(g: &mut Graph, index: Id) -> (Fixed, Option<(i64, i64)>) {
    let global = |g: &Graph, id: Id| {
        g.free_ranges(id)
            .iter()
            .all(|&r| g.range_kind(r) == Some(RangeKind::Global))
    };
    // Clamped index: min(b + r, last) lies between min(b, last) and that plus r.
    let n = &g[index];
    if n.op == Op::Min && global(g, n.src[1]) && !global(g, n.src[0]) {
        let (x, last) = (n.src[0], n.src[1]);
        let (fixed, bounds) = split_global(g, x);
        if fixed.last.is_none() {
            let base = g.min(fixed.base, last);
            return (
                Fixed {
                    base,
                    last: Some(last),
                },
                bounds.filter(|b| b.0 >= 0).map(|b| (0, b.1)),
            );
        }
    }
    let sum = g.linear(index);
    let (mut base, mut rest) = (gristmill_uop::linear::Linear::default(), sum.clone());
    rest.terms.clear();
    for &(t, c) in &sum.terms {
        if global(g, t) {
            base.terms.push((t, c))
        } else {
            rest.terms.push((t, c))
        }
    }
    let dtype = g[index].dtype;
    (
        Fixed {
            base: g.from_linear(&base, dtype),
            last: None,
        },
        g.linear_bounds(&rest),
    )
}
