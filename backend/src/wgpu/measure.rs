//! How much an adapter reads and computes a second, by two kernels of its own: of one that no row of the table of machines has, plans know nothing else.

use super::dialect::measuring::{COMPUTE, OF_A_ROUND, READ, THREADS};
use gristmill_runtime::{Buffer, Device, Error, Launch, Memory};
use gristmill_uop::Graph;
use gristmill_uop::costs::Costs;
use gristmill_uop::program::{Access, Extent, Param, Program};
use std::sync::Arc;

/// Bytes that are read, and at least: more than any cache of today (256 MB of an MI300X, 96 of most large ones).
const BYTES: [usize; 2] = [64 << 20, 512 << 20];
/// Workgroups: several times what any GPU of today runs at once.
const GROUPS: i64 = 4096;
/// Rounds of the shorter run: 2 ms of a GPU with 2e12 operations a second, 0.07 of one with 60e12.
const ROUNDS: i64 = 64;
/// Passes of each, beside a first that counts for nothing.
const PASSES: usize = 4;

/// Measures.
///
/// # Errors
/// Whatever the device says, and where it has too little memory free.
pub fn costs(device: &dyn Device) -> Result<Costs, Error> {
    let free = device.available().map_or(BYTES[1], |free| usize::try_from(free / 4).unwrap_or(BYTES[1]));
    let bytes = free.min(device.target().machine.largest_binding).min(BYTES[1]) / 4096 * 4096;
    if bytes < BYTES[0] {
        return Err(Error::invalid("measuring", format!("too little memory is free for it: {free} bytes")));
    }
    let told = device.alloc(64, Memory::Scratch)?;
    let data = device.alloc(bytes, Memory::Scratch)?;
    let words = (bytes / 16) as i64;
    let read = of_one_more(device, ("measure_read", READ, "words"), vec![told.clone(), data], words / 2)?;
    let computed = of_one_more(device, ("measure_compute", COMPUTE, "rounds"), vec![told], ROUNDS)?;
    Ok(Costs {
        bandwidth: Some(16.0 / read),
        operations: Some((OF_A_ROUND * THREADS) as f64 * GROUPS as f64 / computed),
        ..Costs::default()
    })
}

/// Seconds of one more of what the kernel's variable counts: the difference between so many and twice as many, by the least of a few passes.
fn of_one_more(
    device: &dyn Device,
    (name, text, variable): (&'static str, &str, &'static str),
    buffers: Vec<Buffer>,
    few: i64,
) -> Result<f64, Error> {
    let mut graph = Graph::new();
    let groups = graph.int(GROUPS);
    let param = |(slot, buffer): (usize, &Buffer)| Param {
        slot: slot as u32,
        access: if slot == 0 { Access::Write } else { Access::Read },
        extent: Extent::Fixed(buffer.len()),
    };
    let program = Program {
        source: text.into(),
        params: buffers.iter().enumerate().map(param).collect(),
        vars: vec![variable.into()],
        threads: THREADS,
        ..Program::new(name, Arc::new(graph), groups, groups)
    };
    let kernel = device.load(&[program], &|_, _| ())?.remove(0);
    let mut step = device.capture(vec![Launch { kernel, buffers, level: 0 }])?;
    let mut least = |count: i64| -> Result<f64, Error> {
        step.replay_timed(&[(variable, count)])?;
        (0..PASSES)
            .try_fold(f64::INFINITY, |least, _| Ok(least.min(step.replay_timed(&[(variable, count)])?.iter().sum())))
    };
    let short = least(few)?;
    Ok((least(2 * few)? - short) / few as f64)
}
