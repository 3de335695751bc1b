//! A device's numbers as plain data: what the cost model, the scheduler and the heuristics need to know.

/// What kind of machine a workgroup runs on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Style {
    /// A workgroup is part of one thread's contiguous chunk; stages are computed once per chunk.
    Cpu,
    /// A workgroup is a block of many threads; stages are computed once per workgroup, in shared memory.
    Gpu,
}

/// A device, as the compiler sees it.
#[derive(Clone, PartialEq, Debug)]
pub struct Target {
    /// Name: `cpu-avx512vnni`, `gpu-h200`. Part of every cache key.
    pub name: String,
    /// What a workgroup is.
    pub style: Style,
    /// f32 lanes of a vector register.
    pub lanes: usize,
    /// Vector registers.
    pub registers: usize,
    /// Does one instruction look up all lanes in a table of 16 floats?
    pub table_lookup: bool,
    /// Are activations encoded in eight bits where they meet packed weights?
    pub int8: bool,
    /// Workgroups that run at the same time: threads, or multiprocessors.
    pub workers: usize,
    /// Bytes of stages one workgroup may hold.
    pub stage_bytes: usize,
    /// Memory bandwidth of the whole device, bytes/s.
    pub bandwidth: f64,
    /// Bandwidth of the cache from which every workgroup reads activations again, whole device, bytes/s.
    pub cache_bandwidth: f64,
    /// f32 operations per second of the whole device.
    pub operations: f64,
    /// Seconds that one more dependent launch costs.
    pub launch: f64,
    /// Seconds of one dependent step inside a kernel (a barrier between a stage and its reader).
    pub barrier: f64,
}

impl Target {
    /// A CPU with `threads` workers and vectors of `lanes` floats.
    pub fn cpu(isa: &str, lanes: usize, threads: usize) -> Target {
        Target {
            name: format!("cpu-{isa}"),
            style: Style::Cpu,
            lanes,
            registers: if lanes >= 16 { 32 } else { 16 },
            table_lookup: lanes == 16,
            int8: true,
            workers: threads,
            stage_bytes: 256 << 10,
            bandwidth: 12e9 * threads as f64,
            cache_bandwidth: 60e9 * threads as f64,
            operations: 6e9 * lanes as f64 * threads as f64,
            launch: 1.5e-6,
            barrier: 0.0,
        }
    }
    /// A GPU with the numbers measured on an H200.
    pub fn gpu_h200() -> Target {
        Target {
            name: "gpu-h200".into(),
            style: Style::Gpu,
            lanes: 1,
            registers: 128,
            table_lookup: false,
            int8: false,
            workers: 132,
            stage_bytes: 96 << 10,
            bandwidth: 4.6e12,
            cache_bandwidth: 10e12,
            operations: 60e12,
            launch: 0.7e-6,
            barrier: 0.05e-6,
        }
    }
}
