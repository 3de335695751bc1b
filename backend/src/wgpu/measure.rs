//! Measures an adapter's memory bandwidth and arithmetic rate with two kernels.
//!
//! These are the only costs of an adapter without a row in the table of machines.

use super::dialect::measuring::{COMPUTE, OPERATIONS_PER_ROUND, READ, text};
use gristmill_runtime::{Buffer, Device, Error, Launch, Memory, Replay};
use gristmill_uop::Graph;
use gristmill_uop::costs::Costs;
use gristmill_uop::program::{Access, Extent, Param, Program};
use std::sync::Arc;

/// Bytes to read, maximum and minimum; the shorter of two runs reads half. Half the maximum
/// exceeds the caches of current cards except the largest (256 MB, MI300X); adapters limited to
/// 128 MiB may read partly from a cache.
const BYTES: [usize; 2] = [512 << 20, 64 << 20];
/// Threads of a workgroup at most, and workgroups: about as many threads as an H100 runs at once.
///
/// Each thread reads new addresses, as repeated ones would be in a cache.
const THREADS: usize = 256;
const GROUPS: usize = 1024;
/// Seconds of the shorter compute run: 100 times the error of the host's clock, which replaces
/// missing timestamps, and 1/100 of the drivers' time limit for a kernel.
const MIN_RUN_SECONDS: f64 = 10e-3;
/// Maximum rounds of the shorter compute run.
const MAX_ROUNDS: i64 = 1 << 20;
/// Runs of each length, alternating. The value was not chosen by measurement.
const PASSES: usize = 4;
/// Accepted time ratio of twice as many rounds; outside it, the clock or other load interferes.
const PLAUSIBLE_RATIO: std::ops::RangeInclusive<f64> = 1.5..=2.5;
/// Name of the variable with the number of rounds.
const VARIABLE: &str = "rounds";

/// Measures bandwidth in bytes/s and operations/s.
///
/// # Errors
/// When the device fails, has too little memory, or the times are implausible.
pub fn costs(device: &dyn Device) -> Result<Costs, Error> {
    let threads = device.target().threads.min(THREADS);
    let of_all = 16 * threads * GROUPS;
    let free = device.available().map_or(BYTES[0], |free| {
        usize::try_from(free / 4).unwrap_or(BYTES[0])
    });
    let bytes = free
        .min(device.target().machine.largest_binding)
        .min(BYTES[0])
        / (2 * of_all)
        * (2 * of_all);
    if bytes < BYTES[1] {
        return Err(Error::invalid(
            "measuring",
            format!("{bytes} bytes of memory are too few for it"),
        ));
    }
    let data = device.alloc(bytes, Memory::Scratch)?;
    let mut reading = Rounds::new(device, ("measure_read", READ), threads, &data)?;
    let read = reading.seconds_of_one((bytes / of_all / 2) as i64)?;
    let mut computing = Rounds::new(device, ("measure_compute", COMPUTE), threads, &data)?;
    let rounds = computing.that_take(MIN_RUN_SECONDS)?;
    let computed = computing.seconds_of_one(rounds)?;
    let operations = (OPERATIONS_PER_ROUND * threads * GROUPS) as f64;
    Ok(Costs {
        bandwidth: Some(of_all as f64 / read),
        operations: Some(operations / computed),
        ..Costs::default()
    })
}

/// A captured step with a kernel that repeats rounds.
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
            params: vec![Param {
                slot: 0,
                access: Access::Write,
                extent: Extent::Fixed(data.len()),
            }],
            vars: vec![VARIABLE.into()],
            threads,
            ..Program::new(name, Arc::new(graph), groups, groups)
        };
        let kernel = device.load(&[program], &|_, _| ())?.remove(0);
        let step = device.capture(vec![Launch {
            kernel,
            buffers: vec![data.clone()],
            level: 0,
        }])?;
        Ok(Rounds { name, step })
    }
    /// Runs that number of rounds. Returns the seconds.
    fn seconds(&mut self, rounds: i64) -> Result<f64, Error> {
        Ok(self.step.replay_timed(&[(VARIABLE, rounds)])?.iter().sum())
    }
    /// Returns a number of rounds that takes at least `seconds`.
    ///
    /// It is doubled from one, so that no run is long on a slow adapter, and a fast one has raised
    /// its clocks by the end.
    fn that_take(&mut self, seconds: f64) -> Result<i64, Error> {
        let mut rounds = 1;
        while rounds < MAX_ROUNDS && self.seconds(rounds)? < seconds {
            rounds *= 2;
        }
        Ok(rounds)
    }
    /// Returns the seconds of one round: the difference between n and 2n rounds, each the minimum
    /// of several alternating runs.
    fn seconds_of_one(&mut self, rounds: i64) -> Result<f64, Error> {
        let [mut short, mut long] = [f64::INFINITY; 2];
        self.seconds(2 * rounds)?;
        for _ in 0..PASSES {
            short = short.min(self.seconds(rounds)?);
            long = long.min(self.seconds(2 * rounds)?);
        }
        match PLAUSIBLE_RATIO.contains(&(long / short)) {
            true => Ok((long - short) / rounds as f64),
            false => Err(Error::invalid(
                self.name,
                format!("{rounds} rounds took {short} s, and twice as many {long}"),
            )),
        }
    }
}
