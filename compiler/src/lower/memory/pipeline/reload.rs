//! Software pipelining of stages that a shared loop refills by asynchronous copies alone
//! (`loop_fusion.rs`).
//!
//! Such stages hold rows of keys and values, for example. A stage is refilled while threads
//! multiply, as soon as all threads have read its previous contents. A stage's copies follow the
//! first barrier after its last reader. If that barrier is in the same iteration, the copies are
//! those of the next iteration, and the first iteration's copies precede the loop; if it is the
//! next iteration's first barrier, they are that iteration's own. The copies of each stage form a
//! group, and readers wait for that group but not for later ones.

use super::multistage::{known, without_repeated, without_unused};
use crate::lower::linear_ir::{Statement, define, end_of_block};
use crate::lower::loops::loop_fusion;
use crate::lower::mma::stage_products::OfStages;
use crate::lower::sync::barriers::Touched;
use gristmill_uop::{Graph, Id, Op};
use rustc_hash::{FxHashMap, FxHashSet};

/// Moves the copies of the shared loop to the earliest point in its iterations.
pub fn reload(g: &mut Graph, statements: Vec<Statement>) -> Vec<Statement> {
    let Some(first) = statements.iter().position(|s| loop_fusion::is_loop(g, s)) else {
        return statements;
    };
    let end = first + end_of_block(&statements[first..]);
    let inside = &statements[first + 1..end];
    if !inside
        .iter()
        .any(|s| matches!(s, Statement::AsyncCopy { .. }))
    {
        return statements;
    }
    let Statement::Loop { range, .. } = statements[first] else {
        unreachable!("a loop: {:?}", statements[first])
    };
    let with_barriers = released(g, inside);
    let Some(plan) = Streams::from_loop(g, &with_barriers, range) else {
        let mut out = statements[..=first].to_vec();
        out.extend(waited(inside));
        out.extend_from_slice(&statements[end..]);
        return out;
    };
    let mut writer = Writer {
        g,
        range,
        out: statements[..first].to_vec(),
    };
    writer.rewrite(&plan, &statements[first], &with_barriers);
    let mut out = writer.out;
    out.extend_from_slice(&statements[end..]);
    without_unused(g, without_repeated(out))
}

/// Returns the stages that are copied to, in order of their first copy.
fn copied(inside: &[Statement]) -> Vec<Id> {
    let mut all = Vec::new();
    for s in inside {
        if let Statement::AsyncCopy { to, .. } = s
            && !all.contains(&to[0])
        {
            all.push(to[0]);
        }
    }
    all
}

/// Inserts a wait for pending copies before the next barrier.
fn waited(inside: &[Statement]) -> Vec<Statement> {
    let mut out = Vec::with_capacity(inside.len());
    let mut under_way = false;
    for s in inside {
        under_way |= matches!(s, Statement::AsyncCopy { .. });
        if *s == Statement::Barrier && std::mem::take(&mut under_way) {
            out.push(Statement::AsyncWait(0));
        }
        out.push(s.clone());
    }
    out
}

/// A stage that copies fill.
struct Stream {
    /// First and last index of each statement, or block, that copies.
    copies: Vec<(usize, usize)>,
    /// Index of the barrier after which the copies start.
    begin: usize,
    /// Whether the copies are those of the next iteration.
    next: bool,
    /// Index of the barrier before the first reader.
    arrival: usize,
}

/// The copied stages of a loop, in the order in which their copies start.
struct Streams {
    all: Vec<Stream>,
    /// Whether threads fill other operand stages of asynchronous MMA products themselves, which
    /// need fences; copied ones do not.
    shown: bool,
}

/// Returns the first and last index of each top-level statement or block of an iteration.
fn items(inside: &[Statement]) -> Vec<(usize, usize)> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < inside.len() {
        let end = at + end_of_block(&inside[at..]);
        out.push((at, end));
        at = end + 1;
    }
    out
}

/// Stage accesses of an iteration.
struct Iteration {
    barriers: Vec<usize>,
    /// Statements or blocks, with the stages that each touches.
    touched: Vec<((usize, usize), Touched)>,
    /// Index of the last fence; all copies in flight are also waited for there.
    shown: Option<usize>,
}

