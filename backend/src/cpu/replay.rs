//! A captured step on the CPU: launches bound to addresses, run level by level by the team.

use super::team::{Team, Worker};
use super::unit::{CpuCode, Function};
use crate::variables::{Groups, Variables, by_level};
use gristmill_runtime::lease::{Order, Owner, StepUses};
use gristmill_runtime::{Error, Kernel, Launch, Replay, Span, StepTrace};
use std::cell::RefCell;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// A launch bound to its arguments.
struct Task {
    function: Function,
    /// Index of its first address in `Step::addresses`.
    buffers: usize,
    /// Range of its values in `Step::values`.
    vars: Range<usize>,
    /// Its workgroup counts in `Step::counts`.
    groups: Groups,
    /// Predicted seconds of a workgroup of each body, if there are several.
    seconds: Vec<f64>,
    /// Index among the captured launches.
    number: usize,
    /// Whether it is long enough for work stealing between the workers.
    long: bool,
    /// Number of stealable pieces taken so far.
    taken: AtomicUsize,
}

/// Minimum bytes of a launch with work stealing: about ten microseconds. Zero in debug builds, so
/// that tests with small kernels cover stealing.
const LONG_LAUNCH_BYTES: f64 = if cfg!(debug_assertions) { 0.0 } else { 512e3 };
/// Divisor: one in this many workgroups of a share is stealable (docs/experiments/136).
const STEALABLE_SHARE: i64 = 4;
/// Stealable pieces of each share.
const STEALABLE_PIECES: i64 = 2;

/// A captured step on the CPU.
pub struct CpuReplay {
    team: Arc<Team>,
    scratch: usize,
    variables: Variables,
    /// Variable of each element of `Step::values`.
    reads: Vec<usize>,
    step: Step,
    uses: StepUses,
    /// Keeps buffers and libraries alive.
    launches: Vec<Launch>,
}

/// Data of a step that workers read.
struct Step {
    tasks: Vec<Task>,
    levels: Vec<Level>,
    addresses: Vec<*mut u8>,
    values: Vec<i64>,
    counts: Vec<i64>,
}

/// Launches that are independent of each other.
struct Level {
    tasks: Range<usize>,
    /// Whether a barrier follows; not needed if this and the next level run on worker 0 alone.
    barrier: bool,
}

// SAFETY: the addresses are of buffers that `launches` keeps alive and that belong to no thread.
// Workers only read a step.
unsafe impl Send for CpuReplay {}
// SAFETY: as above.
unsafe impl Sync for Step {}

impl CpuReplay {
    /// Binds launches, sorted by level. Queued steps share a team.
    pub fn new(
        owner: &Owner,
        order: Order,
        team: Arc<Team>,
        launches: Vec<Launch>,
    ) -> Result<CpuReplay, Error> {
        launches.iter().try_for_each(|l| l.check(owner.id()))?;
        let uses = StepUses::new(owner, launches.iter().flat_map(Launch::uses), order);
        let step = Step {
            tasks: vec![],
            levels: vec![],
            addresses: vec![],
            values: vec![],
            counts: vec![],
        };
        let variables = Variables::default();
        let mut replay = CpuReplay {
            team,
            scratch: 0,
            variables,
            reads: vec![],
            step,
            uses,
            launches,
        };
        let launches = std::mem::take(&mut replay.launches);
        let mut level = None;
        for number in by_level(&launches) {
            let launch = &launches[number];
            if level != Some(launch.level) {
                level = Some(launch.level);
                let at = replay.step.tasks.len();
                replay.step.levels.push(Level {
                    tasks: at..at,
                    barrier: true,
                });
            }
            replay.bind(launch, number)?;
            replay
                .step
                .levels
                .last_mut()
                .expect("just pushed")
                .tasks
                .end += 1;
        }
        replay.launches = launches;
        replay.step.values = vec![0; replay.reads.len()];
        replay.team.reserve(replay.scratch)?;
        Ok(replay)
    }

