//! One kernel being cut: its nests, and how nodes that are fused into it are read, inline or from a stage.
//!
//! A nest is an `Op::Store`: loops over its closed ranges around one expression. A kernel is a list of nests that a workgroup runs in
//! order; the last ones write the kernel's outputs, those before fill the workgroup's own stages.

use super::expand::Expander;
use super::workgroup;
use crate::decompose::int8::Derived;
use crate::nest::{Indices, Nest, flatten};
use crate::request::{Hint, StagedTile};
use crate::tile::{Proposal, Workgroup, propose};
use gristmill_uop::machine::MachineKind;
use gristmill_uop::program::When;
use gristmill_uop::shape::Dims;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Node, Op, RangeKind, Scalar};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::smallvec;

/// A kernel that writes one node (all parts of it).
#[derive(Clone, Debug)]
pub struct Draft {
    /// The tensor-level node it computes.
    pub root: Id,
    /// Its nests, in order.
    pub nests: Vec<Id>,
    /// Fused nodes that became stages.
    pub stages: Vec<Id>,
    /// Bytes of the stages.
    pub stage_bytes: usize,
    /// Where in a workgroup's chunk, or behind it, rows begin that this step writes.
    pub fresh: Option<Id>,
    /// What holds for its workgroups.
    pub when: When,
    /// What each of them computes.
    pub plan: Workgroup,
    /// What each of them could compute, the heuristic's choice first.
    pub proposals: Vec<Proposal<Workgroup>>,
}

impl Draft {
    /// Of a kernel that has no nests yet.
    fn of(root: Id) -> Draft {
        Draft {
            root,
            nests: Vec::new(),
            stages: Vec::new(),
            stage_bytes: 0,
            fresh: None,
            when: When::default(),
            plan: Workgroup::default(),
            proposals: Vec::new(),
        }
    }
}

/// Why a kernel cannot be cut that way.
#[derive(Clone, Debug, PartialEq)]
pub enum Illegal {
    /// Its stages need more than a workgroup may hold.
    StageTooLarge(usize),
}

/// What `draft` needs to know of the schedule around it.
pub struct Surroundings<'a> {
    /// Where every materialised node is.
    pub buffers: &'a FxHashMap<Id, Id>,
    /// Candidates that are fused into their readers.
    pub fused: &'a FxHashSet<Id>,
    /// Position of every tensor-level node in topological order.
    pub order: &'a FxHashMap<Id, usize>,
    /// Workgroup shapes that a derivation asks for.
    pub hints: &'a FxHashMap<Id, Hint>,
    /// Integer contractions and layouts.
    pub derived: &'a Derived,
    /// For whom.
    pub target: &'a Target,
    /// Workgroups that a contraction of one token should have at most: as many as run at once.
    pub room: i64,
    /// What a workgroup computes; without it, what is proposed first.
    pub plan: Option<&'a Workgroup>,
}

/// The parts a node is made of: itself, or the sources of a `Cat`, each with its place along the axis.
fn parts(g: &mut Graph, node: Id) -> Vec<(Id, Option<(usize, Id)>)> {
    let n = g[node].clone();
    let (Op::Cat, Arg::Axes(axes)) = (n.op, &n.arg) else { return vec![(node, None)] };
    let axis = axes[0] as usize;
    let mut at = g.int(0);
    let mut out = Vec::new();
    for &part in &n.src[..n.src.len() - 1] {
        out.push((part, Some((axis, at))));
        let d = g.shape(part)[axis];
        at = g.add(at, d);
    }
    out
}

/// Elements of an axis: from `base` on, as many as `extent`, none behind `last`: where the axis ends, the last one repeats.
#[derive(Clone, Copy)]
struct Span {
    base: Id,
    extent: Id,
    last: Option<Id>,
}

