//! A persistent team of threads with a spin barrier.
//!
//! A decode step has some hundred dependent levels of 10 to 500 µs. Waking threads through the
//! system costs about 50 µs a level, so the team spins: jobs are announced, and levels separated,
//! by shared counters alone. A worker that waits longer than the usual waits within a step
//! sleeps, so that an idle process uses no CPU time and other processes get the core; the last
//! worker to arrive wakes it.

use super::affinity;
use super::memory::Map;
use crate::parallel::cores;
use gristmill_runtime::{Error, Memory};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time that a waiting worker spins before it sleeps: longer than the usual waits within a step and
/// token sampling between steps. With 20 µs, replies next to a busy process take eight times
/// as long (docs/experiments/058).
const SPIN_TIME: Duration = Duration::from_micros(500);
/// Time that a worker keeps spinning at a barrier while no core is contended: a virtual core that
/// sleeps may take a millisecond to return. Prefill on two such cores is up to 1.3 times as
/// fast (docs/experiments/062).
const SLEEP_AFTER: Duration = Duration::from_millis(50);
/// Checks of the shared counter between reads of the clock.
const SPINS_PER_CLOCK_READ: u32 = 64;
/// Maximum team size; a larger number is assumed to be a mistake.
pub const MAX_WORKERS: usize = 1024;

/// Cores of the process, which running teams reserve, so that two devices do not share cores.
///
/// A team of one reserves none, since it runs on the caller's thread.
struct Cores {
    state: Mutex<Turns>,
    changed: Condvar,
}

struct Turns {
    free: usize,
    /// FIFO tickets: the next to draw, then the next to be served.
    next: u64,
    serving: u64,
}

/// Cores reserved by a team.
struct Taken<'a> {
    from: &'a Cores,
    count: usize,
}

impl Cores {
    fn new(count: usize) -> Cores {
        Cores {
            state: Mutex::new(Turns {
                free: count,
                next: 0,
                serving: 0,
            }),
            changed: Condvar::new(),
        }
    }
    /// Returns the cores of this process and their number.
    fn process_cores() -> &'static (Cores, usize) {
        static ALL: OnceLock<(Cores, usize)> = OnceLock::new();
        ALL.get_or_init(|| {
            let count = cores();
            (Cores::new(count), count)
        })
    }
    /// Waits until `count` cores are free and reserves them.
    fn take(&self, count: usize) -> Taken<'_> {
        let mut turns = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let number = turns.next;
        turns.next += 1;
        while turns.serving != number || turns.free < count {
            turns = self
                .changed
                .wait(turns)
                .unwrap_or_else(PoisonError::into_inner);
        }
        turns.serving += 1;
        turns.free -= count;
        self.wake_waiting(&turns);
        Taken { from: self, count }
    }
    /// Wakes waiting threads, if any, since it is a system call.
    fn wake_waiting(&self, turns: &Turns) {
        if turns.serving != turns.next {
            self.changed.notify_all();
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut turns = self
            .from
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        turns.free += self.count;
        self.from.wake_waiting(&turns);
    }
}

/// A value on cache lines of its own (two, as they are fetched in pairs).
#[repr(align(128))]
#[derive(Default)]
struct Padded<T>(T);

/// Function of a job. The lifetime is erased: `Team::run` returns only after the last
/// use by a worker.
type Job = *const (dyn Fn(&Worker) + Sync);

struct Shared {
    count: usize,
    /// Time to spin; zero in a team larger than the machine, where other workers need the core.
    spin: Duration,
    /// Index of the current job.
    generation: Padded<AtomicU64>,
    /// Workers that have arrived at the barrier.
    arrived: Padded<AtomicUsize>,
    /// Barriers passed so far.
    passed: Padded<AtomicUsize>,
    /// Written by the caller of `run` before `generation` advances, read by workers after.
    job: UnsafeCell<Option<(Job, usize)>>,
    stop: AtomicBool,
    asleep: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
    /// Core on which each worker last began to wait; [`NO_CORE`] before that.
    cores: Vec<Padded<AtomicUsize>>,
}