    fn bind(&mut self, launch: &Launch, number: usize) -> Result<(), Error> {
        let kernel = launch.loaded::<CpuCode>()?;
        let program = kernel.program();
        let buffers = self.step.addresses.len();
        for buffer in &launch.buffers {
            let host = buffer.host();
            let host = host.ok_or_else(|| {
                Error::invalid(&program.name, "a buffer is not in the host's memory")
            })?;
            self.step.addresses.push(host);
        }
        let (groups, slots) = self.variables.bind(launch)?;
        let vars = self.reads.len()..self.reads.len() + slots.len();
        self.reads.extend(slots);
        self.scratch = self.scratch.max(program.scratch);
        let long =
            program.estimate.weight_bytes + program.estimate.other_bytes >= LONG_LAUNCH_BYTES;
        let (function, taken) = (kernel.code.function, AtomicUsize::new(0));
        let seconds = program.bodies.iter().map(|body| body.seconds).collect();
        self.step.tasks.push(Task {
            function,
            buffers,
            vars,
            groups,
            seconds,
            number,
            long,
            taken,
        });
        Ok(())
    }

    /// Sets variables, values and counts for a replay.
    fn prepare(&mut self, vars: &[(&str, i64)]) -> Result<(), Error> {
        self.variables.set(vars)?;
        self.variables.count(&mut self.step.counts)?;
        for (value, &variable) in self.step.values.iter_mut().zip(&self.reads) {
            *value = self.variables.values()[variable];
        }
        self.step
            .tasks
            .iter()
            .for_each(|t| t.taken.store(0, Ordering::Relaxed));
        // At most one workgroup runs on worker 0 only; two such levels need
        // no barrier between them.
        let (tasks, counts) = (&self.step.tasks, &self.step.counts);
        let alone = |level: &Level| {
            tasks[level.tasks.clone()]
                .iter()
                .map(|t| counts[t.groups.all])
                .sum::<i64>()
                <= 1
        };
        let levels = &mut self.step.levels;
        for i in 1..levels.len() {
            levels[i - 1].barrier = !(alone(&levels[i - 1]) && alone(&levels[i]));
        }
        // The team's own barrier ends the last level.
        if let Some(last) = levels.last_mut() {
            last.barrier = false;
        }
        Ok(())
    }
}

/// Division of a launch's workgroups among the workers.
struct Shares<'a> {
    count: i64,
    /// Workgroups and seconds per workgroup of each body, if there are several.
    bodies: (&'a [i64], &'a [f64]),
    /// Rotation of the shares, so that the small launches of a level do not all run on worker 0.
    shift: i64,
    workers: usize,
}

impl Shares<'_> {
    /// Returns the share of worker `index`: contiguous, and of equal duration by the cost model.
    fn share(&self, index: usize) -> Range<i64> {
        let workers = self.workers as i64;
        let place = (index as i64 - self.shift).rem_euclid(workers);
        self.share_begin(place)..self.share_begin(place + 1)
    }
    /// Returns the begin of share `place`. With one body, the first `count % workers`
    /// shares are one longer.
    fn share_begin(&self, place: i64) -> i64 {
        let (count, workers) = (self.count, self.workers as i64);
        let (counts, seconds) = self.bodies;
        let all: f64 = counts.iter().zip(seconds).map(|(&n, s)| n as f64 * s).sum();
        if all <= 0.0 || place == 0 || place == workers {
            return place * (count / workers) + place.min(count % workers);
        }
        let (mut left, mut begin) = (all * place as f64 / workers as f64, 0);
        for (&n, &each) in counts.iter().zip(seconds) {
            if left < n as f64 * each {
                return begin + (left / each).round() as i64;
            }
            (left, begin) = (left - n as f64 * each, begin + n);
        }
        count
    }
    /// Returns the body that contains all of these workgroups, if there is one.
    fn body(&self, part: &Range<i64>) -> Option<usize> {
        if self.bodies.0.is_empty() {
            return Some(0);
        }
        let mut begin = 0;
        self.bodies.0.iter().position(|count| {
            let of_body = begin..begin + count;
            begin = of_body.end;
            of_body.contains(&part.start) && part.end <= of_body.end
        })
    }
}

/// Part of a share that its worker runs itself, before the stealable pieces `i` of
/// [`STEALABLE_PIECES`]. Cores differ in speed, also over time, in particular when memory-bound.
fn own_part(share: &Range<i64>) -> Range<i64> {
    share.start..share.end - (share.end - share.start) / STEALABLE_SHARE
}
fn stealable_piece(share: &Range<i64>, i: i64) -> Range<i64> {
    let (first, rest) = (
        own_part(share).end,
        (share.end - share.start) / STEALABLE_SHARE,
    );
    first + rest * i / STEALABLE_PIECES..first + rest * (i + 1) / STEALABLE_PIECES
}

