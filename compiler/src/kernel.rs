//! Builds one kernel: its nests, and the nodes fused into it, inline or through a stage.
//!
//! A nest is an `Op::Store`: loops over its closed ranges around one expression. A kernel is a list
//! of nests that a workgroup runs in order: earlier nests fill the workgroup's stages, the last
//! ones write the kernel's outputs.

mod custom;
mod draft;
pub mod rangeify;
mod stages;
pub mod workgroup;

use crate::custom::called;
use crate::ir::hints::{Hint, StagedTile};
use crate::ir::nest::{Indices, Nest};
use crate::propose;
use draft::{
    Destination, Placeholders, Span, closed_ranges, nests_for, ranges_of, reductions_around,
};
pub use draft::{Draft, DraftContext, Illegal};
use gristmill_uop::machine::MachineKind;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind, ReduceOp, Scalar};
use rangeify::Expander;
use rustc_hash::{FxHashMap, FxHashSet};
use stages::fuse;

/// The node that the kernel of `root` computes: the value that a version assigns or
/// adds, or `root` itself.
pub fn computed(g: &Graph, root: Id) -> Id {
    if g[root].op.is_version() {
        g[root].src[1]
    } else {
        root
    }
}

/// The workgroup hint for the kernel of `root`. A hint for a computed value does not apply to the
/// kernel that adds it (`ScatterAdd`).
pub fn hint<'a>(g: &Graph, root: Id, hints: &'a FxHashMap<Id, Hint>) -> Option<&'a Hint> {
    hints
        .get(&computed(g, root))
        .filter(|_| g[root].op != Op::ScatterAdd)
}

/// Builds the kernel that computes `root` into its buffer.
///
/// # Errors
/// An [`Illegal`] if the stages are too large, the kernel reads the state that it writes, or a
/// fused node does not fit a custom kernel.
pub fn draft(g: &mut Graph, root: Id, around: &DraftContext) -> Result<Draft, Illegal> {
    let mut x = Expander::new(around.buffers, around.fused, around.derived);
    x.fused = around.hints.get(&root).and_then(|h| h.fused);
    x.looped = around
        .hints
        .get(&root)
        .is_some_and(|h| h.looped)
        .then_some(root);
    let mut out = Draft::new(root);
    let buffer = around.buffers[&root];
    out.call = custom::call_of(g, root, around.fused)?;
    out.nests = written(g, &mut x, &out, around)?;
    if out.call.is_some() {
        // A custom kernel consists of its text; nothing is cut.
        return unless_it_reads_its_state(g, out, buffer);
    }
    inline_same(g, &mut x, &mut out, around.target.machine.kind);
    let &DraftContext {
        derived,
        target,
        max_workgroups,
        ..
    } = around;
    let node = computed(g, root);
    let of = propose::ProposalContext {
        node,
        hint: hint(g, root, around.hints),
        derived,
        target,
        max_workgroups,
    };
    let smaller = || propose::smaller(g, &out.nests, &of).filter(|_| around.smaller);
    out.plan = around
        .plan
        .cloned()
        .or_else(smaller)
        .unwrap_or_else(|| propose::first(g, &out.nests, &of));
    let split = workgroup::split(g, &mut x, &out.nests, &out.plan, &of);
    out.uncut = std::mem::replace(&mut out.nests, split.nests);
    out.when.skip = split.skip;
    out.fresh = split.fresh;
    fuse(g, &mut x, &mut out, around)?;
    let mut out = unless_it_reads_its_state(g, out, buffer)?;
    in_order(g, &mut x, &mut out, around);
    Ok(out)
}

/// Returns the kernel, or an error if it reads the state that it writes, in `buffer`.
fn unless_it_reads_its_state(g: &Graph, of: Draft, buffer: Id) -> Result<Draft, Illegal> {
    let reads = |&nest: &Id| g.any(nest, |_, n| n.op == Op::Load && n.src[0] == buffer);
    if g[of.root].op.is_version() && of.nests.iter().any(reads) {
        Err(Illegal::ReadsItsState)
    } else {
        Ok(of)
    }
}