/// Nests that write `node` into `buffer`, whose elements are addressed by `address(indices)`. `index` gives an index for each axis:
/// a base to add to a fresh range of that extent.
fn nests_for(
    g: &mut Graph,
    x: &mut Expander,
    node: Id,
    buffer: Id,
    region: &[Span],
    address: &mut dyn FnMut(&mut Graph, &[Id]) -> Id,
) -> Vec<Id> {
    let mut shared: Vec<Option<Id>> = vec![None; region.len()];
    let mut nests = Vec::new();
    for (part, place) in parts(g, node) {
        let mut index = Indices::new();
        let mut local = Indices::new();
        let mut closed = Vec::new();
        for (axis, &Span { base, extent, last }) in region.iter().enumerate() {
            let r = match place {
                Some((a, _)) if a == axis => {
                    let d = g.shape(part)[axis];
                    let d = x.dim(g, d);
                    x.ranges.range(g, d, RangeKind::Loop)
                }
                _ => *shared[axis].get_or_insert_with(|| x.ranges.range(g, extent, RangeKind::Loop)),
            };
            if g[r].op == Op::Range {
                closed.push(r);
            }
            let at = g.add(base, r);
            index.push(match last {
                Some(last) => g.min(at, last),
                None => at,
            });
            local.push(match place {
                Some((a, at)) if a == axis => g.add(at, r),
                _ => r,
            });
        }
        let value = match place {
            Some(_) => x.value(g, part, &index),
            None => x.compute(g, part, &index),
        };
        let offset = address(g, &local);
        nests.push(g.store(buffer, offset, value, &closed));
    }
    nests
}

/// Cuts the kernel that computes `root` into `target_buffer`.
pub fn draft(g: &mut Graph, root: Id, around: &Surroundings) -> Result<Draft, Illegal> {
    let mut x = Expander::new(around.buffers, around.fused, around.derived);
    let mut out = Draft::of(root);
    let buffer = around.buffers[&root];
    // What is computed, and where its rows begin in the buffer.
    let (node, dims, start) = match g[root].op {
        Op::Assign => {
            let (state, value, start) = (g[root].src[0], g[root].src[1], g[root].src[2]);
            (value, g.shape(state), Some(start))
        }
        _ => (root, g.shape(root), None),
    };
    let zero = g.int(0);
    let extents = g.shape(node);
    let region: Vec<Span> = extents.iter().map(|&d| Span { base: zero, extent: x.dim(g, d), last: None }).collect();
    let mut address = |g: &mut Graph, index: &[Id]| {
        let mut index: Indices = index.into();
        if let Some(start) = start {
            index[0] = g.add(start, index[0]);
        }
        around.derived.place(g, node, &dims, &index)
    };
    let is_candidate = around.fused.contains(&node) || around.buffers.contains_key(&node);
    out.nests = if node != root && is_candidate {
        // An assigned value that has a place of its own, or is fused: read through `value`.
        let mut index = Indices::new();
        let mut closed = Vec::new();
        for &Span { extent, .. } in &region {
            let r = x.ranges.range(g, extent, RangeKind::Loop);
            if g[r].op == Op::Range {
                closed.push(r);
            }
            index.push(r);
        }
        let value = x.value(g, node, &index);
        let offset = address(g, &index);
        vec![g.store(buffer, offset, value, &closed)]
    } else {
        nests_for(g, &mut x, node, buffer, &region, &mut address)
    };
    inline_same(g, &mut x, &mut out);
    let &Surroundings { derived, target, room, .. } = around;
    let of = propose::Around { node, hint: around.hints.get(&node), derived, target, room };
    out.proposals = propose::workgroup(g, &out.nests, &of);
    out.plan = around.plan.unwrap_or(&out.proposals[0].plan).clone();
    let split = workgroup::split(g, &mut x, &out.nests, &out.plan, &of);
    out.nests = split.nests;
    out.when.skip = split.skip;
    out.fresh = split.fresh;
    fuse(g, &mut x, &mut out, around)?;
    addresses_first(g, &mut out.nests);
    if around.target.machine.kind == MachineKind::Gpu {
        in_rounds(g, &mut out.nests);
    }
    if let Some(resident) = around.hints.get(&root).and_then(|h| h.resident) {
        copied_first(g, &mut x, &mut out, &resident);
    }
    Ok(out)
}

