//! What things cost on a processor: by a team whose workers stay on cores of their own, since two that a system puts on one core read half as much, for as
//! long as it likes.

use super::memory::Map;
use super::team::{Team, Worker};
use gristmill_runtime::{Error, Memory, memory};
use gristmill_uop::costs::Costs;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Passes over memory of which the best counts.
#[derive(Clone, Copy)]
pub struct Passes {
    /// So many at least,
    pub least: usize,
    /// at most,
    pub most: usize,
    /// and more than the least only until so much time has passed.
    pub time: Duration,
}

/// Bytes that are read: more than most caches, and on two cores that read 5 GB/s each 50 ms a pass.
const READ_BYTES: usize = 512 << 20;
/// Of a machine with little memory, at least so many: more than the caches of its cores.
const MIN_READ_BYTES: usize = 64 << 20;
/// Passes over them.
const PASSES: Passes = Passes { least: 3, most: 100, time: Duration::from_millis(200) };
/// Barriers of a run: each takes 0.1 to 1 µs.
const BARRIERS: usize = 20_000;
/// Words of a block behind which a worker goes on elsewhere (4 KB), and blocks of each worker: 64 MiB of its own.
const BLOCK_WORDS: usize = 512;
const BLOCKS_PER_WORKER: usize = 16 << 10;
/// Loads one after the other: 100 ns each.
const LATENCY_LOADS: usize = 200_000;
/// Runs of these, of which the best counts.
const RUNS: usize = 3;

/// Measures, with so many workers.
///
/// # Errors
/// Where there is too little memory, or a thread does not start.
pub fn costs(threads: usize) -> Result<Costs, Error> {
    let team = Team::new(threads, true)?;
    let room = memory::available().map_or(READ_BYTES, |bytes| usize::try_from(bytes / 4).unwrap_or(READ_BYTES));
    let data = Data::new(&team, room.clamp(MIN_READ_BYTES, READ_BYTES) / 8)?;
    Ok(Costs {
        bandwidth: Some(bandwidth(&team, &[data.words()], PASSES)?),
        launch: Some(best(|| barriers(&team))? / BARRIERS as f64),
        latency: Some(best(|| chase(&team, data.words()))? / LATENCY_LOADS as f64),
        jump: jump(&team, data.words())?,
        ..Costs::NONE
    })
}

/// The least of a few runs.
fn best(run: impl Fn() -> Result<f64, Error>) -> Result<f64, Error> {
    (0..RUNS).try_fold(f64::INFINITY, |least, _| Ok(least.min(run()?)))
}

/// Seconds that the team needs for this.
fn seconds(team: &Team, job: &(dyn Fn(&Worker) + Sync)) -> Result<f64, Error> {
    let start = Instant::now();
    team.run(0, job)?;
    Ok(start.elapsed().as_secs_f64())
}

/// Memory as weights have it, with a number in each word: pages that nobody wrote would all be one.
struct Data {
    map: Map,
    words: usize,
}

impl Data {
    fn new(team: &Team, words: usize) -> Result<Data, Error> {
        let map = Map::new(words * 8, Memory::Weights)?;
        team.run(0, &|worker| {
            let part = part_of(words, worker);
            // SAFETY: words of the mapping, of which each worker has others, and nobody reads before all have ended.
            unsafe { std::slice::from_raw_parts_mut(map.base().cast::<u64>().add(part.start), part.len()) }.fill(1);
        })?;
        Ok(Data { map, words })
    }
    fn words(&self) -> &[u64] {
        // SAFETY: as many as the mapping has, page-aligned, written before; nobody writes them any more.
        unsafe { std::slice::from_raw_parts(self.map.base().cast(), self.words) }
    }
}

/// A worker's share of so many things.
fn part_of(count: usize, worker: &Worker) -> std::ops::Range<usize> {
    let end = |index: usize| count * index / worker.count();
    end(worker.index)..end(worker.index + 1)
}

/// Bytes a second that the team reads of these words, of each of which a worker has a part, as kernels share their rows.
pub fn bandwidth(team: &Team, all: &[&[u64]], passes: Passes) -> Result<f64, Error> {
    let read = |worker: &Worker| {
        for words in all {
            std::hint::black_box(sum(&words[part_of(words.len(), worker)]));
        }
    };
    let (begin, mut passed, mut best) = (Instant::now(), 0, f64::INFINITY);
    // Clocks and memories that slept take their time to wake.
    while passed < passes.least || passed < passes.most && begin.elapsed() < passes.time {
        best = best.min(seconds(team, &read)?);
        passed += 1;
    }
    Ok(all.iter().map(|words| size_of_val(*words)).sum::<usize>() as f64 / best)
}

/// Parts that a thread reads side by side: one alone keeps too few cache lines on their way.
const STREAMS: usize = 4;

/// The sum of all whole groups of 16 words.
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

/// Seconds of many barriers between all workers.
fn barriers(team: &Team) -> Result<f64, Error> {
    seconds(team, &|worker| (0..BARRIERS).for_each(|_| worker.barrier()))
}

/// Seconds of many loads by one worker, the address of each from the one before, over all of the memory in no order.
fn chase(team: &Team, words: &[u64]) -> Result<f64, Error> {
    // Lines of 64 bytes, a power of two of them: the sequence then comes to each once before it comes to one again.
    let mask = (words.len() / 8 + 1).next_power_of_two() / 2 - 1;
    // Each run goes on where the one before has ended, at lines that no cache has.
    static NEXT: AtomicU64 = AtomicU64::new(1);
    seconds(team, &|worker| {
        if worker.index > 0 {
            return;
        }
        let mut line = NEXT.load(Ordering::Relaxed) as usize & mask;
        for _ in 0..LATENCY_LOADS {
            let value = words[line * 8];
            line = line.wrapping_mul(1_664_525).wrapping_add(1_013_904_222 + value as usize) & mask;
        }
        NEXT.store(line as u64, Ordering::Relaxed);
    })
}

/// Seconds more that a block takes each worker where it lies elsewhere than behind the one before.
fn jump(team: &Team, words: &[u64]) -> Result<Option<f64>, Error> {
    let blocks = (words.len() / BLOCK_WORDS / team.count() + 1).next_power_of_two() / 2;
    let blocks = blocks.min(BLOCKS_PER_WORKER);
    // An odd number goes through a power of two in an order of its own; 1 in the order of memory.
    let run = |step: usize| {
        best(|| {
            seconds(team, &|worker| {
                let mine = &words[worker.index * blocks * BLOCK_WORDS..][..blocks * BLOCK_WORDS];
                let block = |i: usize| i.wrapping_mul(step) & (blocks - 1);
                let total = (0..blocks)
                    .fold(0u64, |t, i| t.wrapping_add(block_sum(&mine[block(i) * BLOCK_WORDS..][..BLOCK_WORDS])));
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
        assert_eq!(sum(&a) + sum(&b[..3000]) + sum(&b[3000..]), (1 << 20) + 2992, "groups of 16");
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
        assert!(jump(&team, data.words()).unwrap().is_some_and(f64::is_finite));
    }
}