/// The nests that write the kernel's node to its buffer, one for each part, before any cut; only a
/// custom kernel has its fused nodes already.
fn written(
    g: &mut Graph,
    x: &mut Expander,
    of: &Draft,
    around: &DraftContext,
) -> Result<Vec<Id>, Illegal> {
    let root = of.root;
    let (node, buffer) = (computed(g, root), around.buffers[&root]);
    // The rows of a version begin at `start` in the buffer.
    let (dims, start) = match g[root].op {
        op if op.is_version() => (g.shape(g[root].src[0]), Some(g[root].src[2])),
        _ => (g.shape(root), None),
    };
    let zero = g.int(0);
    let extents = g.shape(node);
    let region: Vec<Span> = extents
        .iter()
        .map(|&d| Span {
            base: zero,
            extent: x.dim(g, d),
            last: None,
            shared: None,
        })
        .collect();
    let mut address = |g: &mut Graph, index: &[Id]| {
        let mut index: Indices = index.into();
        if let Some(start) = start {
            index[0] = first_of(g, start, index[0], around);
        }
        around.derived.place(g, node, &dims, &index)
    };
    let is_candidate = around.fused.contains(&node) || around.buffers.contains_key(&node);
    let to = Destination {
        buffer,
        region: &region,
        address: &mut address,
    };
    if let Some((call, kernel)) = of.call.and_then(|call| Some((call, called(g, call)?))) {
        let &DraftContext {
            buffers, derived, ..
        } = around;
        return Ok(vec![custom::nest(
            g,
            kernel,
            &custom::CallContext {
                call,
                node,
                buffers,
                derived,
            },
            to,
        )?]);
    }
    let is_copy = node != root && is_candidate;
    let mut nests = if is_copy {
        vec![copy(g, x, node, to)]
    } else {
        nests_for(g, x, node, to)
    };
    if g[root].op == Op::ScatterAdd {
        // A single row has no axis and needs no order.
        let in_order = g[root].arg == Arg::Int(1) && g.int_value(extents[0]) != Some(1);
        nests
            .iter_mut()
            .for_each(|nest| *nest = adding(g, x, *nest, in_order));
    }
    Ok(nests)
}

/// The nest that copies an assigned value which is materialised or fused, read through `value`.
fn copy(g: &mut Graph, x: &mut Expander, node: Id, to: Destination) -> Id {
    let mut index = Indices::new();
    let mut closed = Vec::new();
    for &Span { extent, .. } in to.region {
        let r = x.ranges.range(g, extent, RangeKind::Loop);
        if g[r].op == Op::Range {
            closed.push(r);
        }
        index.push(r);
    }
    let value = x.value(g, node, &index);
    let offset = (to.address)(g, &index);
    g.store(to.buffer, offset, value, &closed)
}

/// Turns a nest that scatters rows into one that adds them.
///
/// With `in_order` its first axis becomes a `Reduce` loop, which no plan cuts. If neither offset
/// nor value depends on the row axis, the value is multiplied by the number of rows instead,
/// because no loop would then run once per row.
fn adding(g: &mut Graph, x: &mut Expander, nest: Id, in_order: bool) -> Id {
    let mut nest = Nest {
        adds: true,
        ..Nest::from_store(g, nest)
    };
    let Some(&rows) = nest.closed.first() else {
        return nest.store(g);
    };
    let depends = [nest.offset, nest.value]
        .iter()
        .any(|&id| g.free_ranges(id).contains(&rows));
    if !depends {
        let times = g.cast(g[rows].src[0], g.scalar(nest.value));
        nest.value = g.mul(nest.value, times);
        nest.closed.remove(0);
    } else if in_order {
        let ordered = x.ranges.range(g, g[rows].src[0], RangeKind::Reduce);
        let mut map = FxHashMap::from_iter([(rows, ordered)]);
        nest.offset = g.replace(nest.offset, &mut map.clone());
        nest.value = g.replace(nest.value, &mut map);
        nest.closed[0] = ordered;
    }
    nest.store(g)
}

/// Sorts the nests into the order in which a workgroup runs them.
fn in_order(g: &mut Graph, x: &mut Expander, out: &mut Draft, around: &DraftContext) {
    addresses_first(g, &mut out.nests);
    if around.target.machine.kind == MachineKind::Gpu {
        in_rounds(g, &mut out.nests);
    }
    if let Some(resident) = around.hints.get(&out.root).and_then(|h| h.resident) {
        copied_first(g, x, out, &resident);
    }
}

/// The destination row in a state of assigned row `row`: `start` plus `row`, or element `row`
/// of the tensor `start`.
fn first_of(g: &mut Graph, start: Id, row: Id, around: &DraftContext) -> Id {
    if g.dims(start).is_empty() {
        return g.add(start, row);
    }
    // Creates no ranges: sums in row numbers are materialised or read through a placeholder.
    let mut x = Expander::new(around.buffers, around.fused, around.derived);
    let number = x.value(g, start, &[row]);
    g.cast(number, Scalar::I64)
}

