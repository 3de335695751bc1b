//! Measures a CPU's costs with a pinned team.
//!
//! Without pinning, the system may run two workers on one core, which halves their bandwidth until
//! one migrates.

use super::memory::Map;
use super::team::{Team, Worker};
use gristmill_runtime::{Error, Memory, memory};
use gristmill_uop::costs::Costs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Number of passes over memory, of which the best counts.
#[derive(Clone, Copy)]
pub struct Passes {
    /// Minimum number of passes.
    pub least: usize,
    /// Maximum number of passes.
    pub most: usize,
    /// Time after which no pass beyond the minimum starts.
    pub time: Duration,
}

/// Bytes to read: more than most caches, and 50 ms a pass on two cores at 5 GB/s each.
const READ_BYTES: usize = 512 << 20;
/// Minimum bytes to read with little memory: more than the caches of its cores.
const MIN_READ_BYTES: usize = 64 << 20;
/// Passes of the bandwidth measurement.
const PASSES: Passes = Passes {
    least: 3,
    most: 100,
    time: Duration::from_millis(200),
};
/// Barriers of a run: each takes 0.1 to 1 µs.
const BARRIERS: usize = 20_000;
/// Words of a contiguous block (4 KB), then maximum blocks of each worker: 64 MiB.
const BLOCK_WORDS: usize = 512;
const BLOCKS_PER_WORKER: usize = 16 << 10;
/// Dependent loads of a run: about 100 ns each.
const LATENCY_LOADS: usize = 200_000;
/// Runs of launch, latency and jump, of which the best counts.
const RUNS: usize = 3;

/// Measures bandwidth, launch, latency and jump with `threads` workers.
///
/// # Errors
/// When there is too little memory, or a thread does not start.
pub fn costs(threads: usize) -> Result<Costs, Error> {
    let team = Team::new(threads, true)?;
    let room = memory::available().map_or(READ_BYTES, |bytes| {
        usize::try_from(bytes / 4).unwrap_or(READ_BYTES)
    });
    let data = Data::new(&team, room.clamp(MIN_READ_BYTES, READ_BYTES) / 8)?;
    Ok(Costs {
        bandwidth: Some(bandwidth(&team, &[data.words()], PASSES)?),
        launch: Some(best(|| barriers(&team))? / BARRIERS as f64),
        latency: Some(best(|| chase(&team, data.words()))? / LATENCY_LOADS as f64),
        jump: jump(&team, data.words())?,
        ..Costs::NONE
    })
}

/// Returns the minimum of several runs.
fn best(run: impl Fn() -> Result<f64, Error>) -> Result<f64, Error> {
    (0..RUNS).try_fold(f64::INFINITY, |least, _| Ok(least.min(run()?)))
}

/// Runs a job on the team. Returns the seconds.
fn seconds(team: &Team, job: &(dyn Fn(&Worker) + Sync)) -> Result<f64, Error> {
    let start = Instant::now();
    team.run(0, job)?;
    Ok(start.elapsed().as_secs_f64())
}

/// Memory allocated as weights. All words are written, since untouched pages would
/// share one zero page.
struct Data {
    map: Map,
    words: usize,
}

impl Data {
    fn new(team: &Team, words: usize) -> Result<Data, Error> {
        let map = Map::new(words * 8, Memory::Weights)?;
        team.run(0, &|worker| {
            let part = part_of(words, worker);
            // SAFETY: words of the mapping; workers write disjoint parts, and reads start
            // after all have ended.
            unsafe {
                std::slice::from_raw_parts_mut(map.base().cast::<u64>().add(part.start), part.len())
            }
            .fill(1);
        })?;
        Ok(Data { map, words })
    }
    fn words(&self) -> &[u64] {
        // SAFETY: the mapping has that many words, page-aligned and initialised; they are
        // not written any more.
        unsafe { std::slice::from_raw_parts(self.map.base().cast(), self.words) }
    }
}

/// Returns a worker's share of `count` items.
fn part_of(count: usize, worker: &Worker) -> std::ops::Range<usize> {
    let end = |index: usize| count * index / worker.count();
    end(worker.index)..end(worker.index + 1)
}

