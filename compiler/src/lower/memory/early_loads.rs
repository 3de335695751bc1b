//! Hoists loads with addresses known at the kernel's start before all nests: loads of weights
//! before the grid-dependency wait (PDL prologue), loads of other memory directly after it.
//!
//! Nests synchronise at barriers. With early loads, the operands of the last nest are already in
//! registers when it starts. Loads in loops are not moved.
//!
//! Weights are prefetched to L2 as well (`lower/memory/prefetch/span.rs`), which starts before
//! threads have registers for the loads.
//!
//! The launch plan limits how many words a thread may hold meanwhile (`propose/launch.rs`).

use crate::lower::linear_ir::threads::ThreadIndex;
use crate::lower::linear_ir::{Statement, end_of_block};
use crate::lower::pressure::products;
use crate::lower::sync::dependent_launch::{Turn, wait_for_predecessors};
use gristmill_uop::launch::Dependents;
use gristmill_uop::op::Class;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind};
use rustc_hash::{FxHashMap, FxHashSet};
use std::ops::Range;

/// Hoists loads of at most `words` words before the nests, in addition to those of the first nest.
pub fn early_loads(g: &Graph, statements: Vec<Statement>, words: i64) -> Vec<Statement> {
    let Some((
        Hoist {
            moved,
            defined,
            wait,
            first,
            ..
        },
        _,
    )) = found(g, &statements, words)
    else {
        return statements;
    };
    let [mut before, mut behind] = moved.map(Moved::into_statements);
    let mut out = Vec::with_capacity(statements.len() + 2);
    for (at, s) in statements.into_iter().enumerate() {
        if at == wait {
            out.append(&mut before);
        }
        if at == first {
            out.append(&mut behind);
        }
        let known = at > wait
            && defined_by(&s)
                .next()
                .is_some_and(|id| defined.contains_key(&id));
        out.extend((!known).then_some(s));
    }
    out
}

/// Returns how many words [`early_loads`] would hoist before these nests, at most `words`.
pub fn words_hoisted(g: &Graph, nests: &[Statement], words: i64) -> i64 {
    let waiting = wait_for_predecessors(nests.to_vec(), None, &Turn::new(Dependents::End), None);
    found(g, &waiting, words).map_or(0, |(_, words)| words)
}

/// Returns what to hoist, and its words besides the first nest's own loads. MMA tiles need the
/// registers, so nothing is hoisted in kernels with MMA products (Youtu, 512 tokens on an H200:
/// 46,100 tok/s with, 49,800 without).
fn found<'a>(g: &'a Graph, statements: &'a [Statement], words: i64) -> Option<(Hoist<'a>, i64)> {
    let wait = statements
        .iter()
        .position(|s| *s == Statement::DependencyWait)?;
    let nests = nests(statements, wait);
    let [first, others @ ..] = &nests[..] else {
        return None;
    };
    if words <= 0 || products(g, statements) {
        return None;
    }
    let mut hoist = Hoist::new(g, statements, wait, first.start);
    let mut left = words;
    for nest in &nests {
        hoist.nest(nest, Place::BeforeWait, &mut left);
    }
    // Memory requests are served in order: hoisted loads would delay loads that feed addresses, and
    // must come after the first nest's own loads.
    let mut later = left;
    hoist.clone().behind_wait(others, &mut later);
    if later < left && !tell_addresses(g, statements) {
        let mut any = i64::MAX;
        hoist.nest(first, Place::BehindWait, &mut any);
        hoist.behind_wait(others, &mut left);
    }
    Some((hoist, words - left))
}

/// Returns the statement ranges of the nests after the wait that run unconditionally.
fn nests(statements: &[Statement], wait: usize) -> Vec<Range<usize>> {
    let mut out = Vec::new();
    let mut at = wait;
    while at < statements.len() {
        let end = at + end_of_block(&statements[at..]);
        out.extend(matches!(statements[at], Statement::Nest { .. }).then_some(at..end));
        at = end + 1;
    }
    out
}