/// The nest that fills the stage of a cache's tile before all others; after it, where it may be early, one for the rows of this step's tokens.
fn copied_first(g: &mut Graph, x: &mut Expander, out: &mut Draft, resident: &StagedTile) {
    let number = out.stages.iter().position(|&s| s == resident.node).map(|i| Arg::Int(i as i64));
    let fills = |&nest: &Id| g[g[nest].src[0]].op == Op::Local && Some(&g[g[nest].src[0]].arg) == number.as_ref();
    let Some(at) = out.nests.iter().position(fills) else { return };
    out.nests[..=at].rotate_right(1);
    out.when.alone = true;
    if let Some(begin) = out.fresh
        && let Some(nest) = fresh_rows(g, x, out.nests[0], resident, begin)
    {
        out.nests.insert(1, nest);
        let last = g.int(resident.size - 1);
        out.when.early = Some(g.lt(last, begin));
    }
}

/// The nest `copy` for rows that this step writes: as many as it has tokens, from the first one's on, held inside the chunk.
fn fresh_rows(g: &mut Graph, x: &mut Expander, copy: Id, of: &StagedTile, begin: Id) -> Option<Id> {
    let Nest { buffer, offset, value, closed } = Nest::of(g, copy);
    let (&row, others) = closed.split_first()?;
    let tokens = x.dim(g, of.tokens);
    let r = x.ranges.range(g, tokens, RangeKind::Loop);
    let (zero, last) = (g.int(0), g.int(of.size - 1));
    let from = g.max(begin, zero);
    let at = g.add(from, r);
    let at = g.min(at, last);
    let mut map = FxHashMap::from_iter([(row, at)]);
    let (offset, value) = (g.substitute(offset, &mut map), g.substitute(value, &mut map));
    let closed = std::iter::once(r).filter(|&r| g[r].op == Op::Range).chain(others.iter().copied()).collect();
    (g.int_value(g[row].src[0]) == Some(of.size)).then(|| Nest { buffer, offset, value, closed }.store(g))
}

/// Placeholders in the nests: node -> the distinct indices it is read at, with the nest.
fn placeholders(g: &Graph, nests: &[Id]) -> FxHashMap<Id, Vec<(Id, usize)>> {
    let mut found: FxHashMap<Id, Vec<(Id, usize)>> = FxHashMap::default();
    for (i, &nest) in nests.iter().enumerate() {
        for n in g.toposort(&[nest]) {
            if g[n].op == Op::Index {
                found.entry(g[n].src[0]).or_default().push((n, i));
            }
        }
    }
    found
}

fn closed_ranges(g: &Graph, nest: Id) -> Vec<Id> {
    g[nest].src[3..].to_vec()
}

/// Ranges of an expression as a set.
fn ranges_of(g: &Graph, id: Id) -> FxHashSet<Id> {
    g.free_ranges(id).iter().copied().collect()
}

/// Ranges of the reductions of `nest` that enclose `inner`.
fn enclosing(g: &Graph, nest: Id, inner: Id) -> FxHashSet<Id> {
    let mut out = FxHashSet::default();
    for n in g.toposort(&[nest]) {
        if g[n].op == Op::Reduce && g.any(g[n].src[0], |m, _| m == inner) {
            out.extend(g[n].src[1..].iter().copied());
        }
    }
    out
}

fn replace(g: &mut Graph, nests: &mut [Id], map: FxHashMap<Id, Id>) {
    let mut map = map;
    for nest in nests {
        *nest = g.substitute(*nest, &mut map);
    }
}

/// Is it a sum of products with a packed weight?
fn contracts(g: &Graph, node: Id) -> bool {
    let is_weight = |&x: &Id| {
        let mut x = x;
        while g[x].op.is_movement() || g[x].op == Op::Cast {
            x = g[x].src[0];
        }
        g[x].op == Op::Decode
    };
    let of = &g[node];
    of.op == Op::Reduce && g[of.src[0]].op == Op::Mul && g[of.src[0]].src.iter().any(is_weight)
}