/// Value of an unknown core.
const NO_CORE: usize = usize::MAX;

// SAFETY: `job` is written only while all workers wait for `generation`, whose release and acquire
// order the accesses; its pointer is to a `Sync` closure.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// A worker of a running job.
pub struct Worker<'a> {
    /// Index of this worker: 0 is the thread that called [`Team::run`].
    pub index: usize,
    /// Scratch memory of this worker: the requested bytes, 64-byte aligned.
    pub scratch: *mut u8,
    shared: &'a Shared,
}

impl Worker<'_> {
    /// Returns the number of workers of the team.
    pub fn count(&self) -> usize {
        self.shared.count
    }
    /// Waits for all workers; their earlier writes are then visible.
    ///
    /// All workers must call it equally often.
    pub fn barrier(&self) {
        self.shared.barrier(self.index);
    }
}

impl Shared {
    fn barrier(&self, index: usize) {
        if self.count == 1 {
            return;
        }
        let passed = self.passed.0.load(Ordering::Relaxed);
        if self.arrived.0.fetch_add(1, Ordering::AcqRel) + 1 == self.count {
            self.arrived.0.store(0, Ordering::Relaxed);
            self.passed
                .0
                .store(passed.wrapping_add(1), Ordering::SeqCst);
            self.wake_all();
        } else {
            self.wait(index, SLEEP_AFTER, || {
                self.passed.0.load(Ordering::SeqCst) != passed
            });
        }
    }

    /// Waits for a job other than `seen`. Returns its index.
    fn next_job(&self, index: usize, seen: u64) -> u64 {
        self.wait(index, Duration::ZERO, || {
            self.generation.0.load(Ordering::SeqCst) != seen
        });
        self.generation.0.load(Ordering::SeqCst)
    }

    /// Waits until `done`, which the thread that makes it true signals by [`Shared::wake_all`].
    ///
    /// It spins, up to `patience` longer while no core is contended, and then sleeps.
    #[inline]
    fn wait(&self, index: usize, patience: Duration, done: impl Fn() -> bool) {
        self.cores[index].0.store(
            affinity::current_core().unwrap_or(NO_CORE),
            Ordering::Relaxed,
        );
        if spun(&done, self.spin) || !self.spin.is_zero() && self.waited(index, patience, &done) {
            return;
        }
        let mut guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        // Either `wake_all` sees this count, or this thread sees `done`:
        // both are sequentially consistent.
        self.asleep.fetch_add(1, Ordering::SeqCst);
        while !done() {
            guard = self
                .wake
                .wait(guard)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.asleep.fetch_sub(1, Ordering::SeqCst);
    }

    /// Continues spinning where that is worthwhile. Returns whether `done` came.
    #[cold]
    fn waited(&self, index: usize, patience: Duration, done: impl Fn() -> bool) -> bool {
        if self.move_apart(index) && spun(&done, self.spin) {
            return true;
        }
        let start = Instant::now();
        while start.elapsed() < patience && !affinity::contended() {
            if spun(&done, self.spin) {
                return true;
            }
        }
        false
    }

    /// Moves away from a core that another worker of the team uses. Returns whether it moved.
    ///
    /// On one core, each worker would wait for the other at each barrier, for a spin and a time
    /// slice. When other processes keep all cores busy, the system leaves both workers there, and
    /// some replies take seconds (docs/experiments/059).
    fn move_apart(&self, index: usize) -> bool {
        let others = self.cores.iter().enumerate().filter(|&(i, _)| i != index);
        let taken: Vec<usize> = others
            .map(|(_, core)| core.0.load(Ordering::Relaxed))
            .collect();
        let together = || affinity::current_core().is_some_and(|core| taken.contains(&core));
        if !together() {
            return false;
        }
        affinity::avoid_cores(&taken);
        !together()
    }

    /// Wakes sleeping workers, if any, since it is a system call.
    fn wake_all(&self) {
        if self.asleep.load(Ordering::SeqCst) > 0 {
            let _guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            self.wake.notify_all();
        }
    }

    /// Announces a job to all workers but the caller.
    fn announce(&self, job: Option<(Job, usize)>) {
        // SAFETY: all workers wait in `next_job`; see the impl of `Sync`.
        unsafe { *self.job.get() = job };
        self.generation.0.fetch_add(1, Ordering::SeqCst);
        self.wake_all();
    }

    fn work(&self, index: usize) {
        let mut seen = 0;
        loop {
            seen = self.next_job(index, seen);
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            // SAFETY: `generation` has advanced, so the job is set and stays until this worker has
            // passed the last barrier of `run`.
            let (job, scratch) = unsafe { (*self.job.get()).expect("a job was announced") };
            // SAFETY: the closure lives until then, too.
            self.part(unsafe { &*job }, index, scratch);
        }
    }

    /// Runs one worker's part of a job. `scratch` is the address of the array of scratch pointers.
    fn part(&self, job: &(dyn Fn(&Worker) + Sync), index: usize, scratch: usize) {
        // If a worker unwound, the others would wait forever.
        let abort = AbortOnUnwind;
        // SAFETY: `run` passes the address of an array of `count` pointers that outlives the job.
        let scratch = unsafe { *(scratch as *const *mut u8).add(index) };
        job(&Worker {
            index,
            scratch,
            shared: self,
        });
        self.barrier(index);
        std::mem::forget(abort);
    }
}

struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        eprintln!("gristmill: a worker of the CPU team panicked; the process aborts");
        std::process::abort();
    }
}

