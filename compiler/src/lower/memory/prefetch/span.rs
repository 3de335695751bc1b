//! Prefetches to L2 the weights and KV cache rows that a GPU workgroup will read: as soon as their
//! addresses are known, before the grid-dependency wait (PDL) or after the stage that contains them
//! (the chosen experts).
//!
//! The rows of a workgroup are contiguous, so it reads a few spans of bytes. One instruction
//! prefetches each, which keeps the threads' load pipelines free.

use crate::lower::linear_ir::{Prefetch, SpanPrefetch, Statement, end_of_block};
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind};
use rustc_hash::FxHashSet;
use std::borrow::Cow;

/// Maximum bytes of a span; for more, the loads themselves keep memory busy. Spans that gained:
/// weights of 9 to 23 KB (`docs/experiments/030`), a KV cache chunk of 147 KB
/// (`docs/experiments/043`; `docs/experiments/036`: 2 %). The limit was not measured.
const MAX_BYTES_OF_SPAN: i64 = 160 << 10;
/// Minimum bytes of a span outside weights, in particular in a KV cache. Not measured: smaller ones
/// were just written by earlier kernels and are in L2.
const MIN_BYTES_OF_SPAN: i64 = 32 << 10;
/// Alignment of a span's address and length, bytes.
const BYTES_OF_STEP: i64 = 16;

/// A span, and the number of bytes read from it, where repeated reads count repeatedly.
struct Span {
    at: SpanPrefetch,
    read: i64,
}

/// Inserts prefetches of the spans that later nests read: before the grid-dependency wait for known
/// addresses, and after the nest that fills a stage for addresses read from it.
pub fn prefetch_spans(g: &Graph, statements: Vec<Statement>) -> Vec<Statement> {
    let mut out = Vec::with_capacity(statements.len());
    // Stages filled, but not yet used as prefetch addresses.
    let mut filled: FxHashSet<Id> = FxHashSet::default();
    let mut guarded = false;
    let mut waited = false;
    let mut rest = statements.into_iter();
    while let Some(first) = rest.as_slice().first() {
        let mut end = end_of_block(rest.as_slice());
        match first {
            Statement::DependencyWait => {
                waited = true;
                ask(
                    g,
                    &unguarded(rest.as_slice()),
                    &FxHashSet::default(),
                    &mut out,
                );
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

/// Returns the statements that run unconditionally.
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

/// Appends prefetches for those reads of the statements that have known addresses
/// once `stages` are filled.
fn ask(g: &Graph, statements: &[Statement], stages: &FxHashSet<Id>, out: &mut Vec<Statement>) {
    out.extend(
        spans(g, statements, stages)
            .into_iter()
            .map(|s| Statement::Prefetch(Prefetch::Span(s.at))),
    );
}

/// Yields buffer, address and bytes of each load from memory.
fn loads<'a>(
    g: &'a Graph,
    statements: &'a [Statement],
) -> impl Iterator<Item = (Id, Id, i64)> + 'a {
    let all = statements.iter().filter_map(|s| match s {
        Statement::Define(id) if g[*id].op == Op::Load => Some((
            g[*id].src[0],
            g[*id].src[1],
            g[*id].dtype.scalar.bytes() as i64,
        )),
        Statement::Wide(buffer, at, bytes, _) => Some((*buffer, *at, *bytes as i64)),
        _ => None,
    });
    all.filter(|&(buffer, ..)| g[buffer].op == Op::Param)
}

/// Returns the stages that an address is read from; `None` if it depends on any other
/// result of the kernel.
fn sources(g: &Graph, at: Id) -> Option<Vec<Id>> {
    let order = g.toposort(&[at]);
    let known = |n: &Id| match g[*n].op {
        Op::Load => g[g[*n].src[0]].op == Op::Local,
        op => !matches!(op, Op::Reduce | Op::Fold | Op::Acc | Op::Mma | Op::MmaHalf),
    };
    order.iter().all(known).then(|| {
        order
            .iter()
            .filter(|n| g[**n].op == Op::Load)
            .map(|n| g[*n].src[0])
            .collect()
    })
}

/// Returns those of the `filled` stages from which addresses in memory are read.
fn tell(g: &Graph, statements: &[Statement], filled: &FxHashSet<Id>) -> FxHashSet<Id> {
    let all = loads(g, statements).flat_map(|(_, at, _)| sources(g, at).unwrap_or_default());
    all.filter(|s| filled.contains(s)).collect()
}

/// Returns the spans at addresses that depend on these stages and on no other result of the kernel.
fn spans(g: &Graph, statements: &[Statement], stages: &FxHashSet<Id>) -> Vec<Span> {
    let mut out: Vec<Span> = Vec::new();
    for (buffer, at, bytes) in loads(g, statements) {
        let fits =
            |s: &[Id]| s.is_empty() == stages.is_empty() && s.iter().all(|b| stages.contains(b));
        if !sources(g, at).is_some_and(|s| fits(&s)) {
            continue;
        }
        let Some(new) = span(g, buffer, at, bytes) else {
            continue;
        };
        match out
            .iter_mut()
            .find(|s| s.at.buffer == buffer && s.at.terms == new.at.terms)
        {
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

/// Returns whether a span is aligned, within the length limits, and mostly read.
fn is_worth_it(g: &Graph, s: &Span) -> bool {
    let length = s.at.bytes;
    let even =
        s.at.terms
            .iter()
            .map(|t| t.1)
            .chain([s.at.from, length])
            .all(|x| x % BYTES_OF_STEP == 0);
    let packed = matches!(g[s.at.buffer].arg, Arg::Packed(..));
    // Output of earlier kernels is in L2 already, unless the span is part of a large buffer.
    let large = packed || length >= MIN_BYTES_OF_SPAN && !s.at.terms.is_empty();
    // The bounds of a minimum or maximum are those of its operands, and may exceed the buffer.
    let inside = packed || length <= bytes_of(g, s.at.buffer);
    even && large && inside && length <= MAX_BYTES_OF_SPAN && 2 * s.read >= length
}

/// Returns the bytes of an unpacked buffer, with every variable at its maximum.
fn bytes_of(g: &Graph, buffer: Id) -> i64 {
    g[buffer]
        .src
        .iter()
        .map(|&dim| g.max_of(dim))
        .product::<i64>()
        * g.unit_bytes(buffer)
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
    let ranges: FxHashSet<Id> = moving
        .terms
        .iter()
        .flat_map(|&(t, _)| g.free_ranges(t).to_vec())
        .collect();
    let times: i64 = ranges.iter().map(|&r| g.max_of(g[r].src[0])).product();
    let at = SpanPrefetch {
        buffer,
        loops,
        terms,
        from: low * unit,
        bytes: (high - low) * unit + bytes,
    };
    Some(Span {
        at,
        read: times.saturating_mul(bytes),
    })
}