/// Moves the nest that stages a KV cache tile to the front. If it may run early, inserts a nest
/// after it that reloads the rows written by this step.
fn copied_first(g: &mut Graph, x: &mut Expander, out: &mut Draft, resident: &StagedTile) {
    let number = out
        .stages
        .iter()
        .position(|&s| s == resident.node)
        .map(|i| Arg::Int(i as i64));
    let fills = |&nest: &Id| {
        g[g[nest].src[0]].op == Op::Local && Some(&g[g[nest].src[0]].arg) == number.as_ref()
    };
    let Some(at) = out.nests.iter().position(fills) else {
        return;
    };
    out.nests[..=at].rotate_right(1);
    out.when.exclusive = true;
    if let Some(begin) = out.fresh
        && let Some(nest) = fresh_rows(g, x, out.nests[0], resident, begin)
    {
        out.nests.insert(1, nest);
        let last = g.int(resident.size - 1);
        out.when.prologue = Some(g.lt(last, begin));
    }
}

/// Copies the nest `copy` for the rows that this step writes: one per token, from the first token's
/// row, clamped to the chunk.
fn fresh_rows(g: &mut Graph, x: &mut Expander, copy: Id, of: &StagedTile, begin: Id) -> Option<Id> {
    let Nest {
        buffer,
        offset,
        value,
        closed,
        ..
    } = Nest::from_store(g, copy);
    let (&row, others) = closed.split_first()?;
    let tokens = x.dim(g, of.tokens);
    let r = x.ranges.range(g, tokens, RangeKind::Loop);
    let (zero, last) = (g.int(0), g.int(of.size - 1));
    let from = g.max(begin, zero);
    let at = g.add(from, r);
    let at = g.min(at, last);
    let mut map = FxHashMap::from_iter([(row, at)]);
    let (offset, value) = (
        g.substitute(offset, &mut map),
        g.substitute(value, &mut map),
    );
    let closed = std::iter::once(r)
        .filter(|&r| g[r].op == Op::Range)
        .chain(others.iter().copied())
        .collect();
    (g.int_value(g[row].src[0]) == Some(of.size)).then(|| {
        Nest {
            buffer,
            offset,
            value,
            adds: false,
            closed,
        }
        .store(g)
    })
}

/// Whether `node` is a sum of products with a packed weight or, if `chosen`, with data-selected
/// rows of one (experts).
fn contracts(g: &Graph, node: Id, chosen: bool) -> bool {
    let is_weight = |&x: &Id| {
        let mut x = x;
        while g[x].op.is_movement() || g[x].op == Op::Cast || chosen && g[x].op == Op::Gather {
            x = g[x].src[0];
        }
        g[x].op == Op::Decode
    };
    let of = &g[node];
    of.op == Op::Reduce && g[of.src[0]].op == Op::Mul && g[of.src[0]].src.iter().any(is_weight)
}

/// Inlines nodes that need no decision, before the workgroup shape is proposed.
///
/// A node with a single read at an index that each output element has for itself is an epilogue. A
/// contraction is also inlined if it has at most `COPIES` copies in a thread, or if each term of an
/// enclosing sum has its own, as in a sum over chosen experts. The proposer must see such
/// contractions, to divide their terms among threads or, on a CPU, to use their rows as vector
/// lanes; on a CPU the enclosing reduction may be of any kind.
fn inline_same(g: &mut Graph, x: &mut Expander, out: &mut Draft, kind: MachineKind) {
    let mut placeholders = Placeholders::default();
    loop {
        let found = placeholders.found(g, &out.nests);
        let mut next = None;
        for (&node, reads) in &found {
            if let [(read, nest)] = reads[..] {
                let closed: FxHashSet<Id> = closed_ranges(g, out.nests[nest]).into_iter().collect();
                let mine = ranges_of(g, read);
                let copies = closed
                    .difference(&mine)
                    .map(|&r| g.max_of(g[r].src[0]))
                    .product::<i64>();
                let shared = copies <= propose::COPIES && contracts(g, node, false);
                let same = mine.is_subset(&closed) && (copies == 1 || shared);
                let of_each_term = |n: Id| {
                    let adds = kind == MachineKind::Cpu
                        || matches!(g[n].arg, Arg::Reduce(ReduceOp::Add, _));
                    adds && g[n].src[1..].iter().all(|r| mine.contains(r))
                };
                let same = same
                    || copies == 1
                        && contracts(g, node, true)
                        && reductions_around(g, out.nests[nest], read)
                            .into_iter()
                            .all(of_each_term);
                if g[node].op != Op::Cat && g[read].dtype == g[node].dtype && same {
                    next = next.max(Some((node, read)));
                }
            }
        }
        let Some((node, read)) = next else { return };
        let index: Indices = g[read].src[1..].into();
        let value = x.compute(g, node, &index);
        placeholders.replace(g, &mut out.nests, FxHashMap::from_iter([(read, value)]));
    }
}

