//! Which weights, and rows of a cache, a workgroup asks for before it needs them: those whose addresses it knows before the kernels before it
//! have ended, or as soon as a stage tells it (the experts that were chosen). Rows of a workgroup lie side by side, so a few spans of bytes are all it reads; one instruction
//! asks for each, and the memory pipelines of the threads stay free for what they wait for.

use gristmill_compiler::lower::Statement;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind};
use std::collections::HashSet;

/// Bytes of a span that are worth asking for: of more, the loads themselves keep memory busy.
const MOST: i64 = 160 << 10;
/// Bytes of a span of something else, of a cache above all, that are.
const LEAST: i64 = 32 << 10;
/// Steps of an address and of a length.
const STEP: i64 = 16;

/// Bytes of a buffer, `from..to` behind an address that the workgroup alone decides.
pub(super) struct Span {
    pub buffer: Id,
    /// The address: terms and their coefficients.
    pub terms: Vec<(Id, i64)>,
    pub from: i64,
    pub to: i64,
    /// Loops that the address depends on, through a stage.
    pub loops: Vec<Id>,
    /// Bytes of it that are read, again counted again.
    read: i64,
}

/// Buffer, address and bytes of the loads from memory.
fn loads<'a>(g: &'a Graph, statements: &'a [Statement]) -> impl Iterator<Item = (Id, Id, i64)> + 'a {
    let all = statements.iter().filter_map(|s| match s {
        Statement::Define(id) if g[*id].op == Op::Load => {
            Some((g[*id].src[0], g[*id].src[1], g[*id].dtype.scalar.bytes() as i64))
        }
        Statement::Wide(buffer, at, bytes, _) => Some((*buffer, *at, *bytes as i64)),
        _ => None,
    });
    all.filter(|&(buffer, ..)| g[buffer].op == Op::Param)
}

/// The stages that an address is read from; `None` if anything else of the kernel's work is in it.
fn sources(g: &Graph, at: Id) -> Option<Vec<Id>> {
    let order = g.toposort(&[at]);
    let known = |n: &Id| match g[*n].op {
        Op::Load => g[g[*n].src[0]].op == Op::Local,
        op => !matches!(op, Op::Reduce | Op::Fold | Op::Acc | Op::Mma | Op::MmaHalf),
    };
    order.iter().all(known).then(|| order.iter().filter(|n| g[**n].op == Op::Load).map(|n| g[*n].src[0]).collect())
}

/// Of `filled`, the stages that addresses of weights are read from.
pub(super) fn stages(g: &Graph, statements: &[Statement], filled: &HashSet<Id>) -> HashSet<Id> {
    let all = loads(g, statements).flat_map(|(_, at, _)| sources(g, at).unwrap_or_default());
    all.filter(|s| filled.contains(s)).collect()
}

/// What is read of weights at addresses that depend on these stages and nothing else of the kernel's work.
pub(super) fn spans(g: &Graph, statements: &[Statement], stages: &HashSet<Id>) -> Vec<Span> {
    let mut out: Vec<Span> = Vec::new();
    for (buffer, at, bytes) in loads(g, statements) {
        let fits = |s: &[Id]| s.is_empty() == stages.is_empty() && s.iter().all(|b| stages.contains(b));
        if !sources(g, at).is_some_and(|s| fits(&s)) {
            continue;
        }
        let Some(span) = span(g, buffer, at, bytes) else { continue };
        match out.iter_mut().find(|s| s.buffer == buffer && s.terms == span.terms) {
            Some(s) => {
                (s.from, s.to) = (s.from.min(span.from), s.to.max(span.to));
                s.read += span.read;
            }
            None => out.push(span),
        }
    }
    let whole = |s: &Span| {
        let length = s.to - s.from;
        let even = s.terms.iter().map(|t| t.1).chain([s.from, length]).all(|x| x % STEP == 0);
        let packed = matches!(g[s.buffer].arg, Arg::Packed(..));
        // What kernels before this one wrote is near already, unless it is a part of something large.
        let large = packed || length >= LEAST && !s.terms.is_empty();
        even && large && length <= MOST && 2 * s.read >= length
    };
    out.retain(whole);
    out
}

fn span(g: &Graph, buffer: Id, at: Id, bytes: i64) -> Option<Span> {
    let unit = g.unit_bytes(buffer);
    let mut moving = g.linear(at);
    let is_global = |r: &Id| g.range_kind(*r) == Some(RangeKind::Global);
    let (mut terms, mut loops) = (Vec::new(), Vec::new());
    moving.terms.retain(|&mut (t, c)| {
        let free = g.free_ranges(t);
        let staged = g.any(t, |_, n| n.op == Op::Load);
        if staged {
            loops.extend(free.iter().copied().filter(|r| !is_global(r)));
        }
        let fixed = staged || free.iter().all(is_global);
        if fixed {
            terms.push((t, c * unit));
        }
        !fixed
    });
    let serial = |r: &Id| matches!(g.range_kind(*r), Some(RangeKind::Reduce | RangeKind::Loop));
    if !loops.iter().all(serial) {
        return None;
    }
    terms.sort();
    loops.sort();
    loops.dedup();
    let (low, high) = g.linear_bounds(&moving)?;
    let ranges: HashSet<Id> = moving.terms.iter().flat_map(|&(t, _)| g.free_ranges(t).to_vec()).collect();
    let times: i64 = ranges.iter().map(|&r| g.max_of(g[r].src[0])).product();
    Some(Span { buffer, terms, from: low * unit, to: high * unit + bytes, loops, read: times.saturating_mul(bytes) })
}
