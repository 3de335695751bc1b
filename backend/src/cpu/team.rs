//! A persistent team of threads with a spin barrier.
//!
//! A decode step is some hundred dependent levels of 10 to 500 µs. Waking threads by the system costs about 50 µs a level, so the
//! team spins: a job is handed over, and levels inside it are separated, by shared counters alone. A worker that waits for
//! longer than a step's own waits take sleeps, so that an idle program uses no CPU and another program gets the core; who arrives last wakes it.

use super::affinity;
use super::memory::Map;
use crate::parallel::cores;
use gristmill_runtime::{Error, Memory};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A waiting worker spins so long, then sleeps: longer than what workers wait for one another in a step, and for the choice of a token between two. A core
/// that is given away comes back when it is free, milliseconds later, and to be woken takes 50 µs. Two cores, an answer of 200 tokens of the demo beside a
/// program that keeps one of them busy: 852 ms where workers spin for 20 µs, 97 to 116 for 50 to 1,000, 225 for 5,000.
const SPIN_TIME: Duration = Duration::from_micros(500);
/// At a barrier a worker spins on for so long where nobody waits for a core: who is still at work is waited for, and a virtual machine's core that sleeps
/// may be gone for a millisecond. Prompts of 512 tokens on two virtual cores of a busy host, asleep after [`SPIN_TIME`] against not: 85 to 107 tok/s
/// (Youtu-LLM-2B), 45 to 58 (DeepSeek-V2-Lite).
const SLEEP_AFTER: Duration = Duration::from_millis(50);
/// Looks at the shared counter between looks at the clock.
const SPINS_PER_CLOCK_READ: u32 = 64;
/// The largest team: a number above it is a mistake.
pub const MAX_WORKERS: usize = 1024;

/// The cores of this process, of which teams that run take as many as they have workers: two devices do not run side by side on the same ones.
/// A team of one takes none: it is its caller's thread, which runs anyway.
struct Cores {
    state: Mutex<Turns>,
    changed: Condvar,
}

struct Turns {
    free: usize,
    /// Teams get their cores in the order in which they asked: the number of the next to ask, and of the next to get some.
    next: u64,
    serving: u64,
}

/// Cores that a team has.
struct Taken<'a> {
    from: &'a Cores,
    count: usize,
}

impl Cores {
    fn new(count: usize) -> Cores {
        Cores { state: Mutex::new(Turns { free: count, next: 0, serving: 0 }), changed: Condvar::new() }
    }
    /// Those of this process.
    fn all() -> &'static (Cores, usize) {
        static ALL: OnceLock<(Cores, usize)> = OnceLock::new();
        ALL.get_or_init(|| {
            let count = cores();
            (Cores::new(count), count)
        })
    }
    /// Waits until so many are free.
    fn take(&self, count: usize) -> Taken<'_> {
        let mut turns = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let number = turns.next;
        turns.next += 1;
        while turns.serving != number || turns.free < count {
            turns = self.changed.wait(turns).unwrap_or_else(PoisonError::into_inner);
        }
        turns.serving += 1;
        turns.free -= count;
        self.tell(&turns);
        Taken { from: self, count }
    }
    /// Wakes those who wait, if any do: a call of the system.
    fn tell(&self, turns: &Turns) {
        if turns.serving != turns.next {
            self.changed.notify_all();
        }
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut turns = self.from.state.lock().unwrap_or_else(PoisonError::into_inner);
        turns.free += self.count;
        self.from.tell(&turns);
    }
}

/// A value alone on its cache lines (two: they are fetched in pairs).
#[repr(align(128))]
#[derive(Default)]
struct Padded<T>(T);

/// What a worker is called with. The lifetime is erased: `Team::run` returns only when no worker uses it any more.
type Job = *const (dyn Fn(&Worker) + Sync);

struct Shared {
    count: usize,
    /// How long to spin: not at all in a team larger than the machine, where someone always needs the core.
    spin: Duration,
    /// Number of the current job.
    generation: Padded<AtomicU64>,
    /// Workers that have arrived at the barrier.
    arrived: Padded<AtomicUsize>,
    /// Barriers passed.
    passed: Padded<AtomicUsize>,
    /// Written by the caller of `run` before `generation` moves on, read by workers after.
    job: UnsafeCell<Option<(Job, usize)>>,
    stop: AtomicBool,
    asleep: AtomicUsize,
    sleep: Mutex<()>,
    wake: Condvar,
    /// The core on which each worker last began to wait; [`NO_CORE`] before that.
    cores: Vec<Padded<AtomicUsize>>,
}

