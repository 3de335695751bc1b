//! How much an adapter reads and computes a second, by two kernels of its own: of one that no row of the table of machines has, plans know nothing else.

use super::dialect::measuring::{COMPUTE, OPERATIONS_PER_ROUND, READ, text};
use gristmill_runtime::{Buffer, Device, Error, Launch, Memory, Replay};
use gristmill_uop::Graph;
use gristmill_uop::costs::Costs;
use gristmill_uop::program::{Access, Extent, Param, Program};
use std::sync::Arc;

/// Bytes that are read, at most and at least; half of them by the shorter of two runs. That is more than the caches of today's cards but for the largest (256 MB of an MI300X); adapters that bind 128 MiB may have
/// some of it in a cache.
const BYTES: [usize; 2] = [512 << 20, 64 << 20];
/// Most threads of a workgroup, and workgroups: as many threads as an H100 runs at once. Each reads anew, as what a thread reads again is in a cache.
const THREADS: usize = 256;
const GROUPS: usize = 1024;
/// Seconds of the shorter run that computes: a hundred times what the host's clock errs by where there are no timestamps, and a hundredth of what drivers let a kernel run.
const MIN_RUN_SECONDS: f64 = 10e-3;
/// Rounds of it at most.
const MAX_ROUNDS: i64 = 1 << 20;
/// Passes of each, in turns. Not measured.
const PASSES: usize = 4;
/// How many times as long twice as many rounds take, if the clock, and whoever else uses the adapter, let it be believed.
const PLAUSIBLE_RATIO: std::ops::RangeInclusive<f64> = 1.5..=2.5;
/// What counts the rounds.
const VARIABLE: &str = "rounds";

/// Measures.
///
/// # Errors
/// Whatever the device says, where it has too little memory, and where times say nothing.
pub fn costs(device: &dyn Device) -> Result<Costs, Error> {
    let threads = device.target().threads.min(THREADS);
    let of_all = 16 * threads * GROUPS;
    let free = device.available().map_or(BYTES[0], |free| usize::try_from(free / 4).unwrap_or(BYTES[0]));
    let bytes = free.min(device.target().machine.largest_binding).min(BYTES[0]) / (2 * of_all) * (2 * of_all);
    if bytes < BYTES[1] {
        return Err(Error::invalid("measuring", format!("{bytes} bytes of memory are too few for it")));
    }
    let data = device.alloc(bytes, Memory::Scratch)?;
    let mut reading = Rounds::new(device, ("measure_read", READ), threads, &data)?;
    let read = reading.seconds_of_one((bytes / of_all / 2) as i64)?;
    let mut computing = Rounds::new(device, ("measure_compute", COMPUTE), threads, &data)?;
    let rounds = computing.that_take(MIN_RUN_SECONDS)?;
    let computed = computing.seconds_of_one(rounds)?;
    let operations = (OPERATIONS_PER_ROUND * threads * GROUPS) as f64;
    Ok(Costs { bandwidth: Some(of_all as f64 / read), operations: Some(operations / computed), ..Costs::default() })
}

/// A kernel of rounds, as a step.
struct Rounds {
    name: &'static str,
    step: Box<dyn Replay>,
}

impl Rounds {
    fn new(
        device: &dyn Device,
        (name, round): (&'static str, &str),
        threads: usize,
        data: &Buffer,
    ) -> Result<Rounds, Error> {
        let mut graph = Graph::new();
        let groups = graph.int(GROUPS as i64);
        let program = Program {
            source: text(name, threads, round),
            params: vec![Param { slot: 0, access: Access::Write, extent: Extent::Fixed(data.len()) }],
            vars: vec![VARIABLE.into()],
            threads,
            ..Program::new(name, Arc::new(graph), groups, groups)
        };
        let kernel = device.load(&[program], &|_, _| ())?.remove(0);
        let step = device.capture(vec![Launch { kernel, buffers: vec![data.clone()], level: 0 }])?;
        Ok(Rounds { name, step })
    }
    /// Seconds of so many.
    fn seconds(&mut self, rounds: i64) -> Result<f64, Error> {
        Ok(self.step.replay_timed(&[(VARIABLE, rounds)])?.iter().sum())
    }
    /// As many as take so many seconds: doubled from one on, so that none is long on a slow adapter, and a fast one is awake by then.
    fn that_take(&mut self, seconds: f64) -> Result<i64, Error> {
        let mut rounds = 1;
        while rounds < MAX_ROUNDS && self.seconds(rounds)? < seconds {
            rounds *= 2;
        }
        Ok(rounds)
    }
    /// Seconds of one: the difference between some and twice as many, by the least of a few passes in turns.
    fn seconds_of_one(&mut self, rounds: i64) -> Result<f64, Error> {
        let [mut short, mut long] = [f64::INFINITY; 2];
        self.seconds(2 * rounds)?;
        for _ in 0..PASSES {
            short = short.min(self.seconds(rounds)?);
            long = long.min(self.seconds(2 * rounds)?);
        }
        match PLAUSIBLE_RATIO.contains(&(long / short)) {
            true => Ok((long - short) / rounds as f64),
            false => {
                Err(Error::invalid(self.name, format!("{rounds} rounds took {short} s, and twice as many {long}")))
            }
        }
    }
}
