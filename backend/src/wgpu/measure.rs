//! How much an adapter reads and computes a second, by two kernels of its own: of one that no row of the table of machines has, plans know nothing else.

use super::dialect::measuring::{COMPUTE, OF_A_ROUND, READ, text};
use gristmill_runtime::{Buffer, Device, Error, Launch, Memory};
use gristmill_uop::Graph;
use gristmill_uop::costs::Costs;
use gristmill_uop::program::{Access, Extent, Param, Program};
use std::sync::Arc;

/// Bytes that are read, at most and at least: more than any cache of today (256 MB of an MI300X, 96 of most large ones).
const BYTES: [usize; 2] = [512 << 20, 64 << 20];
/// Threads of a workgroup, and workgroups: several times what any GPU of today runs at once.
const THREADS: usize = 256;
const GROUPS: usize = 4096;
/// Bytes that all threads read in a round.
const OF_ALL: usize = 16 * THREADS * GROUPS;
/// Rounds of computing, of the shorter run: 2 ms of a GPU with 2e12 operations a second, 0.07 of one with 60e12.
const ROUNDS: i64 = 64;
/// Passes of each, beside a first that counts for nothing.
const PASSES: usize = 4;
/// What counts the rounds.
const VARIABLE: &str = "rounds";

/// Measures.
///
/// # Errors
/// Whatever the device says, and where it has too little memory free.
pub fn costs(device: &dyn Device) -> Result<Costs, Error> {
    let free = device.available().map_or(BYTES[0], |free| usize::try_from(free / 4).unwrap_or(BYTES[0]));
    let bytes = free.min(device.target().machine.largest_binding).min(BYTES[0]) / (2 * OF_ALL) * (2 * OF_ALL);
    if bytes < BYTES[1] {
        return Err(Error::invalid("measuring", format!("too little memory is free for it: {free} bytes")));
    }
    let data = device.alloc(bytes, Memory::Scratch)?;
    let read = of_a_round(device, ("measure_read", READ), &data, (bytes / OF_ALL / 2) as i64)?;
    let computed = of_a_round(device, ("measure_compute", COMPUTE), &data, ROUNDS)?;
    let operations = (OF_A_ROUND * THREADS * GROUPS) as f64;
    Ok(Costs { bandwidth: Some(OF_ALL as f64 / read), operations: Some(operations / computed), ..Costs::default() })
}

/// Seconds of one of the kernel's rounds: the difference between so many and twice as many, by the least of a few passes.
fn of_a_round(device: &dyn Device, (name, round): (&str, &str), data: &Buffer, few: i64) -> Result<f64, Error> {
    let mut graph = Graph::new();
    let groups = graph.int(GROUPS as i64);
    let program = Program {
        source: text(name, THREADS, round),
        params: vec![Param { slot: 0, access: Access::Write, extent: Extent::Fixed(data.len()) }],
        vars: vec![VARIABLE.into()],
        threads: THREADS,
        ..Program::new(name, Arc::new(graph), groups, groups)
    };
    let kernel = device.load(&[program], &|_, _| ())?.remove(0);
    let mut step = device.capture(vec![Launch { kernel, buffers: vec![data.clone()], level: 0 }])?;
    let mut least = |rounds: i64| -> Result<f64, Error> {
        let mut time = || Ok::<f64, Error>(step.replay_timed(&[(VARIABLE, rounds)])?.iter().sum());
        time()?;
        (0..PASSES).try_fold(f64::INFINITY, |least, _| Ok(least.min(time()?)))
    };
    let short = least(few)?;
    Ok((least(2 * few)? - short) / few as f64)
}