/// A node read once, at an index that every output element has for itself, is an epilogue: computed in place. So is a contraction whose few
/// readers are copies beside one another.
fn inline_same(g: &mut Graph, x: &mut Expander, out: &mut Draft) {
    loop {
        let found = placeholders(g, &out.nests);
        let mut next = None;
        for (&node, reads) in &found {
            if let [(read, nest)] = reads[..] {
                let closed: FxHashSet<Id> = closed_ranges(g, out.nests[nest]).into_iter().collect();
                let mine = ranges_of(g, read);
                let copies = closed.difference(&mine).map(|&r| g.max_of(g[r].src[0])).product::<i64>();
                let shared = copies <= propose::COPIES && contracts(g, node);
                let same = mine.is_subset(&closed) && (copies == 1 || shared);
                if g[node].op != Op::Cat && g[read].dtype == g[node].dtype && same {
                    next = next.max(Some((node, read)));
                }
            }
        }
        let Some((node, read)) = next else { return };
        let index: Indices = g[read].src[1..].into();
        let value = x.compute(g, node, &index);
        replace(g, &mut out.nests, FxHashMap::from_iter([(read, value)]));
    }
}

/// Does computing `node` from what has a buffer take a reduction?
fn reduces(g: &Graph, node: Id, around: &Surroundings) -> bool {
    let mut stack = vec![node];
    let mut seen = FxHashSet::default();
    while let Some(n) = stack.pop() {
        if g[n].op == Op::Reduce {
            return true;
        }
        let below = g[n].src.iter().copied().filter(|s| !around.buffers.contains_key(s));
        stack.extend(below.filter(|&s| seen.insert(s)));
    }
    false
}

/// The stages that are read below a node.
fn stages_below(g: &Graph, below: Id) -> impl Iterator<Item = Id> + '_ {
    let read = |n: Id| (g[n].op == Op::Load).then(|| g[n].src[0]).filter(|&b| g[b].op == Op::Local);
    g.toposort(&[below]).into_iter().filter_map(read)
}

/// Nests that fill stages, in rounds: each reads stages of rounds before its own alone. Threads wait for one another between rounds, so as few
/// times as can be, and what the nests of a round load is waited for together.
fn in_rounds(g: &Graph, nests: &mut [Id]) {
    let mut filled: FxHashMap<Id, usize> = FxHashMap::default();
    let mut rounds: FxHashMap<Id, usize> = FxHashMap::default();
    for &nest in nests.iter() {
        let read = g[nest].src[1..].iter().flat_map(|&s| stages_below(g, s));
        let round = read.filter_map(|stage| filled.get(&stage)).map(|last| last + 1).max().unwrap_or(0);
        let buffer = g[nest].src[0];
        if g[buffer].op == Op::Local {
            let last = filled.entry(buffer).or_default();
            *last = round.max(*last);
            rounds.insert(nest, round);
        }
    }
    nests.sort_by_key(|nest| rounds.get(nest).copied().unwrap_or(usize::MAX));
}

/// Nests that fill the stages which addresses of weights are read from, and what these need, come before the others: the sooner an address is
/// known, the sooner the weights are on their way.
fn addresses_first(g: &Graph, nests: &mut Vec<Id>) {
    let mut needed: FxHashSet<Id> = FxHashSet::default();
    for nest in nests.iter() {
        for n in g.toposort(&[*nest]) {
            if g[n].op == Op::Load && matches!(g[g[n].src[0]].arg, Arg::Packed(..)) {
                needed.extend(stages_below(g, g[n].src[1]));
            }
        }
    }
    // Stages are filled in order: what a stage reads stands before it.
    for &nest in nests.iter().rev() {
        if needed.contains(&g[nest].src[0]) {
            needed.extend(g[nest].src[1..].iter().flat_map(|&s| stages_below(g, s)));
        }
    }
    let (first, rest): (Vec<Id>, Vec<Id>) = nests.iter().partition(|&&nest| needed.contains(&g[nest].src[0]));
    *nests = first.into_iter().chain(rest).collect();
}

