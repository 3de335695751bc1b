//! Which weights, and rows of a cache, a GPU's workgroup asks for before it needs them: those whose addresses it knows before the kernels before it
//! have ended, or as soon as a stage tells it (the experts that were chosen). Rows of a workgroup lie side by side, so a few spans of bytes are all it
//! reads; one instruction asks for each, and the memory pipelines of the threads stay free for what they wait for.

use crate::lower::linear_ir::{Prefetch, SpanPrefetch, Statement, end_of_block};
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind};
use rustc_hash::FxHashSet;
use std::borrow::Cow;

/// Bytes of a span, at most: of more, the loads themselves keep memory busy. Spans of weights that paid have 9 to 23 KB (experiments, 30), a chunk of a cache 147 KB (43, and 36: 2 %); where it
/// stops paying was not measured.
const MOST_BYTES_OF_SPAN: i64 = 160 << 10;
/// Bytes of a span of something else than a weight, of a cache above all, at least. Not measured: less is what kernels before have just written, and near already.
const LEAST_BYTES_OF_SPAN: i64 = 32 << 10;
/// Steps of an address and of a length.
const BYTES_OF_STEP: i64 = 16;

/// A span, and how many bytes of it are read, again counted again.
struct Span {
    at: SpanPrefetch,
    read: i64,
}

/// Nests and what stands between them, with the spans that later nests read: before the wait for predecessors those whose addresses are known,
/// and behind a nest that fills a stage those whose addresses it tells.
pub fn prefetch_spans(g: &Graph, statements: Vec<Statement>) -> Vec<Statement> {
    let mut out = Vec::with_capacity(statements.len());
    // Stages filled, and not yet asked for what they tell.
    let mut filled: FxHashSet<Id> = FxHashSet::default();
    let mut guarded = false;
    let mut waited = false;
    let mut rest = statements.into_iter();
    while let Some(first) = rest.as_slice().first() {
        let mut end = end_of_block(rest.as_slice());
        match first {
            Statement::DependencyWait => {
                waited = true;
                ask(g, &unguarded(rest.as_slice()), &FxHashSet::default(), &mut out);
            }
            Statement::Unless(_) => (guarded, end) = (true, 0),
            Statement::End => guarded = false,
            Statement::Nest { buffer, staged, .. } => {
                if waited && !guarded {
                    let later = &rest.as_slice()[end + 1..];
                    let fresh = tell(g, later, &filled);
                    if !fresh.is_empty() {
                        ask(g, later, &fresh, &mut out);
                    }
                    filled.clear();
                }
                if *staged {
                    filled.insert(*buffer);
                }
            }
            _ => {}
        }
        out.extend(rest.by_ref().take(end + 1));
    }
    out
}

/// The statements that are run in any case.
fn unguarded(statements: &[Statement]) -> Cow<'_, [Statement]> {
    if !statements.iter().any(|s| matches!(s, Statement::Unless(_))) {
        return statements.into();
    }
    let mut out = Vec::new();
    let mut at = 0;
    while at < statements.len() {
        let end = end_of_block(&statements[at..]);
        if !matches!(statements[at], Statement::Unless(_)) {
            out.extend_from_slice(&statements[at..=at + end]);
        }
        at += end + 1;
    }
    out.into()
}

/// Asks for what these statements read at addresses that are known once these stages are filled.
fn ask(g: &Graph, statements: &[Statement], stages: &FxHashSet<Id>, out: &mut Vec<Statement>) {
    out.extend(spans(g, statements, stages).into_iter().map(|s| Statement::Prefetch(Prefetch::Span(s.at))));
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

/// Of `filled`, the stages that addresses in memory are read from.
fn tell(g: &Graph, statements: &[Statement], filled: &FxHashSet<Id>) -> FxHashSet<Id> {
    let all = loads(g, statements).flat_map(|(_, at, _)| sources(g, at).unwrap_or_default());
    all.filter(|s| filled.contains(s)).collect()
}

/// What is read at addresses that depend on these stages and nothing else of the kernel's work.
fn spans(g: &Graph, statements: &[Statement], stages: &FxHashSet<Id>) -> Vec<Span> {
    let mut out: Vec<Span> = Vec::new();
    for (buffer, at, bytes) in loads(g, statements) {
        let fits = |s: &[Id]| s.is_empty() == stages.is_empty() && s.iter().all(|b| stages.contains(b));
        if !sources(g, at).is_some_and(|s| fits(&s)) {
            continue;
        }
        let Some(new) = span(g, buffer, at, bytes) else { continue };
        match out.iter_mut().find(|s| s.at.buffer == buffer && s.at.terms == new.at.terms) {
            Some(s) => {
                let to = (s.at.from + s.at.bytes).max(new.at.from + new.at.bytes);
                s.at.from = s.at.from.min(new.at.from);
                s.at.bytes = to - s.at.from;
                s.read += new.read;
            }
            None => out.push(new),
        }
    }
    out.retain(|s| is_worth_it(g, s));
    out
}

/// Is a span long enough, and not too long, and mostly read?
fn is_worth_it(g: &Graph, s: &Span) -> bool {
    let length = s.at.bytes;
    let even = s.at.terms.iter().map(|t| t.1).chain([s.at.from, length]).all(|x| x % BYTES_OF_STEP == 0);
    let packed = matches!(g[s.at.buffer].arg, Arg::Packed(..));
    // What kernels before this one wrote is near already, unless it is a part of something large.
    let large = packed || length >= LEAST_BYTES_OF_SPAN && !s.at.terms.is_empty();
    // Bounds of an index that is a minimum or a maximum are those of its parts: they may go past the buffer.
    let inside = packed || length <= bytes_of(g, s.at.buffer);
    even && large && inside && length <= MOST_BYTES_OF_SPAN && 2 * s.read >= length
}

/// Bytes of a buffer whose elements are not packed, with every variable at its largest.
fn bytes_of(g: &Graph, buffer: Id) -> i64 {
    g[buffer].src.iter().map(|&dim| g.max_of(dim)).product::<i64>() * g.unit_bytes(buffer)
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
    let ranges: FxHashSet<Id> = moving.terms.iter().flat_map(|&(t, _)| g.free_ranges(t).to_vec()).collect();
    let times: i64 = ranges.iter().map(|&r| g.max_of(g[r].src[0])).product();
    let at = SpanPrefetch { buffer, loops, terms, from: low * unit, bytes: (high - low) * unit + bytes };
    Some(Span { at, read: times.saturating_mul(bytes) })
}