/// No core.
const NO_CORE: usize = usize::MAX;

// SAFETY: `job` is written only while every worker waits for `generation`, whose release and acquire order the accesses; the
// pointer in it is to a `Sync` closure.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// The part of a job that runs on one thread.
pub struct Worker<'a> {
    /// Number of this worker: 0 is the thread that called [`Team::run`].
    pub index: usize,
    /// As many bytes as the job asked for, 64-byte aligned, this worker's alone.
    pub scratch: *mut u8,
    shared: &'a Shared,
}

impl Worker<'_> {
    /// Workers of the team.
    pub fn count(&self) -> usize {
        self.shared.count
    }
    /// Waits for all workers; what they wrote before is then visible. Every worker must call it equally often.
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
            self.passed.0.store(passed.wrapping_add(1), Ordering::SeqCst);
            self.wake_all();
        } else {
            self.wait(index, SLEEP_AFTER, || self.passed.0.load(Ordering::SeqCst) != passed);
        }
    }

    /// Waits for a job other than `seen`; returns its number.
    fn next_job(&self, index: usize, seen: u64) -> u64 {
        self.wait(index, Duration::ZERO, || self.generation.0.load(Ordering::SeqCst) != seen);
        self.generation.0.load(Ordering::SeqCst)
    }

    /// Returns when `done`, which whoever makes it true tells by [`Shared::wake_all`]: spins, `patience` longer where nobody waits for a core, then sleeps.
    #[inline]
    fn wait(&self, index: usize, patience: Duration, done: impl Fn() -> bool) {
        self.cores[index].0.store(affinity::current_core().unwrap_or(NO_CORE), Ordering::Relaxed);
        if spun(&done, self.spin) || !self.spin.is_zero() && self.waited(index, patience, &done) {
            return;
        }
        let mut guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
        // Either `wake_all` sees this count and wakes us, or we see what it tells: both are sequentially consistent.
        self.asleep.fetch_add(1, Ordering::SeqCst);
        while !done() {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.asleep.fetch_sub(1, Ordering::SeqCst);
    }

    /// After a spin in vain: is it `done` before the core should be given away?
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

    /// Leaves the core where another worker of the team is: each would wait there for the other, a spin and a slice of the scheduler at every barrier. Where
    /// programs keep all cores busy, the system puts two workers on one and leaves them there. Two cores beside a template, damaged files and slow
    /// connections all at once, an answer of 111 tokens: 68 to 900 ms in the middle and 3,800 at worst where workers stay, 46 and 99 where they leave.
    fn move_apart(&self, index: usize) -> bool {
        let others = self.cores.iter().enumerate().filter(|&(i, _)| i != index);
        let taken: Vec<usize> = others.map(|(_, core)| core.0.load(Ordering::Relaxed)).collect();
        let together = || affinity::current_core().is_some_and(|core| taken.contains(&core));
        if !together() {
            return false;
        }
        affinity::leave(&taken);
        !together()
    }

    /// Wakes those that sleep, if any do: a call of the system.
    fn wake_all(&self) {
        if self.asleep.load(Ordering::SeqCst) > 0 {
            let _guard = self.sleep.lock().unwrap_or_else(PoisonError::into_inner);
            self.wake.notify_all();
        }
    }

    /// Hands `job` to all workers but the caller.
    fn announce(&self, job: Option<(Job, usize)>) {
        // SAFETY: every worker waits in `next_job`; see the impl of `Sync`.
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
            // SAFETY: `generation` has moved, so the job is set and stays until this worker has passed `run`'s last barrier.
            let (job, scratch) = unsafe { (*self.job.get()).expect("a job was announced") };
            // SAFETY: the closure lives until then, too.
            self.part(unsafe { &*job }, index, scratch);
        }
    }

    /// One worker's part of a job. `scratch` is an array of the workers' scratch addresses.
    fn part(&self, job: &(dyn Fn(&Worker) + Sync), index: usize, scratch: usize) {
        // The others would wait for ever for a worker that unwinds.
        let abort = AbortOnUnwind;
        // SAFETY: `run` passes the address of an array of `count` pointers that outlives the job.
        let scratch = unsafe { *(scratch as *const *mut u8).add(index) };
        job(&Worker { index, scratch, shared: self });
        self.barrier(index);
        std::mem::forget(abort);
    }
}

struct AbortOnUnwind;

impl Drop for AbortOnUnwind {
    fn drop(&mut self) {
        eprintln!("gristmill: a worker of the CPU team panicked; the others cannot go on");
        std::process::abort();
    }
}

/// Looks for so long whether it is `done`.
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