/// Decides for every fused node, readers before what they read, whether it is computed in place or in a stage.
fn fuse(g: &mut Graph, x: &mut Expander, out: &mut Draft, around: &Surroundings) -> Result<(), Illegal> {
    loop {
        let found = placeholders(g, &out.nests);
        let Some((&node, reads)) = found.iter().max_by_key(|(n, _)| around.order[n]) else { return Ok(()) };
        let distinct: FxHashSet<Id> = reads.iter().map(|r| r.0).collect();
        let mut in_place = distinct.len() == 1 && g[node].op != Op::Cat && g[reads[0].0].dtype == g[node].dtype;
        // A sum that several nests need is not added up in each of them.
        let several = reads.iter().any(|r| r.1 != reads[0].1);
        in_place &= !(several && reduces(g, node, around));
        in_place &= !around.hints.get(&out.root).is_some_and(|h| h.staged.contains(&node));
        if in_place {
            // Computed once for each of its own indices only if the loops around it are all its own, or come first.
            for &(read, nest) in reads {
                let mine = ranges_of(g, read);
                let closed = closed_ranges(g, out.nests[nest]);
                let around_it = enclosing(g, out.nests[nest], read);
                let prefix = closed.iter().take_while(|r| mine.contains(r)).count();
                let of_closed = closed.iter().filter(|r| mine.contains(r)).count();
                let of_reduce = around_it.iter().filter(|r| mine.contains(r)).count();
                in_place &= match of_reduce {
                    0 => prefix == of_closed,
                    n => prefix == closed.len() && n == around_it.len(),
                };
            }
        }
        if in_place {
            let read = reads[0].0;
            let index: Indices = g[read].src[1..].into();
            let value = x.compute(g, node, &index);
            replace(g, &mut out.nests, FxHashMap::from_iter([(read, value)]));
            continue;
        }
        let reads: Vec<Id> = distinct.into_iter().collect();
        let first = found[&node].iter().map(|r| r.1).min().unwrap_or(0);
        stage(g, x, out, around, node, &reads, first)?;
    }
}

/// Gives `node` a stage: the region of it that the workgroup reads, computed before its first reader.
fn stage(
    g: &mut Graph,
    x: &mut Expander,
    out: &mut Draft,
    around: &Surroundings,
    node: Id,
    reads: &[Id],
    first_reader: usize,
) -> Result<(), Illegal> {
    let region = region(g, x, node, reads);
    let resident = around.hints.values().filter_map(|h| h.resident).any(|r| around.fused.contains(&r.node));
    let mut extents: Dims = region.iter().map(|r| r.extent).collect();
    let dtype = g[node].dtype;
    if let Some(row) = extents.last_mut()
        && around.target.machine.kind == MachineKind::Gpu
    {
        *row = padded(g, *row, dtype.scalar, resident);
    }
    let size: i64 = extents.iter().map(|&e| g.max_of(e)).product();
    out.stage_bytes += size as usize * dtype.scalar.bytes();
    let most = if resident { around.target.machine.shared_per_workgroup } else { around.target.machine.stage_bytes() };
    if out.stage_bytes > most {
        return Err(Illegal::StageTooLarge(out.stage_bytes));
    }
    let elements = g.int(size);
    let local =
        g.intern(Node { op: Op::Local, dtype, src: smallvec![elements], arg: Arg::Int(out.stages.len() as i64) });
    out.stages.push(node);
    let mut address = |g: &mut Graph, index: &[Id]| flatten(g, &extents, index);
    let mut nests = nests_for(g, x, node, local, &region, &mut address);
    let mut map = FxHashMap::default();
    for &read in reads {
        let index: Indices = g[read].src[1..].into();
        let local_index: Indices = index.iter().zip(&region).map(|(&i, r)| g.sub(i, r.base)).collect();
        let offset = flatten(g, &extents, &local_index);
        let as_read = g[read].dtype;
        map.insert(read, g.load(local, offset, as_read));
    }
    replace(g, &mut out.nests, map);
    let tail = out.nests.split_off(first_reader);
    out.nests.append(&mut nests);
    out.nests.extend(tail);
    Ok(())
}

