//! Fuses the loops of a workgroup's nests that share a range (`RangeKind::Fused`): nests that fill
//! stages for each iteration, and the last nest, which reduces over them.
//!
//! Each stage is contracted to a single iteration: it is refilled in each, between barriers. A
//! reduction over a long KV cache thus materialises none of its terms.

use crate::ir::nest::{Nest, replaced};
use crate::lower::linear_ir::threads::ThreadIndex;
use crate::lower::linear_ir::{Statement, end_of_block};
use crate::lower::memory::pipeline::multistage::without_repeated;
use crate::lower::sync::barriers::{Pending, Touched};
use gristmill_uop::{Graph, Id, Node, Op, RangeKind};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::smallvec;

/// Returns the shared loop of a nest that refills a stage in each iteration;
/// `None` for other nests.
pub fn filled_in(g: &Graph, nest: Id) -> Option<Id> {
    let is_stage = g[g[nest].src[0]].op == Op::Local;
    g[nest].src[3..]
        .iter()
        .copied()
        .find(|&r| is_stage && g.range_kind(r) == Some(RangeKind::Fused))
}

/// Contracts the stages filled in a shared loop to one iteration: a stage gets as many elements as
/// the stride of the loop.
pub fn contracted(g: &mut Graph, nests: Vec<Id>) -> Vec<Id> {
    let mut stages: FxHashMap<Id, (Id, Id)> = FxHashMap::default();
    for &nest in &nests {
        let Some(r) = filled_in(g, nest) else {
            continue;
        };
        let Nest { buffer, offset, .. } = Nest::from_store(g, nest);
        let of_one = g.linear(offset).coefficient(r);
        let elements = g.int(of_one);
        let (dtype, arg) = (g[buffer].dtype, g[buffer].arg.clone());
        let new = g.intern(Node {
            op: Op::Local,
            dtype,
            src: smallvec![elements],
            arg,
        });
        stages.insert(buffer, (new, r));
    }
    if stages.is_empty() {
        return nests;
    }
    let zero = g.int(0);
    let first = |g: &mut Graph, offset: Id, r: Id| {
        g.substitute(offset, &mut FxHashMap::from_iter([(r, zero)]))
    };
    let contract = |nest: Id| {
        let mut n = Nest::from_store(g, nest);
        n.value = replaced(g, n.value, |g, id| {
            let (new, r) = *stages
                .get(g[id].src.first()?)
                .filter(|_| g[id].op == Op::Load)?;
            let (at, dtype) = (g[id].src[1], g[id].dtype);
            let at = first(g, at, r);
            Some(g.load(new, at, dtype))
        });
        if let Some(&(new, r)) = stages.get(&n.buffer) {
            n.buffer = new;
            n.offset = first(g, n.offset, r);
        }
        n.store(g)
    };
    nests.into_iter().map(contract).collect()
}

/// Returns whether these statements contain the shared loop.
pub fn has_loop(g: &Graph, statements: &[Statement]) -> bool {
    statements.iter().any(|s| is_loop(g, s))
}

/// Returns whether the statement begins the shared loop.
pub fn is_loop(g: &Graph, s: &Statement) -> bool {
    matches!(s, Statement::Loop { range, .. } if g.range_kind(*range) == Some(RangeKind::Fused))
}

/// A nest that fills a stage in each iteration, or that contains the loop: its stage,
/// thread indices and statements.
pub struct Filled {
    pub stage: Id,
    pub threads: Vec<ThreadIndex>,
    pub statements: Vec<Statement>,
}

/// Fuses preceding nests into the loop of the last one: their statements run at the start of each
/// iteration. Inserts barriers between writes to a stage and reads by other threads, also after the
/// loop and for repeated runs of the loop.
pub fn fused(g: &Graph, statements: Vec<Statement>, before: &[Filled]) -> Vec<Statement> {
    let mut out = Vec::with_capacity(statements.len());
    let mut pending = Pending::default();
    let mut at = 0;
    while at < statements.len() {
        let s = &statements[at];
        if is_loop(g, s) {
            let end = at + end_of_block(&statements[at..]);
            let (first, last) = tiles_of_memory(g, &statements[at + 1..end]);
            let filled = before.iter().map(|f| &f.statements[..]);
            let parts = [&first[..]].into_iter().chain(filled).chain([&last[..]]);
            out.push(s.clone());
            out.extend(iteration(g, &parts.collect::<Vec<_>>(), &mut pending));
            out.push(Statement::End);
            at = end + 1;
            continue;
        }
        let touched = Touched::by(g, std::slice::from_ref(s));
        pending.wait_before(&touched, true, &mut out);
        pending.after(touched);
        out.push(s.clone());
        at += 1;
    }
    without_repeated(out)
}

/// Splits an iteration's statements into loads of MMA tiles from memory, with their addresses, and
/// the others. The former need no stage.
fn tiles_of_memory(g: &Graph, statements: &[Statement]) -> (Vec<Statement>, Vec<Statement>) {
    let is_tile = |id: Id| g[id].op == Op::TileLoad && g[g[id].src[0]].op == Op::Param;
    let tiles: Vec<Id> = statements
        .iter()
        .filter_map(|s| {
            if let Statement::Define(id) = s {
                Some(*id)
            } else {
                None
            }
        })
        .filter(|&id| is_tile(id))
        .collect();
    let needed: FxHashSet<Id> = g.toposort(&tiles).into_iter().collect();
    statements
        .iter()
        .cloned()
        .partition(|s| matches!(s, Statement::Define(id) if needed.contains(id)))
}

/// Emits an iteration with these parts. Barriers also cover accesses pending before the loop and
/// from the previous iteration; iterates to a fixed point.
fn iteration(g: &Graph, parts: &[&[Statement]], pending: &mut Pending) -> Vec<Statement> {
    loop {
        let mut now = pending.clone();
        let mut out = Vec::new();
        for part in parts {
            let touched = Touched::by(g, part);
            now.wait_before(&touched, true, &mut out);
            now.after(touched);
            out.extend_from_slice(part);
        }
        let mut both = pending.clone();
        both.add(now.clone());
        if both == *pending {
            *pending = now;
            return out;
        }
        *pending = both;
    }
}