/// Returns whether a memory address is read from a stage.
fn tell_addresses(g: &Graph, statements: &[Statement]) -> bool {
    let of_stage = |id: Id| g.any(id, |_, n| n.op == Op::Load && g[n.src[0]].op == Op::Local);
    statements.iter().any(|s| match s {
        Statement::Define(id) if g[*id].op == Op::Load && g[g[*id].src[0]].op == Op::Param => {
            of_stage(g[*id].src[1])
        }
        Statement::Wide(buffer, at, ..) if g[*buffer].op == Op::Param => of_stage(*at),
        _ => false,
    })
}

/// Returns the values that a statement defines, if it has no other effect.
fn defined_by(s: &Statement) -> impl Iterator<Item = Id> + '_ {
    let (one, parts): (Option<Id>, &[(Id, usize)]) = match s {
        Statement::Define(id) => (Some(*id), &[]),
        Statement::Wide(_, _, _, parts) => (None, parts),
        _ => (None, &[]),
    };
    one.into_iter().chain(parts.iter().map(|p| p.0))
}

/// Position where a value can be computed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Place {
    /// Before the grid-dependency wait: no step writes the memory that it is computed from.
    BeforeWait,
    /// After the grid-dependency wait, before all nests.
    BehindWait,
}

/// Statements hoisted to one position.
#[derive(Clone, Default)]
struct Moved {
    threads: Vec<ThreadIndex>,
    statements: Vec<Statement>,
}

impl Moved {
    fn into_statements(self) -> Vec<Statement> {
        let threads = (!self.threads.is_empty()).then_some(Statement::Threads(self.threads));
        threads.into_iter().chain(self.statements).collect()
    }
}

#[derive(Clone)]
struct Hoist<'a> {
    g: &'a Graph,
    statements: &'a [Statement],
    /// Indices of the grid-dependency wait, and of the first nest after it.
    wait: usize,
    first: usize,
    /// Buffers that the body writes.
    written: FxHashSet<Id>,
    /// Values that several nests define, by wide loads or in threads
    /// with possibly different indices.
    repeated: FxHashSet<Id>,
    /// Hoisted statements, by position.
    moved: [Moved; 2],
    /// Values that are defined at a position.
    defined: FxHashMap<Id, Place>,
}

/// Statements of a nest, each with the earliest position for it.
type Needed = Vec<(usize, Place)>;

/// Statements of a nest that are in none of its loops, and its thread indices.
struct Straight<'a> {
    threads: &'a [ThreadIndex],
    statements: Vec<usize>,
    /// Index of the statement that defines a value.
    of: FxHashMap<Id, usize>,
}