/// The region of `node` that a workgroup reads: per axis what the workgroup fixes, and how many elements from there it reads.
fn region(g: &mut Graph, x: &mut Expander, node: Id, reads: &[Id]) -> Vec<Span> {
    let dims: Dims = g.shape(node);
    let zero = g.int(0);
    let mut region: Vec<Span> = Vec::new();
    for (axis, &dim) in dims.iter().enumerate() {
        let last = axis + 1 == dims.len();
        let mut agreed: Option<(Fixed, i64)> = None;
        let mut whole = false;
        for &read in reads {
            let (fixed, bounds) = split_global(g, g[read].src[1 + axis]);
            // A word is the four bytes from its index on.
            let more = if last { (g[read].dtype.scalar.bytes() / g[node].dtype.scalar.bytes()) as i64 } else { 1 };
            match (bounds, agreed) {
                (Some((lo, hi)), None) if lo >= 0 => agreed = Some((fixed, hi + more)),
                (Some((lo, hi)), Some((f, n))) if lo >= 0 && f == fixed => agreed = Some((f, n.max(hi + more))),
                _ => whole = true,
            }
        }
        let full = x.dim(g, dim);
        let max = g.max_of(full);
        region.push(match agreed {
            Some((f, n)) if !whole && n < max => Span { base: f.base, extent: g.int(n), last: f.last },
            _ => Span { base: zero, extent: full, last: None },
        });
    }
    // `Cat` is staged whole along its axis.
    if let (Op::Cat, Arg::Axes(a)) = (g[node].op, g[node].arg.clone()) {
        let full = x.dim(g, dims[a[0] as usize]);
        region[a[0] as usize] = Span { base: zero, extent: full, last: None };
    }
    region
}

/// The length of a stage's rows. Rows of halves are operands of matrix products, of which the lanes of a warp read 64 bytes of eight rows at once:
/// every other row begins in the other half of shared memory's 32 banks. Where both operands are staged it is a word of each row: eight rows
/// begin in banks that are four apart.
fn padded(g: &mut Graph, row: Id, scalar: Scalar, resident: bool) -> Id {
    let begin = if resident { 16 } else { 64 };
    match g.int_value(row).map(|n| 2 * n) {
        Some(bytes) if scalar == Scalar::F16 && bytes % 32 == 0 => {
            g.int((bytes + (128 + begin - bytes % 128) % 128) / 2)
        }
        _ => row,
    }
}

/// What of an index depends on the workgroup alone.
#[derive(Clone, Copy, PartialEq)]
struct Fixed {
    /// The smallest value.
    base: Id,
    /// What it does not exceed.
    last: Option<Id>,
}

/// An index as what depends on the workgroup alone, and the bounds of the rest.
fn split_global(g: &mut Graph, index: Id) -> (Fixed, Option<(i64, i64)>) {
    let global = |g: &Graph, id: Id| g.free_ranges(id).iter().all(|&r| g.range_kind(r) == Some(RangeKind::Global));
    // Held below a last element: min(b + r, last) lies between min(b, last) and that plus r.
    let n = &g[index];
    if n.op == Op::Min && global(g, n.src[1]) && !global(g, n.src[0]) {
        let (x, last) = (n.src[0], n.src[1]);
        let (fixed, bounds) = split_global(g, x);
        if fixed.last.is_none() {
            let base = g.min(fixed.base, last);
            return (Fixed { base, last: Some(last) }, bounds.filter(|b| b.0 >= 0).map(|b| (0, b.1)));
        }
    }
    let sum = g.linear(index);
    let (mut base, mut rest) = (gristmill_uop::linear::Linear::default(), sum.clone());
    rest.terms.clear();
    for &(t, c) in &sum.terms {
        if global(g, t) { base.terms.push((t, c)) } else { rest.terms.push((t, c)) }
    }
    let dtype = g[index].dtype;
    (Fixed { base: g.from_linear(&base, dtype), last: None }, g.linear_bounds(&rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_uop::Scalar;

    #[test]
    fn nests_wait_for_as_few_others_as_can_be() {
        let mut g = Graph::new();
        let (one, zero) = (g.int(1), g.int(0));
        let stages: Vec<Id> = (0..4)
            .map(|i| {
                let dtype = Scalar::F32.into();
                g.intern(Node { op: Op::Local, dtype, src: smallvec![one], arg: Arg::Int(i) })
            })
            .collect();
        let out = g.param(1, &[], Scalar::F32);
        let x = g.param(0, &[], Scalar::F32);
        // A chain, beside it another, and what reads both.
        let mut nest = |to: Id, from: &[Id]| {
            let read: Vec<Id> = from.iter().map(|&b| g.load(b, zero, Scalar::F32)).collect();
            let value = read.into_iter().reduce(|a, b| g.add(a, b)).expect("one at least");
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
