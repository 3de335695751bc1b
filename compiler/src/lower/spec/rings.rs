//! Checks ring buffers, which copies fill during a loop: data has arrived before it is read, and a
//! barrier separates copies and reads of different threads.

use super::error::{Checked, LinearError};
use crate::lower::linear_ir::{Code, Statement, end_of_block};
use gristmill_uop::{Graph, Id, Op};
use rustc_hash::FxHashMap;

/// State of a ring buffer.
#[derive(Default)]
struct Ring {
    /// Indices of the groups with copies to it.
    groups: Vec<i64>,
    /// Number of those groups that have arrived, and that had arrived at the last barrier.
    arrived: usize,
    met: usize,
    /// Iterations that have read it.
    iterations: usize,
    /// Whether it has been read since the last barrier.
    read: bool,
    /// Whether threads read data that other threads have copied.
    shared: bool,
    /// Whether asynchronous MMA products that read it are in flight.
    under_way: bool,
}

/// Checks that a body waits for its pipelined copies.
pub(super) fn check(g: &Graph, code: &Code) -> Checked {
    let mut at = 0;
    while at < code.statements.len() {
        let end = at + end_of_block(&code.statements[at..]);
        if let Statement::Nest { threads, .. } = &code.statements[at] {
            let all: Vec<Id> = threads.iter().map(|t| t.range).collect();
            let inside = &code.statements[at + 1..end];
            let mut walk = Walk {
                g,
                first: at + 1,
                rings: FxHashMap::default(),
                group: 0,
            };
            for s in inside {
                if let Statement::Copied(ring, place, ..) = s {
                    let own = all.iter().all(|r| g.free_ranges(*place).contains(r));
                    walk.rings.entry(*ring).or_default().shared |= !own;
                }
                if let Some(ring) = columns(g, s) {
                    walk.rings.entry(ring).or_default().shared = true;
                }
            }
            if !walk.rings.is_empty() {
                walk.statements(inside, 0)?;
            }
        }
        at = end.max(at) + 1;
    }
    Ok(())
}

/// Returns the ring buffer from which an asynchronous MMA product reads its columns.
fn columns(g: &Graph, s: &Statement) -> Option<Id> {
    let Statement::Accumulate(_, value) = s else {
        return None;
    };
    let n = &g[*value];
    let buffer = (n.op == Op::MmaShared).then(|| n.src[n.src.len() - 3])?;
    (!g.scalar(buffer).is_half()).then_some(buffer)
}

struct Walk<'a> {
    g: &'a Graph,
    first: usize,
    rings: FxHashMap<Id, Ring>,
    /// Number of groups committed up to now.
    group: i64,
}