/// Stages that are read below a node.
fn stages_below(g: &Graph, below: Id) -> impl Iterator<Item = Id> + '_ {
    let read = |n: Id| {
        (g[n].op == Op::Load)
            .then(|| g[n].src[0])
            .filter(|&b| g[b].op == Op::Local)
    };
    g.toposort(&[below]).into_iter().filter_map(read)
}

/// Sorts nests that fill stages into rounds: each reads only stages of earlier rounds. A
/// barrier separates rounds, so there are as few as possible, and the loads of one round
/// are in flight together.
fn in_rounds(g: &Graph, nests: &mut [Id]) {
    let mut filled: FxHashMap<Id, usize> = FxHashMap::default();
    let mut rounds: FxHashMap<Id, usize> = FxHashMap::default();
    for &nest in nests.iter() {
        let read = g[nest].src[1..].iter().flat_map(|&s| stages_below(g, s));
        let round = read
            .filter_map(|stage| filled.get(&stage))
            .map(|last| last + 1)
            .max()
            .unwrap_or(0);
        let buffer = g[nest].src[0];
        if g[buffer].op == Op::Local {
            let last = filled.entry(buffer).or_default();
            *last = round.max(*last);
            rounds.insert(nest, round);
        }
    }
    nests.sort_by_key(|nest| rounds.get(nest).copied().unwrap_or(usize::MAX));
}

/// Moves the nests that weight addresses depend on before the others, with the stages these need:
/// the sooner an address is known, the sooner its loads are issued.
fn addresses_first(g: &Graph, nests: &mut Vec<Id>) {
    let mut needed: FxHashSet<Id> = FxHashSet::default();
    for nest in nests.iter() {
        for n in g.toposort(&[*nest]) {
            if g[n].op == Op::Load && matches!(g[g[n].src[0]].arg, Arg::Packed(..)) {
                needed.extend(stages_below(g, g[n].src[1]));
            }
        }
    }
    // Stages are filled in order: a stage's sources precede it.
    for &nest in nests.iter().rev() {
        if needed.contains(&g[nest].src[0]) {
            needed.extend(g[nest].src[1..].iter().flat_map(|&s| stages_below(g, s)));
        }
    }
    let (first, rest): (Vec<Id>, Vec<Id>) = nests
        .iter()
        .partition(|&&nest| needed.contains(&g[nest].src[0]));
    *nests = first.into_iter().chain(rest).collect();
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_uop::{Node, Scalar};
    use smallvec::smallvec;

    #[test]
    fn nests_wait_for_as_few_others_as_can_be() {
        let mut g = Graph::new();
        let (one, zero) = (g.int(1), g.int(0));
        let stages: Vec<Id> = (0..4)
            .map(|i| {
                let dtype = Scalar::F32.into();
                g.intern(Node {
                    op: Op::Local,
                    dtype,
                    src: smallvec![one],
                    arg: Arg::Int(i),
                })
            })
            .collect();
        let out = g.param(1, &[], Scalar::F32);
        let x = g.param(0, &[], Scalar::F32);
        // Two parallel chains, and a reader of both.
        let mut nest = |to: Id, from: &[Id]| {
            let read: Vec<Id> = from.iter().map(|&b| g.load(b, zero, Scalar::F32)).collect();
            let value = read
                .into_iter()
                .reduce(|a, b| g.add(a, b))
                .expect("one at least");
            g.store(to, zero, value, &[])
        };
        let chain = [nest(stages[0], &[x]), nest(stages[1], &[stages[0]])];
        let beside = [nest(stages[2], &[x]), nest(stages[3], &[stages[2]])];
        let last = nest(out, &[stages[1], stages[3]]);
        let mut nests = vec![chain[0], chain[1], beside[0], beside[1], last];
        in_rounds(&g, &mut nests);
        assert_eq!(nests, [chain[0], beside[0], chain[1], beside[1], last]);
    }
}
