//! Loads at addresses that a workgroup knows from the beginning, before all nests: of weights before the kernels before this one have ended, of other memory as soon
//! as they have. Nests wait for one another at barriers; what the last of them multiplies is in registers then when its turn comes, and no load behind all that the
//! others had to wait for. Of loads in loops none are moved.
//!
//! Spans of weights are asked for all the same (`lower/memory/prefetch/span.rs`): what is asked for is in the second-level cache before threads have room for it.
//!
//! How many words a thread may hold meanwhile the launch's plan says (`propose/launch.rs`).

use crate::lower::linear_ir::threads::ThreadIndex;
use crate::lower::linear_ir::{Statement, end_of_block};
use crate::lower::pressure::products;
use crate::lower::sync::dependent_launch::{Turn, wait_for_predecessors};
use gristmill_uop::launch::Dependents;
use gristmill_uop::op::Class;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind};
use rustc_hash::{FxHashMap, FxHashSet};
use std::ops::Range;

/// `statements`, nests and what stands between them, with loads of at most so many words before the nests, beside those of the first.
pub fn early_loads(g: &Graph, statements: Vec<Statement>, words: i64) -> Vec<Statement> {
    let Some((Hoist { moved, defined, wait, first, .. }, _)) = found(g, &statements, words) else { return statements };
    let [mut before, mut behind] = moved.map(Moved::into_statements);
    let mut out = Vec::with_capacity(statements.len() + 2);
    for (at, s) in statements.into_iter().enumerate() {
        if at == wait {
            out.append(&mut before);
        }
        if at == first {
            out.append(&mut behind);
        }
        let known = at > wait && defined_by(&s).next().is_some_and(|id| defined.contains_key(&id));
        out.extend((!known).then_some(s));
    }
    out
}

/// Words that would be loaded before these nests, of at most so many.
pub fn words_hoisted(g: &Graph, nests: &[Statement], words: i64) -> i64 {
    let waiting = wait_for_predecessors(nests.to_vec(), None, &Turn::new(Dependents::End), None);
    found(g, &waiting, words).map_or(0, |(_, words)| words)
}

/// What stands before the nests, and its words beside the first nest's. Where matrices are multiplied nothing does, as their tiles take what registers there are
/// (Youtu, 512 tokens on an H200: 46,100 tokens a second for 49,800).
fn found<'a>(g: &'a Graph, statements: &'a [Statement], words: i64) -> Option<(Hoist<'a>, i64)> {
    let wait = statements.iter().position(|s| *s == Statement::DependencyWait)?;
    let nests = nests(statements, wait);
    let [first, others @ ..] = &nests[..] else { return None };
    if words <= 0 || products(g, statements) {
        return None;
    }
    let mut hoist = Hoist::new(g, statements, wait, first.start);
    let mut left = words;
    for nest in &nests {
        hoist.nest(nest, Place::BeforeWait, &mut left);
    }
    // Memory answers in the order in which it was asked: what tells an address would come later, and the first nest's loads are the first.
    let mut later = left;
    hoist.clone().behind_wait(others, &mut later);
    if later < left && !tell_addresses(g, statements) {
        let mut any = i64::MAX;
        hoist.nest(first, Place::BehindWait, &mut any);
        hoist.behind_wait(others, &mut left);
    }
    Some((hoist, words - left))
}

/// The nests behind the wait that are run in any case: where their statements are, from the one that opens them to its end.
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

/// Is an address in memory read from a stage?
fn tell_addresses(g: &Graph, statements: &[Statement]) -> bool {
    let of_stage = |id: Id| g.any(id, |_, n| n.op == Op::Load && g[n.src[0]].op == Op::Local);
    statements.iter().any(|s| match s {
        Statement::Define(id) if g[*id].op == Op::Load && g[g[*id].src[0]].op == Op::Param => of_stage(g[*id].src[1]),
        Statement::Wide(buffer, at, ..) if g[*buffer].op == Op::Param => of_stage(*at),
        _ => false,
    })
}

/// The values that a statement defines, if it does nothing else.
fn defined_by(s: &Statement) -> impl Iterator<Item = Id> + '_ {
    let (one, parts): (Option<Id>, &[(Id, usize)]) = match s {
        Statement::Define(id) => (Some(*id), &[]),
        Statement::Wide(_, _, _, parts) => (None, parts),
        _ => (None, &[]),
    };
    one.into_iter().chain(parts.iter().map(|p| p.0))
}

/// Where a value can be computed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Place {
    /// Before the kernels before this one have ended: no step writes what it is made of.
    BeforeWait,
    /// Behind them, before all nests.
    BehindWait,
}

/// What stands at one place.
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
    /// The wait for predecessors, and the first nest behind it.
    wait: usize,
    first: usize,
    /// Buffers that the body writes.
    written: FxHashSet<Id>,
    /// Values that several nests define, by wide loads or in threads that may not be the same.
    repeated: FxHashSet<Id>,
    /// By place.
    moved: [Moved; 2],
    /// Values that are defined there.
    defined: FxHashMap<Id, Place>,
}