impl Walk<'_> {
    /// Walks statements in execution order; loops run twice.
    fn statements(&mut self, all: &[Statement], offset: usize) -> Checked {
        let mut at = 0;
        while at < all.len() {
            let end = at + end_of_block(&all[at..]);
            match &all[at] {
                Statement::Loop { range, .. } => {
                    let once = self
                        .g
                        .int_value(self.g[*range].src[0])
                        .is_some_and(|n| n < 2);
                    for _ in 0..if once { 1 } else { 2 } {
                        self.statements(&all[at + 1..end], offset + at + 1)?;
                        if self.rings.values().any(|r| r.under_way) {
                            let statement = self.first + offset + at;
                            let rule =
                                "products of several warps have ended where an iteration does";
                            return Err(LinearError {
                                rule,
                                statement,
                                node: format!("statement {statement}"),
                            });
                        }
                        self.rings
                            .values_mut()
                            .filter(|r| r.read)
                            .for_each(|r| r.iterations += 1);
                    }
                }
                s => self.statement(s).map_err(|rule| {
                    let statement = self.first + offset + at;
                    LinearError {
                        rule,
                        statement,
                        node: format!("statement {statement}"),
                    }
                })?,
            }
            at = end.max(at) + 1;
        }
        Ok(())
    }
    fn statement(&mut self, s: &Statement) -> Result<(), &'static str> {
        match s {
            Statement::AsyncCopy { to, .. } => {
                let group = self.group;
                let Some(ring) = self.rings.get_mut(&to[0]) else {
                    return Ok(());
                };
                if ring.shared && ring.read {
                    return Err(
                        "a barrier stands between what threads read of a ring and what others copy there",
                    );
                }
                if ring.groups.last() != Some(&group) {
                    ring.groups.push(group);
                }
            }
            Statement::AsyncGroup => self.group += 1,
            Statement::AsyncWait(but) => {
                let before = if *but == 0 {
                    i64::MAX
                } else {
                    self.group - but
                };
                self.rings
                    .values_mut()
                    .for_each(|r| r.arrived = r.groups.iter().filter(|&&n| n < before).count());
            }
            Statement::ProductsEnded(0) => {
                self.rings.values_mut().for_each(|r| r.under_way = false)
            }
            Statement::Barrier => {
                for r in self.rings.values_mut() {
                    (r.met, r.read) = (r.arrived, r.under_way);
                }
            }
            Statement::Accumulate(..) => {
                let Some(ring) = columns(self.g, s) else {
                    return Ok(());
                };
                self.read(ring)?;
                self.rings.entry(ring).or_default().under_way = true;
            }
            Statement::Copied(ring, ..) => self.read(*ring)?,
            _ => {}
        }
        Ok(())
    }
    /// Checks a read of the ring: its data has arrived, and shared data arrived
    /// before the last barrier.
    fn read(&mut self, ring: Id) -> Result<(), &'static str> {
        let Some(ring) = self.rings.get_mut(&ring) else {
            return Ok(());
        };
        if ring.arrived <= ring.iterations {
            return Err("a copy is waited for before its data is read or overwritten");
        }
        if ring.shared && ring.met <= ring.iterations {
            return Err(
                "a barrier stands between what threads copy to a ring and what others read of it",
            );
        }
        ring.read = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::linear_ir::threads::ThreadIndex;
    use gristmill_uop::fragment::WGMMA_16;
    use gristmill_uop::{Arg, Node, Op, RangeKind, Scalar};
    use smallvec::smallvec;

    /// Rule violated by a loop that reads data copied one iteration earlier, shared by
    /// 64 threads or not.
    fn wrong(shared: bool, change: fn(&mut Vec<Statement>)) -> &'static str {
        let mut g = Graph::new();
        let many = g.int(64);
        let (dtype, arg) = (Scalar::U32.one(), Arg::Int(0));
        let ring = g.intern(Node {
            op: Op::Local,
            dtype,
            src: smallvec![many],
            arg,
        });
        with(g, ring, shared, change)
    }

    /// Same, with this ring buffer.
    fn with(
        mut g: Graph,
        ring: Id,
        shared: bool,
        change: impl FnOnce(&mut Vec<Statement>),
    ) -> &'static str {
        let (zero, many, four) = (g.int(0), g.int(64), g.int(4));
        let (thread, step) = (
            g.range(many, 1, RangeKind::Vector),
            g.range(four, 2, RangeKind::Reduce),
        );
        let x = g.param(0, &[], Scalar::F32);
        let at = if shared { zero } else { thread };
        let copy = Statement::AsyncCopy {
            to: [ring, at],
            from: [x, zero],
            plus: [0; 2],
            bytes: 16,
            when: None,
        };
        let index = ThreadIndex {
            range: thread,
            divide: None,
            modulo: Some(64),
        };
        let nest = Statement::Nest {
            buffer: x,
            staged: false,
            globals: vec![],
            threads: vec![index],
        };
        let mut inside = vec![
            copy.clone(),
            Statement::AsyncGroup,
            Statement::Loop {
                range: step,
                step: 1,
                unroll: None,
            },
            Statement::AsyncWait(0),
            Statement::Barrier,
            copy,
            Statement::AsyncGroup,
            Statement::Copied(ring, at, 16, vec![]),
            Statement::End,
        ];
        change(&mut inside);
        let statements = [nest]
            .into_iter()
            .chain(inside)
            .chain([Statement::End])
            .collect();
        check(
            &g,
            &Code {
                statements,
                ..Code::default()
            },
        )
        .map_or_else(|e| e.rule, |()| "nothing")
    }

    #[test]
    fn an_iteration_reads_copies_that_arrived_before_its_barrier() {
        for shared in [false, true] {
            assert_eq!(wrong(shared, |_| ()), "nothing");
            let unwaited = "a copy is waited for before its data is read or overwritten";
            assert_eq!(wrong(shared, |s| drop(s.remove(3))), unwaited);
            // Leaves this iteration's copy in flight, and the next one's.
            assert_eq!(wrong(shared, |s| s[3] = Statement::AsyncWait(1)), unwaited);
        }
        assert_eq!(wrong(false, |s| drop(s.remove(4))), "nothing");
        let met = "a barrier stands between what threads copy to a ring and what others read of it";
        assert_eq!(wrong(true, |s| drop(s.remove(4))), met);
        let again =
            "a barrier stands between what threads read of a ring and what others copy there";
        assert_eq!(wrong(true, |s| s.swap(5, 7)), again);
    }

    #[test]
    fn products_of_several_warps_have_ended_where_their_columns_are_copied_again() {
        let sums = Scalar::F32.one().with_lanes(8);
        let product = |change: fn(&mut Vec<Statement>, Statement)| {
            let mut g = Graph::new();
            let (zero, many, one) = (g.int(0), g.int(1 << 10), g.int_of(Scalar::U32, 1));
            let arg = Arg::Int(0);
            let ring = g.intern(Node {
                op: Op::Local,
                dtype: Scalar::U32.one(),
                src: smallvec![many],
                arg,
            });
            let first = g.constant(sums, 0.0);
            let acc = g.intern(Node {
                op: Op::Acc,
                dtype: sums,
                src: smallvec![first, first],
                arg: Arg::None,
            });
            let src = [one; 8].into_iter().chain([ring, zero, acc]).collect();
            let value = g.intern(Node {
                op: Op::MmaShared,
                dtype: sums,
                src,
                arg: Arg::Int(WGMMA_16.number()),
            });
            with(g, ring, true, |inside| {
                change(inside, Statement::Accumulate(acc, value))
            })
        };
        let ended = "products of several warps have ended where an iteration does";
        assert_eq!(
            product(|s, p| drop(s.splice(7..8, [p, Statement::ProductsEnded(0)]))),
            "nothing"
        );
        assert_eq!(product(|s, p| s[7] = p), ended);
        // Leaves the last product in flight.
        assert_eq!(
            product(|s, p| drop(s.splice(7..8, [p, Statement::ProductsEnded(1)]))),
            ended
        );
        let met = "a barrier stands between what threads copy to a ring and what others read of it";
        assert_eq!(
            product(|s, p| drop((
                s[7] = p,
                s.insert(8, Statement::ProductsEnded(0)),
                s.remove(4)
            ))),
            met
        );
    }
}