impl<'a> Hoist<'a> {
    fn new(g: &'a Graph, statements: &'a [Statement], wait: usize, first: usize) -> Hoist<'a> {
        let written = |s: &Statement| match s {
            Statement::Nest { buffer, .. }
            | Statement::Write(buffer, ..)
            | Statement::WideWrite(buffer, ..) => Some(*buffer),
            Statement::Add(addition) => Some(addition.buffer),
            _ => None,
        };
        let written = statements.iter().filter_map(written).collect();
        let (moved, defined) = Default::default();
        Hoist {
            g,
            statements,
            wait,
            first,
            written,
            repeated: repeated(g, statements),
            moved,
            defined,
        }
    }
    /// Hoists the loads of these nests to after the wait.
    fn behind_wait(&mut self, nests: &[Range<usize>], left: &mut i64) {
        nests
            .iter()
            .for_each(|nest| self.nest(nest, Place::BehindWait, left));
    }
    /// Hoists loads of a nest to a position, as far as the word budget allows. Loads in loops, or
    /// with operands unknown at the position, stay.
    fn nest(&mut self, nest: &Range<usize>, place: Place, left: &mut i64) {
        let Some(nest) = Straight::from_nest(self.statements, nest) else {
            return;
        };
        for &at in &nest.statements {
            let s = &self.statements[at];
            let words = s.words(self.g);
            let Some(value) = defined_by(s)
                .next()
                .filter(|_| (1..=*left).contains(&words))
            else {
                continue;
            };
            let mut needed = Needed::new();
            let fits = self
                .place(value, &nest, &mut needed)
                .is_some_and(|of| of <= place);
            if !fits || needed.is_empty() || !self.count(nest.threads, place) {
                continue;
            }
            *left -= words;
            for (at, _) in needed {
                self.moved[place as usize]
                    .statements
                    .push(self.statements[at].clone());
                self.defined
                    .extend(defined_by(&self.statements[at]).map(|id| (id, place)));
            }
        }
    }
    /// Declares a nest's thread indices at a position; returns false if another nest
    /// defines a range differently.
    fn count(&mut self, threads: &[ThreadIndex], place: Place) -> bool {
        let known = |t: &ThreadIndex| {
            self.moved
                .iter()
                .flat_map(|m| &m.threads)
                .find(|x| x.range == t.range)
        };
        if threads.iter().any(|t| known(t).is_some_and(|x| x != t)) {
            return false;
        }
        let new: Vec<ThreadIndex> = threads
            .iter()
            .filter(|t| known(t).is_none())
            .copied()
            .collect();
        self.moved[place as usize].threads.extend(new);
        true
    }
    /// Returns the earliest position where a value can be computed; appends the nest's statements
    /// that it needs, in order.
    fn place(&self, id: Id, nest: &Straight, needed: &mut Needed) -> Option<Place> {
        let g = self.g;
        match g[id].op {
            _ if let Some(place) = self.defined.get(&id) => return Some(*place),
            Op::Const | Op::Var if g[id].dtype.lanes == 1 => return Some(Place::BeforeWait),
            Op::Range => {
                let known = g.range_kind(id) == Some(RangeKind::Global)
                    || nest.threads.iter().any(|t| t.range == id);
                return known.then_some(Place::BeforeWait);
            }
            _ => {}
        }
        let at = *nest.of.get(&id)?;
        if let Some(known) = needed.iter().find(|n| n.0 == at) {
            return Some(known.1);
        }
        let (buffer, sources) = match &self.statements[at] {
            Statement::Wide(buffer, address, ..) => (Some(*buffer), std::slice::from_ref(address)),
            _ if g[id].op == Op::Load => (Some(g[id].src[0]), &g[id].src[1..]),
            _ if g[id].op.class() == Class::Elementwise => (None, &g[id].src[..]),
            _ => return None,
        };
        if defined_by(&self.statements[at]).any(|id| self.repeated.contains(&id)) {
            return None;
        }
        let mut place = buffer.map_or(Some(Place::BeforeWait), |buffer| self.readable(buffer))?;
        for &source in sources {
            place = place.max(self.place(source, nest, needed)?);
        }
        needed.push((at, place));
        Some(place)
    }
    /// Returns the earliest position where a buffer can be read.
    fn readable(&self, buffer: Id) -> Option<Place> {
        let node = &self.g[buffer];
        let memory = node.op == Op::Param && !self.written.contains(&buffer);
        // Packed buffers are weights, constant over all steps.
        memory.then_some(if matches!(node.arg, Arg::Packed(..)) {
            Place::BeforeWait
        } else {
            Place::BehindWait
        })
    }
}

impl<'a> Straight<'a> {
    fn from_nest(all: &'a [Statement], nest: &Range<usize>) -> Option<Straight<'a>> {
        let Statement::Nest { threads, .. } = &all[nest.start] else {
            return None;
        };
        let (mut statements, mut at) = (Vec::new(), nest.start + 1);
        while at < nest.end {
            let end = at + end_of_block(&all[at..]);
            statements.extend((end == at).then_some(at));
            at = end + 1;
        }
        let of = statements
            .iter()
            .flat_map(|&at| defined_by(&all[at]).map(move |id| (id, at)))
            .collect();
        Some(Straight {
            threads,
            statements,
            of,
        })
    }
}

/// Returns values with several definitions that cannot share one: parts of wide loads, and values
/// in threads that may be indexed differently.
fn repeated(g: &Graph, statements: &[Statement]) -> FxHashSet<Id> {
    let of_threads = |id: Id| {
        g.free_ranges(id)
            .iter()
            .any(|&r| g.range_kind(r) != Some(RangeKind::Global))
    };
    let mut wide: FxHashMap<Id, bool> = FxHashMap::default();
    let mut out = FxHashSet::default();
    for s in statements {
        let is_wide = matches!(s, Statement::Wide(..));
        for id in defined_by(s) {
            if let Some(before) = wide.insert(id, is_wide)
                && (before || is_wide || of_threads(id))
            {
                out.insert(id);
            }
        }
    }
    out
}