impl Stream {
    /// Returns the stream of a stage, if only movable copies fill it, with barriers between its
    /// readers and its copies.
    fn from_stage(
        g: &Graph,
        inside: &[Statement],
        of: &Iteration,
        range: Id,
        stage: Id,
    ) -> Option<Stream> {
        let fill: Vec<&((usize, usize), Touched)> = of
            .touched
            .iter()
            .filter(|t| t.1.copied.contains(&stage))
            .collect();
        let alone = |t: &Touched| t.copied.len() == 1 && t.written.is_empty() && t.read.is_empty();
        let copies: Vec<(usize, usize)> = fill.iter().map(|t| t.0).collect();
        let mut readers = of
            .touched
            .iter()
            .filter(|t| t.1.read.contains(&stage))
            .map(|t| t.0);
        let first = readers.next()?;
        let (first, last) = (first.0, readers.next_back().unwrap_or(first).1);
        let moves = copies
            .iter()
            .all(|&(from, to)| to < first && can_move(g, &inside[from..=to], range));
        if !moves
            || !fill.iter().all(|t| alone(&t.1))
            || of.touched.iter().any(|t| t.1.written.contains(&stage))
        {
            return None;
        }
        let arrival = *of.barriers.iter().rev().find(|&&b| b < first)?;
        let shown = of.shown.filter(|&at| of.barriers.iter().any(|&b| b > at));
        let after = shown.map_or(last, |at| at.max(last));
        let later = of.barriers.iter().copied().find(|&b| b > after);
        let begin = later.or_else(|| of.barriers.first().copied().filter(|&b| b < arrival))?;
        Some(Stream {
            copies,
            begin,
            next: later.is_some(),
            arrival,
        })
    }
}

impl Streams {
    /// Returns the streams of a loop; `None` unless every copied stage has one.
    fn from_loop(g: &Graph, inside: &[Statement], range: Id) -> Option<Streams> {
        let items = items(inside);
        let barriers = items
            .iter()
            .map(|i| i.0)
            .filter(|&at| inside[at] == Statement::Barrier)
            .collect();
        let touched: Vec<((usize, usize), Touched)> = items
            .into_iter()
            .map(|(from, to)| ((from, to), Touched::by(g, &inside[from..=to])))
            .collect();
        let stages = copied(inside);
        let shown = inside
            .iter()
            .filter_map(|s| OfStages::from_statement(g, s))
            .any(|product| !stages.contains(&product.columns));
        let last = inside.iter().rposition(|s| *s == Statement::WritesShown);
        let iteration = Iteration {
            barriers,
            touched,
            shown: last.filter(|_| shown),
        };
        let of = |stage: Id| Stream::from_stage(g, inside, &iteration, range, stage);
        let mut all: Vec<Stream> = stages.into_iter().map(of).collect::<Option<_>>()?;
        all.sort_by_key(|s| s.begin);
        Some(Streams { all, shown })
    }
    /// Returns how many copy groups have been committed after a stage's own group when the
    /// stage is waited for.
    fn groups_behind(&self, stream: usize) -> i64 {
        let Stream { next, arrival, .. } = self.all[stream];
        let after = self.all[stream + 1..].iter();
        let before = |s: &&Stream| s.begin < arrival;
        let count = if next {
            after.count() + self.all.iter().filter(before).count()
        } else {
            after.filter(before).count()
        };
        count as i64
    }
}

/// Returns whether these are unconditional copies with addresses computable in any iteration.
fn can_move(g: &Graph, copies: &[Statement], range: Id) -> bool {
    let known = |id: Id| {
        g.toposort(&[id]).into_iter().all(|n| match g[n].op {
            Op::Load => g[g[n].src[0]].op == Op::Param,
            Op::Reduce | Op::Fold | Op::Acc => !g.free_ranges(n).contains(&range),
            _ => true,
        })
    };
    copies.iter().all(|s| match s {
        Statement::AsyncCopy { to, from, when, .. } => {
            when.is_none() && known(to[1]) && known(from[1])
        }
        s => matches!(
            s,
            Statement::Loop { .. } | Statement::End | Statement::Define(_) | Statement::Wide(..)
        ),
    })
}

struct Writer<'a> {
    g: &'a mut Graph,
    range: Id,
    out: Vec<Statement>,
}

/// A copy to be emitted after a statement.
struct Due {
    at: usize,
    copy: Statement,
    /// Whether it is the last copy of its stage.
    last: bool,
}

