//! Measures a GPU's costs with small kernels: a full read, a kernel
//! chain, barriers, dependent loads.
//!
//! Times are from the device's clock (`clocks.rs`); the minimum of several runs counts.

use super::dialect::measuring::{BARRIERS, CHASE, LINK, PAGE, READ, THREADS};
use gristmill_runtime::{Buffer, Device, Error, Launch, Memory, Replay};
use gristmill_uop::Graph;
use gristmill_uop::costs::Costs;
use gristmill_uop::program::{Access, Extent, Param, Program};
use std::sync::Arc;

/// Bytes to read: many times an H200's 50 MiB L2 cache, and 0.23 ms of its memory bandwidth.
const MAX_READ_BYTES: usize = 1 << 30;
/// Minimum bytes to read as a multiple of the L2 cache, for GPUs with little free memory.
const MIN_CACHE_MULTIPLE: usize = 4;
/// Reading workgroups of a multiprocessor: 32 warps with eight 16-byte loads per thread, three
/// times the bytes in flight that an H200's memory needs.
const READERS_PER_UNIT: usize = 4;
/// Kernels of a chain; the first and last are not counted, as their neighbours are outside it.
const CHAIN_LENGTH: usize = 48;
/// Barriers, then loads, of the shorter of two runs whose difference is taken; the longer one has
/// twice as many. A clock of 1 us resolution then errs by 1 %.
const BARRIERS_PER_RUN: i64 = 8192;
const LOADS_PER_RUN: i64 = 2048;
/// Measured runs, after one that is discarded.
const PASSES: usize = 4;

/// Measures bandwidth, launch, barrier and latency.
///
/// # Errors
/// When the device fails or has too little free memory.
pub fn costs(device: &dyn Device) -> Result<Costs, Error> {
    let machine = &device.target().machine;
    let units = machine.units.max(1);
    // A device that does not report free memory is assumed to have little.
    let free = device.available().map_or(MAX_READ_BYTES / 4, |free| {
        usize::try_from(free / 4).unwrap_or(MAX_READ_BYTES)
    });
    let bytes = free.min(MAX_READ_BYTES) / PAGE * PAGE;
    if bytes < PAGE.max(MIN_CACHE_MULTIPLE * machine.cache) {
        return Err(Error::invalid(
            "measuring",
            format!("too little memory is free for it: {free} bytes"),
        ));
    }
    let bench = Bench {
        device,
        data: device.alloc(bytes, Memory::Weights)?,
        words: [0, 1]
            .map(|_| device.alloc(4 * units * READERS_PER_UNIT + 64, Memory::Scratch))
            .into_iter()
            .collect::<Result<_, _>>()?,
        variables: vec![
            ("words", (bytes / 16) as i64),
            ("readers", (units * READERS_PER_UNIT) as i64),
            ("units", units as i64),
            ("pages", (bytes / PAGE) as i64),
            ("one", 1),
        ],
    };
    let (bandwidth, latency) = bench.memory()?;
    Ok(Costs {
        bandwidth,
        latency,
        launch: bench.launch()?,
        barrier: bench.barrier()?,
        ..Costs::default()
    })
}

/// State shared by all runs.
struct Bench<'a> {
    device: &'a dyn Device,
    /// Input, read in words of 16 bytes or one line at a time; contents undefined.
    data: Buffer,
    /// Outputs of the kernels.
    words: Vec<Buffer>,
    variables: Vec<(&'static str, i64)>,
}

/// A kernel: text, variables, the variable that counts workgroups, and threads.
struct Kernel {
    name: &'static str,
    text: &'static str,
    variables: &'static [&'static str],
    groups: &'static str,
    threads: usize,
}

const READ_ALL: Kernel = Kernel {
    name: "measure_read",
    text: READ,
    variables: &["words", "readers"],
    groups: "readers",
    threads: THREADS,
};
const ONE_LINK: Kernel = Kernel {
    name: "measure_link",
    text: LINK,
    variables: &["units"],
    groups: "units",
    threads: THREADS,
};
const ALL_BARRIERS: Kernel = Kernel {
    name: "measure_barrier",
    text: BARRIERS,
    variables: &["barriers", "units"],
    groups: "units",
    threads: THREADS,
};
const ALL_LOADS: Kernel = Kernel {
    name: "measure_chase",
    text: CHASE,
    variables: &["loads", "pages"],
    groups: "one",
    threads: 32,
};