/// Statements of a nest, each with the first place where it can stand.
type Needed = Vec<(usize, Place)>;

/// The statements of a nest that stand in none of its loops, and how its threads are counted.
struct Straight<'a> {
    threads: &'a [ThreadIndex],
    statements: Vec<usize>,
    /// Which of them define a value.
    of: FxHashMap<Id, usize>,
}

impl<'a> Hoist<'a> {
    fn new(g: &'a Graph, statements: &'a [Statement], wait: usize, first: usize) -> Hoist<'a> {
        let written = |s: &Statement| match s {
            Statement::Nest { buffer, .. } | Statement::Write(buffer, ..) | Statement::WideWrite(buffer, ..) => {
                Some(*buffer)
            }
            Statement::Add(addition) => Some(addition.buffer),
            _ => None,
        };
        let written = statements.iter().filter_map(written).collect();
        let (moved, defined) = Default::default();
        Hoist { g, statements, wait, first, written, repeated: repeated(g, statements), moved, defined }
    }
    /// Moves what these nests load behind the wait.
    fn behind_wait(&mut self, nests: &[Range<usize>], left: &mut i64) {
        nests.iter().for_each(|nest| self.nest(nest, Place::BehindWait, left));
    }
    /// Moves what a nest loads outside its loops to that place, as far as it can be computed there, and as many words as are left.
    fn nest(&mut self, nest: &Range<usize>, place: Place, left: &mut i64) {
        let Some(nest) = Straight::from_nest(self.statements, nest) else { return };
        for &at in &nest.statements {
            let s = &self.statements[at];
            let words = s.words(self.g);
            let Some(value) = defined_by(s).next().filter(|_| (1..=*left).contains(&words)) else { continue };
            let mut needed = Needed::new();
            let fits = self.place(value, &nest, &mut needed).is_some_and(|of| of <= place);
            if !fits || needed.is_empty() || !self.count(nest.threads, place) {
                continue;
            }
            *left -= words;
            for (at, _) in needed {
                self.moved[place as usize].statements.push(self.statements[at].clone());
                self.defined.extend(defined_by(&self.statements[at]).map(|id| (id, place)));
            }
        }
    }
    /// Counts a nest's threads at that place; not if another nest counts a range otherwise.
    fn count(&mut self, threads: &[ThreadIndex], place: Place) -> bool {
        let known = |t: &ThreadIndex| self.moved.iter().flat_map(|m| &m.threads).find(|x| x.range == t.range);
        if threads.iter().any(|t| known(t).is_some_and(|x| x != t)) {
            return false;
        }
        let new: Vec<ThreadIndex> = threads.iter().filter(|t| known(t).is_none()).copied().collect();
        self.moved[place as usize].threads.extend(new);
        true
    }
    /// The first place where a value can be computed, if any; and the nest's statements that this takes, in their order.
    fn place(&self, id: Id, nest: &Straight, needed: &mut Needed) -> Option<Place> {
        let g = self.g;
        match g[id].op {
            _ if let Some(place) = self.defined.get(&id) => return Some(*place),
            Op::Const | Op::Var if g[id].dtype.lanes == 1 => return Some(Place::BeforeWait),
            Op::Range => {
                let known = g.range_kind(id) == Some(RangeKind::Global) || nest.threads.iter().any(|t| t.range == id);
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
    /// From where on a buffer can be read.
    fn readable(&self, buffer: Id) -> Option<Place> {
        let node = &self.g[buffer];
        let memory = node.op == Op::Param && !self.written.contains(&buffer);
        // What is packed is a weight, the same for every step.
        memory.then_some(if matches!(node.arg, Arg::Packed(..)) { Place::BeforeWait } else { Place::BehindWait })
    }
}

impl<'a> Straight<'a> {
    fn from_nest(all: &'a [Statement], nest: &Range<usize>) -> Option<Straight<'a>> {
        let Statement::Nest { threads, .. } = &all[nest.start] else { return None };
        let (mut statements, mut at) = (Vec::new(), nest.start + 1);
        while at < nest.end {
            let end = at + end_of_block(&all[at..]);
            statements.extend((end == at).then_some(at));
            at = end + 1;
        }
        let of = statements.iter().flat_map(|&at| defined_by(&all[at]).map(move |id| (id, at))).collect();
        Some(Straight { threads, statements, of })
    }
}

/// Values that are defined more than once, where one definition cannot stand for all: parts of wide loads, and what threads may be counted otherwise for.
fn repeated(g: &Graph, statements: &[Statement]) -> FxHashSet<Id> {
    let of_threads = |id: Id| g.free_ranges(id).iter().any(|&r| g.range_kind(r) != Some(RangeKind::Global));
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