impl Step {
    /// Runs one worker's part of the step. `done(task, start)` is called after its
    /// part of each launch.
    #[inline]
    fn run(
        &self,
        worker: &Worker,
        begin: impl Fn() -> Option<Instant>,
        done: impl Fn(&Task, Option<Instant>),
    ) {
        let workers = worker.count();
        for level in &self.levels {
            let mut shift = 0;
            for task in &self.tasks[level.tasks.clone()] {
                let count = self.counts[task.groups.all];
                let bodies = (&self.counts[task.groups.bodies.clone()], &task.seconds[..]);
                let shares = Shares {
                    count,
                    bodies,
                    shift,
                    workers,
                };
                let part = shares.share(worker.index);
                if !part.is_empty() {
                    let start = begin();
                    if task.long && workers > 1 {
                        self.run_with_stealing(task, &shares, worker);
                    } else {
                        self.call(task, part, false, worker);
                    }
                    done(task, start);
                }
                shift = (shift + count % workers as i64) % workers as i64;
            }
            if level.barrier {
                worker.barrier();
            }
        }
    }
    /// Runs the worker's own part, then stealable pieces of all shares. Stages are kept if the
    /// previous piece ended in the same body.
    fn run_with_stealing(&self, task: &Task, shares: &Shares, worker: &Worker) {
        let workers = worker.count();
        let mut part = own_part(&shares.share(worker.index));
        // Body that the stages in the worker's scratch belong to.
        let mut filled = None;
        loop {
            if !part.is_empty() {
                let body = shares.body(&part);
                self.call(task, part.clone(), body.is_some() && body == filled, worker);
                filled = shares.body(&(part.end - 1..part.end));
            }
            let taken = task.taken.fetch_add(1, Ordering::Relaxed);
            if taken >= workers * STEALABLE_PIECES as usize {
                return;
            }
            part = stealable_piece(&shares.share(taken % workers), (taken / workers) as i64);
        }
    }
    /// Runs workgroups of a launch.
    ///
    /// `staged` means that the worker's last call was of this launch and ended in the
    /// body of these workgroups.
    #[inline]
    fn call(&self, task: &Task, part: Range<i64>, staged: bool, worker: &Worker) {
        // SAFETY: the addresses and values are this launch's, in the order of its parameters; the
        // scratch is large enough and this worker's, and filled if `staged`; launches of one
        // level do not conflict, those of other levels run at other times, and no two parts of a
        // launch share a workgroup.
        unsafe {
            (task.function)(
                self.addresses.as_ptr().add(task.buffers),
                self.values.as_ptr().add(task.vars.start),
                part.start,
                part.end,
                worker.scratch,
                staged,
            );
        }
    }
}

impl Replay for CpuReplay {
    fn start(&mut self, vars: &[(&str, i64)]) -> Result<(), Error> {
        self.prepare(vars)?;
        let _in_flight = self.uses.begin()?;
        let step = &self.step;
        self.team
            .run(self.scratch, &|worker| step.run(worker, || None, |_, _| ()))
    }

    fn replay_timed(&mut self, vars: &[(&str, i64)]) -> Result<Vec<f64>, Error> {
        self.prepare(vars)?;
        let _in_flight = self.uses.begin()?;
        let step = &self.step;
        let longest: Vec<AtomicU64> = self.launches.iter().map(|_| AtomicU64::new(0)).collect();
        self.team.run(self.scratch, &|worker| {
            step.run(
                worker,
                || Some(Instant::now()),
                |task, start| {
                    let nanoseconds = start.map_or(0, |s| s.elapsed().as_nanos() as u64);
                    longest[task.number].fetch_max(nanoseconds, Ordering::Relaxed);
                },
            )
        })?;
        Ok(longest
            .into_iter()
            .map(|n| n.into_inner() as f64 * 1e-9)
            .collect())
    }