impl Kernel {
    /// Returns a program that writes the first buffer and reads the others, of these sizes.
    fn program(&self, extents: &[usize]) -> Program {
        let mut graph = Graph::new();
        let groups = graph.var(self.groups, 0, i64::from(u16::MAX));
        let access = |slot| {
            if slot == 0 {
                Access::Write
            } else {
                Access::Read
            }
        };
        let param = |(slot, &bytes): (usize, &usize)| Param {
            slot: slot as u32,
            access: access(slot),
            extent: Extent::Fixed(bytes),
        };
        Program {
            source: self.text.replace("NAME", self.name),
            params: extents.iter().enumerate().map(param).collect(),
            vars: self.variables.iter().map(|&name| Arc::from(name)).collect(),
            threads: self.threads,
            ..Program::new(self.name, Arc::new(graph), groups, groups)
        }
    }
}

impl Bench<'_> {
    /// Captures a step of these kernels, one after the other.
    fn step(&self, kernels: &[(&Kernel, &[&Buffer])]) -> Result<Box<dyn Replay>, Error> {
        let extents = |buffers: &[&Buffer]| {
            buffers
                .iter()
                .map(|buffer| buffer.len())
                .collect::<Vec<_>>()
        };
        let programs: Vec<Program> = kernels
            .iter()
            .map(|(kernel, of)| kernel.program(&extents(of)))
            .collect();
        let mut launches = Vec::new();
        for (level, kernel) in self
            .device
            .load(&programs, &|_, _| ())?
            .into_iter()
            .enumerate()
        {
            let buffers = kernels[level]
                .1
                .iter()
                .map(|&buffer| buffer.clone())
                .collect();
            launches.push(Launch {
                kernel,
                buffers,
                level,
            });
        }
        self.device.capture(launches)
    }

    /// Returns the minimum time of each launch, with additional variables.
    fn best_times(&self, step: &mut dyn Replay, more: &[(&str, i64)]) -> Result<Vec<f64>, Error> {
        let variables: Vec<(&str, i64)> = self.variables.iter().chain(more).copied().collect();
        let mut least = step.replay_timed(&variables)?;
        least.fill(f64::INFINITY);
        for _ in 0..PASSES {
            for (least, seconds) in least.iter_mut().zip(step.replay_timed(&variables)?) {
                *least = least.min(seconds);
            }
        }
        Ok(least)
    }

    /// Measures bandwidth and latency. The full read before the dependent loads evicts
    /// their lines from caches.
    fn memory(&self) -> Result<(Option<f64>, Option<f64>), Error> {
        let buffers = [&self.words[0], &self.data];
        let mut step = self.step(&[(&READ_ALL, &buffers), (&ALL_LOADS, &buffers)])?;
        let short = self.best_times(step.as_mut(), &[("loads", LOADS_PER_RUN)])?;
        let long = self.best_times(step.as_mut(), &[("loads", 2 * LOADS_PER_RUN)])?;
        let bandwidth = self.data.len() as f64 / short[0].min(long[0]);
        Ok((
            Some(bandwidth),
            Some((long[1] - short[1]) / LOADS_PER_RUN as f64),
        ))
    }

    /// Measures the seconds of one more launch.
    fn launch(&self) -> Result<Option<f64>, Error> {
        let (there, back) = (
            [&self.words[0], &self.words[1]],
            [&self.words[1], &self.words[0]],
        );
        let link = |i: usize| -> (&Kernel, &[&Buffer]) {
            (&ONE_LINK, if i.is_multiple_of(2) { &there } else { &back })
        };
        let links: Vec<_> = (0..CHAIN_LENGTH).map(link).collect();
        let mut step = self.step(&links)?;
        // The minimum is over whole chains: single minima would favour times that
        // the clock cut short.
        let variables = &self.variables;
        let mut least = f64::INFINITY;
        for _ in 0..=PASSES {
            let times = step.replay_timed(variables)?;
            least = least.min(times[1..CHAIN_LENGTH - 1].iter().sum());
        }
        Ok(Some(least / (CHAIN_LENGTH - 2) as f64))
    }

    /// Measures the seconds of one barrier.
    fn barrier(&self) -> Result<Option<f64>, Error> {
        let mut step = self.step(&[(&ALL_BARRIERS, &[])])?;
        let short = self.best_times(step.as_mut(), &[("barriers", BARRIERS_PER_RUN)])?;
        let long = self.best_times(step.as_mut(), &[("barriers", 2 * BARRIERS_PER_RUN)])?;
        Ok(Some((long[0] - short[0]) / BARRIERS_PER_RUN as f64))
    }
}