/// Each worker's scratch, grown to the largest that any job asked for.
#[derive(Default)]
struct Scratch {
    maps: Vec<Map>,
    bytes: usize,
}

impl Scratch {
    fn reserve(&mut self, workers: usize, bytes: usize) -> Result<(), Error> {
        if self.maps.is_empty() || bytes > self.bytes {
            self.maps = (0..workers).map(|_| Map::new(bytes, Memory::Scratch)).collect::<Result<_, _>>()?;
            self.bytes = bytes;
        }
        Ok(())
    }
}

/// Threads that run jobs together with the thread that asks for them.
pub struct Team {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    /// The one turn that there is: callers get it in the order in which they asked. A lock alone goes to whoever lets go of it, who runs and can ask
    /// again before another has woken up.
    turns: Cores,
    /// Held while a job runs: the team does one at a time.
    turn: Mutex<Scratch>,
}

impl Team {
    /// A team of `count` workers, of which the caller of [`Team::run`] is one. With `pin`, each other worker stays on one of the
    /// process's cores.
    pub fn new(count: usize, pin: bool) -> Result<Team, Error> {
        assert!((1..=MAX_WORKERS).contains(&count), "a team of {count}");
        // Not asked for a team of one, of which loading makes many: the system answers from several files.
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
            cores: (0..count).map(|_| Padded(AtomicUsize::new(NO_CORE))).collect(),
        });
        // A team that could not be completed is dropped like any other, which ends the threads that were started.
        let mut team = Team { shared, threads: Vec::new(), turns: Cores::new(1), turn: Mutex::default() };
        for index in 1..count {
            let shared = team.shared.clone();
            let run = move || {
                if pin {
                    affinity::pin_to(index);
                }
                shared.work(index)
            };
            let name = format!("gristmill-{index}");
            let thread = std::thread::Builder::new().name(name).spawn(run).map_err(Error::io("starting a thread"))?;
            team.threads.push(thread);
        }
        Ok(team)
    }

    /// Workers, the caller included.
    pub fn count(&self) -> usize {
        self.shared.count
    }

    /// Allocates so much scratch for each worker now rather than in the first job.
    pub fn reserve(&self, scratch: usize) -> Result<(), Error> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner).reserve(self.count(), scratch)
    }

    /// Runs `job` once on every worker, each with `scratch` bytes, and returns when all have ended. Calls from several threads
    /// take turns, and so do teams; a job must not call `run` of any team, which would wait for the job's own cores. A job that panics aborts the process.
    pub fn run(&self, scratch: usize, job: &(dyn Fn(&Worker) + Sync)) -> Result<(), Error> {
        let _turn = self.turns.take(1);
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        turn.reserve(self.count(), scratch)?;
        let scratch: Vec<*mut u8> = turn.maps.iter().map(Map::base).collect();
        // The cast erases the lifetime: the last barrier of `part` is passed only when every worker is done with `job`.
        // SAFETY: only the lifetime changes.
        let erased: Job =
            unsafe { std::mem::transmute::<&(dyn Fn(&Worker) + Sync), &'static (dyn Fn(&Worker) + Sync)>(job) };
        let address = scratch.as_ptr() as usize;
        let (all, most) = Cores::all();
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
    fn who_calls_again_and_again_leaves_others_their_turns() {
        const JOBS: usize = 50;
        let team = Team::new(2, false).unwrap();
        let (busy, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(Ordering::SeqCst) {
                    team.run(0, &|_| std::thread::sleep(Duration::from_micros(200))).unwrap();
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
            // The job under way ends, and one more may have been asked for before this one was.
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
                        assert!(cells.iter().all(|c| c.load(Ordering::Relaxed) == job * 3 + level));
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
                // SAFETY: the bytes that were asked for.
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
                                most.fetch_max(at_work.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
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
            // One core would do for this one, but not before its turn.
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

    /// Waits until so many of the team sleep.
    fn until_asleep(team: &Team, count: usize) {
        let start = Instant::now();
        while team.shared.asleep.load(Ordering::SeqCst) < count {
            assert!(start.elapsed() < Duration::from_secs(20), "a busy machine, or workers that never sleep");
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
    fn who_comes_last_to_a_barrier_wakes_the_others() {
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
        assert!(!shared.move_apart(0), "nobody is here");
        if cores() > 1 {
            // The scheduler may move this thread at any time.
            let moved = (0..1000).any(|_| {
                shared.cores[1].0.store(affinity::current_core().unwrap(), Ordering::Relaxed);
                shared.move_apart(0)
            });
            assert!(moved, "stays on {here}");
        }
    }
}