    fn replay_traced(&mut self, vars: &[(&str, i64)]) -> Result<StepTrace, Error> {
        self.prepare(vars)?;
        let _in_flight = self.uses.begin()?;
        let step = &self.step;
        let all = Mutex::new(Vec::new());
        let origin = Instant::now();
        self.team.run(self.scratch, &|worker| {
            // Merged only at the end, as the clock is running.
            let mine = RefCell::new(Vec::with_capacity(step.tasks.len()));
            step.run(
                worker,
                || Some(Instant::now()),
                |task, start| {
                    let end = origin.elapsed().as_secs_f64();
                    let start = start.map_or(end, |s| s.duration_since(origin).as_secs_f64());
                    mine.borrow_mut().push(Span {
                        launch: task.number,
                        worker: worker.index,
                        start,
                        end,
                    });
                },
            );
            all.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend(mine.into_inner());
        })?;
        let mut spans = all.into_inner().unwrap_or_else(PoisonError::into_inner);
        spans.sort_by(|a, b| a.start.total_cmp(&b.start));
        Ok(StepTrace {
            spans,
            ..StepTrace::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_what_its_worker_runs_and_its_pieces() {
        for (start, end) in [(0, 0), (3, 4), (0, 7), (5, 69), (100, 1123)] {
            let share = start..end;
            let mut at = own_part(&share).end;
            for i in 0..STEALABLE_PIECES {
                assert_eq!(stealable_piece(&share, i).start, at);
                at = stealable_piece(&share, i).end;
            }
            assert_eq!((own_part(&share).start, at), (start, end));
        }
    }

    #[test]
    fn shares_are_contiguous_complete_and_turned() {
        for workers in 1..=5 {
            for count in 0..20 {
                for shift in 0..workers as i64 {
                    let shares = Shares {
                        count,
                        bodies: (&[], &[]),
                        shift,
                        workers,
                    };
                    let mut parts: Vec<Range<i64>> =
                        (0..workers).map(|i| shares.share(i)).collect();
                    assert!(parts.iter().all(|p| {
                        (count / workers as i64..=count / workers as i64 + 1)
                            .contains(&(p.end - p.start))
                    }));
                    parts.sort_by_key(|p| (p.start, p.end));
                    assert_eq!((parts[0].start, parts[workers - 1].end), (0, count));
                    assert!(parts.windows(2).all(|w| w[0].end == w[1].start));
                }
            }
        }
        let alone = |shift| Shares {
            count: 1,
            bodies: (&[], &[]),
            shift,
            workers: 2,
        };
        assert_eq!((alone(0).share(0), alone(1).share(1)), (0..1, 0..1));
    }

    #[test]
    fn pieces_of_one_body_need_no_stages_again() {
        let one = Shares {
            count: 8,
            bodies: (&[], &[]),
            shift: 0,
            workers: 2,
        };
        assert_eq!(one.body(&(2..8)), Some(0));
        let several = Shares {
            count: 11,
            bodies: (&[3, 0, 8], &[1.0; 3]),
            shift: 0,
            workers: 2,
        };
        let bodies = [0..3, 2..4, 3..11, 10..11].map(|part| several.body(&part));
        assert_eq!(bodies, [Some(0), None, Some(2), Some(2)]);
    }

    #[test]
    fn shares_of_several_bodies_take_as_long() {
        // Eight workgroups of one second each, after eight of negligible time.
        let shares = Shares {
            count: 16,
            bodies: (&[8, 8], &[1e-3, 1.0]),
            shift: 0,
            workers: 2,
        };
        assert_eq!([shares.share(0), shares.share(1)], [0..12, 12..16]);
        for workers in 1..=5 {
            for (counts, seconds) in [
                ([0, 7, 3], [1.0, 2.0, 0.0]),
                ([5, 0, 1], [0.5, 1.0, 100.0]),
                ([0; 3], [1.0; 3]),
            ] {
                let count = counts.iter().sum();
                let shares = Shares {
                    count,
                    bodies: (&counts, &seconds),
                    shift: 1,
                    workers,
                };
                let mut parts: Vec<Range<i64>> = (0..workers).map(|i| shares.share(i)).collect();
                parts.sort_by_key(|p| (p.start, p.end));
                assert_eq!((parts[0].start, parts[workers - 1].end), (0, count));
                assert!(
                    parts.windows(2).all(|w| w[0].end == w[1].start),
                    "{parts:?}"
                );
            }
        }
    }
}
