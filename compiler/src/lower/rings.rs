//! Loops whose loads could be copies (`copies_ahead.rs`): what an iteration would take of shared memory, and which threads load the same.

use super::code::{Code, Statement, end_of_block};
use super::threads::ThreadIndex;
use gristmill_uop::fragment::Fragment;
use gristmill_uop::rules::index::gcd;
use gristmill_uop::{Graph, Id, Op, RangeKind};

/// Bytes of a copy.
pub const BYTES: i64 = 16;
/// Registers in which narrow loads are carried over, at most: as many as an H200's thread keeps for words that wait.
const CARRIED: i64 = 32;

/// Loads that become copies, so many elements apart.
pub struct Family {
    /// Their statements, the first in memory first.
    pub statements: Vec<usize>,
    pub apart: i64,
    /// Ranges of threads that their addresses depend on, each with its number of threads, the outermost first; and the others, which load the same.
    pub own: Vec<(Id, i64)>,
    pub others: Vec<(Id, i64)>,
}

/// A loop whose loads become copies.
pub struct Ring {
    /// Its statement, and that of its end.
    pub first: usize,
    pub end: usize,
    pub range: Id,
    pub count: i64,
    pub copied: Vec<Family>,
    /// Statements of loads that are carried over.
    pub carried: Vec<usize>,
}

impl Ring {
    /// Of the loop that begins there, if it is one, in a nest whose threads are counted so.
    fn of(g: &Graph, statements: &[Statement], first: usize, threads: &[(Id, i64)]) -> Option<Ring> {
        let Statement::Loop { range, .. } = statements[first] else { return None };
        let end = first + end_of_block(&statements[first..]);
        let inside = &statements[first + 1..end];
        let count = g.int_value(g[range].src[0]).filter(|&n| n > 1)?;
        let unpacks = inside.iter().any(|s| matches!(s, Statement::Define(id) if g[*id].op == Op::ScaledPair));
        if g.range_kind(range) != Some(RangeKind::Reduce) || inside.iter().any(Statement::opens) || !unpacks {
            return None;
        }
        let mut ring = Ring { first, end, range, count, copied: vec![], carried: vec![] };
        let mut left = CARRIED;
        for (statement, s) in statements.iter().enumerate().take(end).skip(first + 1) {
            let Some(at) = moving(g, s, range) else { continue };
            if matches!(s, Statement::Wide(_, _, bytes, _) if *bytes as i64 == BYTES) {
                let depends = |t: &(Id, i64)| g.free_ranges(at).contains(&t.0);
                let (own, others) = threads.iter().partition(|t| depends(t));
                ring.copied.push(Family { statements: vec![statement], apart: 0, own, others });
            } else if s.words(g) <= left {
                left -= s.words(g);
                ring.carried.push(statement);
            }
        }
        ring.copied = families(g, statements, ring.copied);
        (!ring.copied.is_empty()).then_some(ring)
    }
    /// Bytes of an iteration.
    pub fn bytes(&self) -> i64 {
        self.copied.iter().map(Family::bytes).sum()
    }
    /// Do threads read what others have copied?
    pub fn is_shared(&self) -> bool {
        self.copied.iter().any(|c| !c.others.is_empty())
    }
}

impl Family {
    /// Bytes of one of its loads.
    pub fn bytes_of_one(&self) -> i64 {
        BYTES * self.own.iter().map(|t| t.1).product::<i64>()
    }
    pub fn bytes(&self) -> i64 {
        self.bytes_of_one() * self.statements.len() as i64
    }
    /// Threads that load the same.
    pub fn sharing(&self) -> i64 {
        self.others.iter().map(|t| t.1).product()
    }
}

/// A buffer and the terms of an address in it.
type Base = (Id, Vec<(Id, i64)>);

/// Single loads joined to families, where threads that load the same can divide them.
fn families(g: &Graph, statements: &[Statement], single: Vec<Family>) -> Vec<Family> {
    let place = |f: &Family| match &statements[f.statements[0]] {
        Statement::Wide(buffer, at, ..) => (*buffer, g.linear(*at)),
        s => unreachable!("a wide load: {s:?}"),
    };
    let mut by: Vec<(Base, Vec<(i64, Family)>)> = Vec::new();
    for f in single {
        let (buffer, at) = place(&f);
        let key = (buffer, at.terms.to_vec());
        match by.iter_mut().find(|b| b.0 == key) {
            Some(of) => of.1.push((at.constant, f)),
            None => by.push((key, vec![(at.constant, f)])),
        }
    }
    let mut out = Vec::new();
    for (_, mut of) in by {
        of.sort_by_key(|f| f.0);
        let apart = if of.len() > 1 { of[1].0 - of[0].0 } else { 0 };
        let evenly = of.windows(2).all(|w| w[1].0 - w[0].0 == apart);
        // As many as there are threads that load the same, or as divide these.
        let size = if evenly { gcd(of.len() as i64, of[0].1.sharing()) } else { 1 };
        let mut rest = of.into_iter().map(|f| f.1);
        while let Some(mut first) = rest.next() {
            first.statements.extend(rest.by_ref().take(size as usize - 1).flat_map(|f| f.statements));
            out.push(Family { apart, ..first });
        }
    }
    out
}