/// Returns the bytes per second that the team reads from these words, each worker a part of each
/// slice, as kernels share rows.
pub fn bandwidth(team: &Team, all: &[&[u64]], passes: Passes) -> Result<f64, Error> {
    let read = |worker: &Worker| {
        for words in all {
            std::hint::black_box(sum(&words[part_of(words.len(), worker)]));
        }
    };
    let (begin, mut passed, mut best) = (Instant::now(), 0, f64::INFINITY);
    // Clocks and memory need time to leave power saving.
    while passed < passes.least || passed < passes.most && begin.elapsed() < passes.time {
        best = best.min(seconds(team, &read)?);
        passed += 1;
    }
    Ok(all.iter().map(|words| size_of_val(*words)).sum::<usize>() as f64 / best)
}

/// Streams that a thread reads alternately: a single one keeps too few cache lines in flight.
const STREAMS: usize = 4;

/// Sums all complete groups of 16 words.
fn sum(words: &[u64]) -> u64 {
    let mut sums = [0u64; 16];
    let mut add = |group: &[u64]| {
        for (s, w) in sums.iter_mut().zip(group) {
            *s = s.wrapping_add(*w);
        }
    };
    let part = words.len() / (16 * STREAMS) * 16;
    for at in (0..part).step_by(16) {
        for stream in 0..STREAMS {
            add(&words[stream * part + at..][..16]);
        }
    }
    words[STREAMS * part..].chunks_exact(16).for_each(add);
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}

/// Measures the seconds of [`BARRIERS`] barriers of all workers.
fn barriers(team: &Team) -> Result<f64, Error> {
    seconds(team, &|worker| (0..BARRIERS).for_each(|_| worker.barrier()))
}

/// Measures the seconds of [`LATENCY_LOADS`] dependent loads by one worker, in pseudorandom order.
fn chase(team: &Team, words: &[u64]) -> Result<f64, Error> {
    // A power of two of 64-byte lines, so that the sequence visits each line before it repeats.
    let mask = (words.len() / 8 + 1).next_power_of_two() / 2 - 1;
    // Each run continues where the previous one ended, at lines that no cache holds.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    seconds(team, &|worker| {
        if worker.index > 0 {
            return;
        }
        let mut line = NEXT.load(Ordering::Relaxed) as usize & mask;
        for _ in 0..LATENCY_LOADS {
            let value = words[line * 8];
            line = line
                .wrapping_mul(1_664_525)
                .wrapping_add(1_013_904_222 + value as usize)
                & mask;
        }
        NEXT.store(line as u64, Ordering::Relaxed);
    })
}

/// Measures the additional seconds of a block that does not follow the previous one in memory.
fn jump(team: &Team, words: &[u64]) -> Result<Option<f64>, Error> {
    let blocks = (words.len() / BLOCK_WORDS / team.count() + 1).next_power_of_two() / 2;
    let blocks = blocks.min(BLOCKS_PER_WORKER);
    // An odd step permutes a power of two; step 1 is the order of memory.
    let run = |step: usize| {
        best(|| {
            seconds(team, &|worker| {
                let mine = &words[worker.index * blocks * BLOCK_WORDS..][..blocks * BLOCK_WORDS];
                let block = |i: usize| i.wrapping_mul(step) & (blocks - 1);
                let total = (0..blocks).fold(0u64, |t, i| {
                    t.wrapping_add(block_sum(&mine[block(i) * BLOCK_WORDS..][..BLOCK_WORDS]))
                });
                std::hint::black_box(total);
            })
        })
    };
    Ok(Some((run(40_503)? - run(1)?) / blocks as f64))
}

fn block_sum(words: &[u64]) -> u64 {
    words.iter().fold(0, |a, w| a.wrapping_add(*w))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_is_read() {
        let (a, b) = (vec![1u64; 1 << 20], vec![1u64; 3001]);
        assert_eq!(
            sum(&a) + sum(&b[..3000]) + sum(&b[3000..]),
            (1 << 20) + 2992,
            "groups of 16"
        );
        let team = Team::new(2, false).unwrap();
        let found = bandwidth(&team, &[&a, &b], Passes { least: 1, ..PASSES }).unwrap();
        assert!((1e6..1e13).contains(&found), "{found}");
    }

    #[test]
    fn small_memories_are_measured_too() {
        let team = Team::new(3, false).unwrap();
        let data = Data::new(&team, 100_003).unwrap();
        assert_eq!(sum(data.words()), 100_003 / 16 * 16);
        assert!(chase(&team, data.words()).unwrap() > 0.0);
        assert!(
            jump(&team, data.words())
                .unwrap()
                .is_some_and(f64::is_finite)
        );
    }
}