impl Writer<'_> {
    fn rewrite(&mut self, streams: &Streams, open: &Statement, inside: &[Statement]) {
        let (zero, one) = (self.g.int(0), self.g.int(1));
        let last = self.g[self.range].src[0];
        let next = self.g.add(self.range, one);
        let is_one = self.g.lt(next, last);
        for stream in &streams.all {
            if stream.next {
                for copy in self.copies(stream, inside, zero, None) {
                    self.write(copy);
                }
            }
            self.out.push(Statement::AsyncGroup);
        }
        self.out.push(open.clone());
        let mut due: Vec<Due> = Vec::new();
        for stream in &streams.all {
            let copies = match stream.next {
                true => self.copies(stream, inside, next, Some(is_one)),
                false => self.copies(stream, inside, self.range, None),
            };
            let (places, count) = (places(self.g, inside, stream.begin), copies.len());
            let place = |i: usize| places[i * places.len() / count];
            due.extend(copies.into_iter().enumerate().map(|(i, copy)| Due {
                at: place(i),
                copy,
                last: i + 1 == count,
            }));
        }
        let moved = |at: usize| {
            streams
                .all
                .iter()
                .any(|s| s.copies.iter().any(|c| (c.0..=c.1).contains(&at)))
        };
        for (at, s) in inside.iter().enumerate() {
            if *s == Statement::Barrier {
                let here = (0..streams.all.len()).filter(|&i| streams.all[i].arrival == at);
                self.out.extend(
                    here.map(|i| streams.groups_behind(i))
                        .min()
                        .map(Statement::AsyncWait),
                );
            }
            let left_out = moved(at) || *s == Statement::WritesShown && !streams.shown;
            self.out.extend((!left_out).then(|| s.clone()));
            for Due { copy, last, .. } in due.extract_if(.., |due| due.at == at) {
                self.write(copy);
                self.out.extend(last.then_some(Statement::AsyncGroup));
            }
        }
        debug_assert!(due.is_empty(), "{} copies are made nowhere", due.len());
    }
    /// Returns a stage's copies of an iteration, unrolled, under the condition `when`.
    fn copies(
        &mut self,
        stream: &Stream,
        inside: &[Statement],
        step: Id,
        when: Option<Id>,
    ) -> Vec<Statement> {
        let mut out = Vec::new();
        for &(from, to) in &stream.copies {
            let block = &inside[from..=to];
            let loops = block.iter().filter_map(|s| match s {
                Statement::Loop { range, .. } => {
                    Some((*range, self.g.max_of(self.g[*range].src[0])))
                }
                _ => None,
            });
            let mut turns = vec![FxHashMap::from_iter([(self.range, step)])];
            for (range, count) in loops.collect::<Vec<_>>() {
                let numbers: Vec<Id> = (0..count).map(|i| self.g.int(i)).collect();
                let with = |turn: FxHashMap<Id, Id>| {
                    numbers.iter().map(move |&i| {
                        turn.iter()
                            .map(|t| (*t.0, *t.1))
                            .chain([(range, i)])
                            .collect()
                    })
                };
                turns = turns.into_iter().flat_map(with).collect();
            }
            for s in block {
                let Statement::AsyncCopy {
                    to,
                    from,
                    plus,
                    bytes,
                    ..
                } = s
                else {
                    continue;
                };
                for turn in &turns {
                    let [to, from] = [to, from]
                        .map(|&[buffer, at]| [buffer, self.g.substitute(at, &mut turn.clone())]);
                    out.push(Statement::AsyncCopy {
                        to,
                        from,
                        plus: *plus,
                        bytes: *bytes,
                        when,
                    });
                }
            }
        }
        out
    }
    /// Emits a copy with the values that it needs.
    fn write(&mut self, copy: Statement) {
        let mut known = known(self.g, &self.out);
        copy.uses(self.g, &mut |id| {
            define(self.g, id, &mut known, &mut self.out)
        });
        self.out.push(copy);
    }
}

/// Returns the statements after which copies that start at a barrier can be emitted: asynchronous
/// MMA products, which overlap them, or else all up to the next barrier.
fn places(g: &Graph, inside: &[Statement], begin: usize) -> Vec<usize> {
    let (mut all, mut of_products) = (vec![begin], vec![]);
    for (from, to) in items(inside).into_iter().filter(|i| i.0 > begin) {
        if inside[from] == Statement::Barrier {
            break;
        }
        all.push(to);
        if inside[from..=to]
            .iter()
            .any(|s| OfStages::from_statement(g, s).is_some())
        {
            of_products.push(to);
        }
    }
    if of_products.is_empty() {
        all
    } else {
        of_products
    }
}

/// Inserts a barrier after the last reader of each copied stage, so that its next copies can start.
/// Only for stages with a later barrier in the iteration.
fn released(g: &Graph, inside: &[Statement]) -> Vec<Statement> {
    let items = items(inside);
    let reads = |&(from, to): &(usize, usize), stage: &Id| {
        Touched::by(g, &inside[from..=to]).read.contains(stage)
    };
    let behind: FxHashSet<usize> = copied(inside)
        .into_iter()
        .filter_map(|stage| {
            let last = items.iter().rposition(|item| reads(item, &stage))?;
            let ended = items[last + 1..]
                .iter()
                .take_while(|i| matches!(inside[i.0], Statement::ProductsEnded(_)))
                .count();
            let rest = &items[last + 1 + ended..];
            // After the last barrier the next iteration starts, which has a barrier of its own.
            rest.iter()
                .any(|i| inside[i.0] == Statement::Barrier)
                .then(|| items[last + ended].1)
        })
        .collect();
    let mut out = Vec::with_capacity(inside.len() + behind.len());
    for (at, s) in inside.iter().enumerate() {
        out.push(s.clone());
        out.extend(behind.contains(&at).then_some(Statement::Barrier));
    }
    out
}