/// The address that a statement loads from in memory, where it is another in each iteration of a loop and known before.
fn moving(g: &Graph, s: &Statement, range: Id) -> Option<Id> {
    let (buffer, at) = match s {
        Statement::Wide(buffer, at, ..) => (*buffer, *at),
        Statement::Define(id) if g[*id].op == Op::Load => (g[*id].src[0], g[*id].src[1]),
        _ => return None,
    };
    let moves = |id: Id| g.free_ranges(id).contains(&range);
    let computed = |id: Id| matches!(g[id].op, Op::Load | Op::Reduce | Op::Fold | Op::Acc | Op::Mma | Op::MmaHalf);
    let known = || g.toposort(&[at]).into_iter().all(|n| !(computed(n) && moves(n)));
    (g[buffer].op == Op::Param && moves(at) && known()).then_some(at)
}

/// Ranges of threads, each with its number of them, the outermost first: where each thread has its own indices of them.
fn all_threads(g: &Graph, counted: &[ThreadIndex], threads: i64) -> Option<Vec<(Id, i64)>> {
    let mut sorted: Vec<&ThreadIndex> = counted.iter().collect();
    sorted.sort_by_key(|t| t.stride());
    let (mut all, mut stride) = (vec![], 1);
    for t in sorted {
        let count = g.int_value(g[t.range].src[0]).filter(|_| t.stride() == stride)?;
        all.push((t.range, count));
        stride *= count;
    }
    all.reverse();
    (stride == threads).then_some(all)
}

/// The loops of a body whose loads become copies.
pub fn rings(g: &Graph, statements: &[Statement], threads: i64) -> Vec<Ring> {
    let mut out = Vec::new();
    let mut counted = None;
    for (at, s) in statements.iter().enumerate() {
        match s {
            Statement::Nest { threads: t, .. } => counted = all_threads(g, t, threads),
            Statement::Loop { .. } => {
                out.extend(counted.as_ref().and_then(|threads| Ring::of(g, statements, at, threads)));
            }
            _ => {}
        }
    }
    out
}

/// Is each fragment that these statements unpack multiplied several times?
fn is_reused(g: &Graph, statements: &[Statement]) -> bool {
    let mut products = statements.iter().filter_map(|s| match s {
        Statement::Accumulate(_, value) => Fragment::of_product(&g[*value]),
        _ => None,
    });
    let unpacked = |s: &&Statement| matches!(s, Statement::Define(id) if g[*id].op == Op::ScaledPair);
    let Some(of) = products.next() else { return false };
    let fragments = statements.iter().filter(unpacked).count() as i64 / of.first.registers();
    1 + products.count() as i64 > fragments
}

/// What loops whose loads become copies ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// Bytes of shared memory for each iteration.
    pub bytes: i64,
    /// Iterations of the longest loop.
    pub longest: i64,
    /// Registers for what is carried over.
    pub carried: i64,
    /// Is each fragment that is unpacked multiplied several times?
    pub reused: bool,
}

impl Wanted {
    /// What bodies of which a workgroup runs one ask for.
    pub fn and(self, other: Wanted) -> Wanted {
        let bytes = self.bytes.max(other.bytes);
        let (longest, carried) = (self.longest.max(other.longest), self.carried.max(other.carried));
        Wanted { bytes, longest, carried, reused: self.reused && other.reused }
    }
}

/// What they ask for in a body, if it has any.
pub fn wanted(g: &Graph, body: &Code, threads: i64) -> Option<Wanted> {
    let rings = rings(g, &body.statements, threads);
    let longest = rings.iter().map(|r| r.count).max()?;
    let carried = |r: &Ring| r.carried.iter().map(|&at| body.statements[at].words(g)).sum();
    let carried = rings.iter().map(carried).max().unwrap_or(0);
    let reused = rings.iter().all(|r| is_reused(g, &body.statements[r.first..r.end]));
    Some(Wanted { bytes: rings.iter().map(Ring::bytes).sum(), longest, carried, reused })
}
