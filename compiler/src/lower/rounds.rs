//! A loop that the nests of a workgroup share (`RangeKind::Fused`): nests that fill stages for each of its iterations, and the last one, which adds up what is in them. Their
//! loops are fused into one, and a stage is contracted to a single iteration: it is filled anew in each, between barriers. So a sum over a long cache keeps nothing of
//! what it is made of.

use super::code::{Statement, end_of_block};
use super::copies_ahead::without_repeated;
use super::threads::ThreadIndex;
use crate::nest::{Nest, replaced};
use gristmill_uop::{Graph, Id, Node, Op, RangeKind};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::smallvec;

/// The loop in each of whose iterations a nest fills a stage anew, if it is such a nest.
pub fn filled_in(g: &Graph, nest: Id) -> Option<Id> {
    let is_stage = g[g[nest].src[0]].op == Op::Local;
    g[nest].src[3..].iter().copied().find(|&r| is_stage && g.range_kind(r) == Some(RangeKind::Fused))
}

/// Nests whose stages have one iteration of the loop that nests share: as many elements as one is apart from the next.
pub fn contracted(g: &mut Graph, nests: Vec<Id>) -> Vec<Id> {
    let mut stages: FxHashMap<Id, (Id, Id)> = FxHashMap::default();
    for &nest in &nests {
        let Some(r) = filled_in(g, nest) else { continue };
        let Nest { buffer, offset, .. } = Nest::of(g, nest);
        let of_one = g.linear(offset).coefficient(r);
        let elements = g.int(of_one);
        let (dtype, arg) = (g[buffer].dtype, g[buffer].arg.clone());
        let new = g.intern(Node { op: Op::Local, dtype, src: smallvec![elements], arg });
        stages.insert(buffer, (new, r));
    }
    if stages.is_empty() {
        return nests;
    }
    let zero = g.int(0);
    let first = |g: &mut Graph, offset: Id, r: Id| g.substitute(offset, &mut FxHashMap::from_iter([(r, zero)]));
    let contract = |nest: Id| {
        let mut n = Nest::of(g, nest);
        n.value = replaced(g, n.value, |g, id| {
            let (new, r) = *stages.get(g[id].src.first()?).filter(|_| g[id].op == Op::Load)?;
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

/// A nest that fills a stage in each iteration: how its threads are counted, and its statements.
pub struct Filled {
    pub threads: Vec<ThreadIndex>,
    pub statements: Vec<Statement>,
}

/// The statements of the nest that has the loop, with those of nests before it at the beginning of each iteration, and barriers between what threads write to a stage
/// and what others read.
pub fn fused(g: &Graph, statements: Vec<Statement>, before: &[Filled]) -> Vec<Statement> {
    let mut out = Vec::with_capacity(statements.len());
    let mut at = 0;
    while at < statements.len() {
        let is_shared = |s: &Statement| matches!(s, Statement::Loop { range, .. } if g.range_kind(*range) == Some(RangeKind::Fused));
        out.push(statements[at].clone());
        if is_shared(&statements[at]) {
            let end = at + end_of_block(&statements[at..]);
            let parts = before.iter().map(|f| &f.statements[..]).chain([&statements[at + 1..end]]);
            out.extend(iteration(g, &parts.collect::<Vec<_>>()));
            at = end;
            continue;
        }
        at += 1;
    }
    without_repeated(out)
}

/// An iteration of these parts. What the one before has left is what they wait for, too.
fn iteration(g: &Graph, parts: &[&[Statement]]) -> Vec<Statement> {
    let mut left = Stages::default();
    loop {
        let mut now = left.clone();
        let mut out = Vec::new();
        for part in parts {
            let touched = Stages::touched(g, part);
            if now.meets(&touched) {
                out.push(Statement::Barrier);
                now = Stages::default();
            }
            now.add(&touched);
            out.extend_from_slice(part);
        }
        if now == left {
            return out;
        }
        left = now;
    }
}

/// Stages that threads have read and written since they last waited for one another.
#[derive(Clone, Default, PartialEq)]
pub struct Stages {
    read: FxHashSet<Id>,
    written: FxHashSet<Id>,
}

impl Stages {
    /// Those that these statements touch.
    pub fn touched(g: &Graph, statements: &[Statement]) -> Stages {
        let mut of = Stages::default();
        let local = |buffer: &Id| g[*buffer].op == Op::Local;
        for s in statements {
            match s {
                Statement::Define(id) if g[*id].op == Op::Load => of.read.extend(Some(g[*id].src[0]).filter(local)),
                Statement::Wide(buffer, ..) => of.read.extend(Some(*buffer).filter(local)),
                Statement::Write(buffer, ..) | Statement::WideWrite(buffer, ..) => {
                    of.written.extend(Some(*buffer).filter(local));
                }
                _ => {}
            }
        }
        of
    }
    /// Do threads that have done this have to wait for one another before they do that?
    pub fn meets(&self, next: &Stages) -> bool {
        let both = |a: &FxHashSet<Id>, b: &FxHashSet<Id>| !a.is_disjoint(b);
        both(&self.written, &next.read) || both(&self.read, &next.written) || both(&self.written, &next.written)
    }
    /// The same, where a stage is written part by part.
    pub fn is_mixed(&self, next: &Stages) -> bool {
        let both = |a: &FxHashSet<Id>, b: &FxHashSet<Id>| !a.is_disjoint(b);
        both(&self.written, &next.read) || both(&self.read, &next.written)
    }
    pub fn add(&mut self, more: &Stages) {
        self.read.extend(&more.read);
        self.written.extend(&more.written);
    }
}