/// Spins until `done` or the time is over. Returns whether it is done.
#[inline]
fn spun(done: impl Fn() -> bool, spin: Duration) -> bool {
    let start = Instant::now();
    loop {
        for _ in 0..SPINS_PER_CLOCK_READ {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() >= spin {
            return false;
        }
    }
}

/// Scratch memory of all workers, grown to the largest request.
#[derive(Default)]
struct Scratch {
    maps: Vec<Map>,
    bytes: usize,
}

impl Scratch {
    fn reserve(&mut self, workers: usize, bytes: usize) -> Result<(), Error> {
        if self.maps.is_empty() || bytes > self.bytes {
            self.maps = (0..workers)
                .map(|_| Map::new(bytes, Memory::Scratch))
                .collect::<Result<_, _>>()?;
            self.bytes = bytes;
        }
        Ok(())
    }
}

/// A team of threads that runs jobs together with the calling thread.
pub struct Team {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// Queue of callers, a FIFO of one slot. A mutex alone is unfair: the thread that releases it
    /// could take it again before a waiting one has woken up.
    turns: Cores,
    /// Held while a job runs: the team runs one at a time.
    turn: Mutex<Scratch>,
}

impl Team {
    /// Creates a team of `count` workers, including the caller of [`Team::run`].
    ///
    /// With `pin`, each other worker is pinned to one of the process's cores.
    pub fn new(count: usize, pin: bool) -> Result<Team, Error> {
        assert!((1..=MAX_WORKERS).contains(&count), "a team of {count}");
        // Not queried for a team of one, which loading creates often: the system reads
        // several files for it.
        let crowded = count > 1 && count > cores();
        let shared = Arc::new(Shared {
            count,
            spin: if crowded { Duration::ZERO } else { SPIN_TIME },
            generation: Padded::default(),
            arrived: Padded::default(),
            passed: Padded::default(),
            job: UnsafeCell::new(None),
            stop: AtomicBool::new(false),
            asleep: AtomicUsize::new(0),
            sleep: Mutex::new(()),
            wake: Condvar::new(),
            cores: (0..count)
                .map(|_| Padded(AtomicUsize::new(NO_CORE)))
                .collect(),
        });
        // Dropping an incomplete team ends the threads that were started.
        let mut team = Team {
            shared,
            threads: Vec::new(),
            turns: Cores::new(1),
            turn: Mutex::default(),
        };
        for index in 1..count {
            let shared = team.shared.clone();
            let run = move || {
                if pin {
                    affinity::pin_to(index);
                }
                shared.work(index)
            };
            let name = format!("gristmill-{index}");
            let thread = std::thread::Builder::new()
                .name(name)
                .spawn(run)
                .map_err(Error::io("starting a thread"))?;
            team.threads.push(thread);
        }
        Ok(team)
    }

    /// Returns the number of workers, including the caller.
    pub fn count(&self) -> usize {
        self.shared.count
    }

    /// Allocates scratch memory for all workers now rather than in the first job.
    pub fn reserve(&self, scratch: usize) -> Result<(), Error> {
        self.turn
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .reserve(self.count(), scratch)
    }

    /// Runs `job` once on each worker, with `scratch` bytes each, and returns when all have ended.
    ///
    /// Calls from several threads and teams are serialised. A job must not call `run` of any team,
    /// which would wait for the job's own cores. A job that panics aborts the process.
    pub fn run(&self, scratch: usize, job: &(dyn Fn(&Worker) + Sync)) -> Result<(), Error> {
        let _turn = self.turns.take(1);
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        turn.reserve(self.count(), scratch)?;
        let scratch: Vec<*mut u8> = turn.maps.iter().map(Map::base).collect();
        // The cast erases the lifetime: the last barrier of `part` is passed only when all workers
        // are done with `job`. SAFETY: only the lifetime changes.
        let erased: Job = unsafe {
            std::mem::transmute::<&(dyn Fn(&Worker) + Sync), &'static (dyn Fn(&Worker) + Sync)>(job)
        };
        let address = scratch.as_ptr() as usize;
        let (all, most) = Cores::process_cores();
        let _cores = (self.count() > 1).then(|| all.take(self.count().min(*most)));
        if self.count() > 1 {
            self.shared.announce(Some((erased, address)));
        }
        self.shared.part(job, 0, address);
        Ok(())
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.announce(None);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_callers_do_not_starve_others() {
        const JOBS: usize = 50;
        let team = Team::new(2, false).unwrap();
        let (busy, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::SeqCst) {
                    team.run(0, &|_| std::thread::sleep(Duration::from_micros(200)))
                        .unwrap();
                    busy.fetch_add(1, Ordering::SeqCst);
                }
            });
            while busy.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            let most = (0..JOBS).map(|_| {
                let before = busy.load(Ordering::SeqCst);
                team.run(0, &|_| ()).unwrap();
                busy.load(Ordering::SeqCst) - before
            });
            // The running job ends, and one more may have been queued before this one.
            let mut waits: Vec<usize> = most.collect();
            ended.store(true, Ordering::SeqCst);
            waits.sort_unstable();
            assert!(waits[JOBS / 2] <= 3, "{waits:?}");
        });
    }

    #[test]
    fn every_worker_runs_every_job_once_and_barriers_order() {
        for count in 1..=4 {
            let team = Team::new(count, count == 3).unwrap();
            let cells: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
            for job in 0..500 {
                team.run(64, &|w| {
                    assert_eq!(w.count(), count);
                    for level in 1..=3 {
                        cells[w.index].fetch_add(1, Ordering::Relaxed);
                        w.barrier();
                        assert!(
                            cells
                                .iter()
                                .all(|c| c.load(Ordering::Relaxed) == job * 3 + level)
                        );
                        w.barrier();
                    }
                })
                .unwrap();
            }
        }
    }

    #[test]
    fn scratch_is_apart_aligned_and_grows() {
        let team = Team::new(3, false).unwrap();
        for bytes in [0, 100, 70_000, 64] {
            let seen = Mutex::new(vec![]);
            team.run(bytes, &|w| {
                // SAFETY: the requested bytes.
                unsafe { w.scratch.write_bytes(w.index as u8, bytes) };
                w.barrier();
                // SAFETY: as above.
                assert!((0..bytes).all(|i| unsafe { *w.scratch.add(i) } == w.index as u8));
                seen.lock().unwrap().push(w.scratch as usize);
            })
            .unwrap();
            let seen = seen.into_inner().unwrap();
            assert!(seen.iter().all(|a| a % 64 == 0));
        }
    }

    #[test]
    fn callers_take_turns_and_sleeping_workers_wake() {
        let team = Team::new(2, false).unwrap();
        let total = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for i in 0..30 {
                        team.run(0, &|w| {
                            total.fetch_add(1, Ordering::Relaxed);
                            w.barrier();
                        })
                        .unwrap();
                        if i % 10 == 0 {
                            std::thread::sleep(SPIN_TIME * 8);
                        }
                    }
                });
            }
        });
        assert_eq!(total.into_inner(), 3 * 30 * 2);
    }

    #[test]
    fn teams_do_not_run_on_the_same_cores() {
        let at_work = AtomicUsize::new(0);
        let most = AtomicUsize::new(0);
        // Each could fill the machine.
        let teams = [0, 1, 1].map(|more| Team::new(cores().max(2) + more, false).unwrap());
        std::thread::scope(|scope| {
            for team in &teams {
                let (at_work, most) = (&at_work, &most);
                scope.spawn(move || {
                    for _ in 0..50 {
                        team.run(0, &|w| {
                            if w.index == 0 {
                                most.fetch_max(
                                    at_work.fetch_add(1, Ordering::SeqCst) + 1,
                                    Ordering::SeqCst,
                                );
                            }
                            w.barrier();
                            if w.index == 0 {
                                at_work.fetch_sub(1, Ordering::SeqCst);
                            }
                        })
                        .unwrap();
                    }
                });
            }
        });
        assert_eq!(most.into_inner(), 1);
    }

    #[test]
    fn cores_are_given_in_order_and_together_where_there_are_enough() {
        let cores = Cores::new(4);
        let (first, second) = (cores.take(2), cores.take(2));
        std::thread::scope(|scope| {
            let third = scope.spawn(|| drop(cores.take(3)));
            while cores.state.lock().unwrap().next < 3 {
                std::thread::yield_now();
            }
            // One core would suffice for this one, but not before its turn.
            let fourth = scope.spawn(|| drop(cores.take(1)));
            while cores.state.lock().unwrap().next < 4 {
                std::thread::yield_now();
            }
            drop(first);
            assert!(!third.is_finished() && !fourth.is_finished());
            drop(second);
        });
        assert_eq!(cores.state.lock().unwrap().free, 4);
    }

    /// Waits until `count` workers of the team sleep.
    fn until_asleep(team: &Team, count: usize) {
        let start = Instant::now();
        while team.shared.asleep.load(Ordering::SeqCst) < count {
            assert!(
                start.elapsed() < Duration::from_secs(20),
                "a busy machine, or workers that never sleep"
            );
            std::thread::sleep(SPIN_TIME);
        }
    }

    #[test]
    fn idle_workers_sleep() {
        let team = Team::new(3, false).unwrap();
        team.run(0, &|_| ()).unwrap();
        until_asleep(&team, 2);
        team.run(0, &|w| w.barrier()).unwrap();
    }

    #[test]
    fn the_last_thread_at_a_barrier_wakes_the_others() {
        let team = Team::new(2, false).unwrap();
        for last in [0, 1, 0, 1] {
            team.run(0, &|w| {
                if w.index == last {
                    until_asleep(&team, 1);
                }
                w.barrier();
            })
            .unwrap();
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_worker_leaves_the_core_of_another() {
        let team = Team::new(2, false).unwrap();
        let shared = &team.shared;
        let here = affinity::current_core().unwrap();
        shared.cores[1].0.store(NO_CORE, Ordering::Relaxed);
        assert!(!shared.move_apart(0), "no other worker is on this core");
        if cores() > 1 {
            // The scheduler may move this thread at any time.
            let moved = (0..1000).any(|_| {
                shared.cores[1]
                    .0
                    .store(affinity::current_core().unwrap(), Ordering::Relaxed);
                shared.move_apart(0)
            });
            assert!(moved, "stays on {here}");
        }
    }
}
