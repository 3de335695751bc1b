//! A device's numbers as plain data: what the cost model, the scheduler and the heuristics need to know.

/// What kind of machine a workgroup runs on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Style {
    /// A workgroup is part of one thread's contiguous chunk; stages are computed once per chunk.
    Cpu,
    /// A workgroup is a block of many threads; stages are computed once per workgroup, in shared memory.
    Gpu,
}

/// Parameters of the hot kernels that only trying them out on a machine decides: the tuner does. The default is good everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tuning {
    /// Groups of interleaved rows that a workgroup keeps in registers when there is one token; of single rows four times as many.
    pub groups: u8,
    /// Most tokens that a workgroup keeps in registers when there are several; of single rows half as many.
    pub tokens: u8,
    /// How many iterations ahead the next rows are asked for, or so many times 2 KB where rows follow one another; 0 for not at all.
    pub prefetch: u8,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning { groups: 1, tokens: 16, prefetch: 1 }
    }
}

/// One of them, for the tuner.
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Values worth trying, the default among them.
    pub values: &'static [u8],
    /// Where it is kept.
    pub field: fn(&mut Tuning) -> &mut u8,
}

/// The parameters that the tuner tries, in this order.
pub const PARAMETERS: &[Parameter] = &[
    Parameter { name: "groups", values: &[1, 2, 4], field: |t| &mut t.groups },
    Parameter { name: "prefetch", values: &[0, 1, 2, 4], field: |t| &mut t.prefetch },
    Parameter { name: "tokens", values: &[4, 8, 12, 16], field: |t| &mut t.tokens },
];

/// An optimisation that can be switched off. Results stay correct without it.
pub struct Flag {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub doc: &'static str,
    /// Switches it off.
    pub off: fn(&mut Target),
}

/// The optimisations that can be switched off one by one: what each is worth is a matter of measurement.
pub const FLAGS: &[Flag] = &[
    Flag {
        name: "int8",
        doc: "products of integers over interleaved rows, activations encoded in eight bits",
        off: |t| t.int8 = false,
    },
    Flag { name: "prefetch", doc: "the next rows are asked for ahead of time", off: |t| t.tuning.prefetch = 0 },
    Flag { name: "pairs", doc: "products of bytes added in 16 bits, where AVX2 has to", off: |t| t.pairs = false },
    Flag { name: "lookup", doc: "functions of four bits by one table lookup", off: |t| t.table_lookup = false },
    Flag { name: "tiles", doc: "several tokens at once in registers", off: |t| t.tuning.tokens = 1 },
    Flag { name: "fusion", doc: "intermediates computed inside the kernels that read them", off: |t| t.fusion = false },
    Flag { name: "merge", doc: "independent kernels in one launch", off: |t| t.merge = false },
];

/// A device, as the compiler sees it.
#[derive(Clone, PartialEq, Debug)]
pub struct Target {
    /// Name: `cpu-avx512vnni`, `gpu-h200`. Part of every cache key.
    pub name: String,
    /// What a workgroup is.
    pub style: Style,
    /// f32 lanes of a vector register.
    pub lanes: usize,
    /// Threads of a workgroup.
    pub threads: usize,
    /// Vector registers.
    pub registers: usize,
    /// Does one instruction look up all lanes in a table of 16 floats?
    pub table_lookup: bool,
    /// Are products of bytes best added in 16 bits, since no instruction adds four of them to 32?
    pub pairs: bool,
    /// Are products of two signed bytes no dearer than those of an unsigned and a signed one?
    pub signed: bool,
    /// Are activations encoded in eight bits where they meet packed weights?
    pub int8: bool,
    /// Are intermediates computed inside the kernels that read them, where that is cheaper?
    pub fusion: bool,
    /// Do independent kernels share a launch?
    pub merge: bool,
    /// What was, or may be, tuned.
    pub tuning: Tuning,
    /// Workgroups that run at the same time: threads, or multiprocessors.
    pub workers: usize,
    /// Bytes of stages one workgroup may hold.
    pub stage_bytes: usize,
    /// Bytes of stages of a workgroup that has a worker to itself.
    pub most_stage_bytes: usize,
    /// Memory bandwidth of the whole device, bytes/s.
    pub bandwidth: f64,
    /// Seconds that a worker loses where it goes on reading at another place in memory.
    pub jump: f64,
    /// Bandwidth of the cache from which every workgroup reads activations again, whole device, bytes/s.
    pub cache_bandwidth: f64,
    /// f32 operations per second of the whole device.
    pub operations: f64,
    /// Seconds that one more dependent launch costs.
    pub launch: f64,
    /// Seconds until a load from memory is there, where nothing else is done meanwhile.
    pub latency: f64,
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
            threads: 1,
            registers: if lanes >= 16 { 32 } else { 16 },
            table_lookup: lanes == 16,
            pairs: false,
            signed: false,
            int8: true,
            fusion: true,
            merge: true,
            tuning: Tuning::default(),
            workers: threads,
            stage_bytes: 256 << 10,
            most_stage_bytes: 256 << 10,
            bandwidth: 12e9 * threads as f64,
            jump: 0.4e-6,
            cache_bandwidth: 60e9 * threads as f64,
            operations: 6e9 * lanes as f64 * threads as f64,
            launch: 1.5e-6,
            latency: 0.0,
            barrier: 0.0,
        }
    }
    /// A GPU with the numbers measured on an H200.
    pub fn gpu_h200() -> Target {
        Target {
            name: "gpu-h200".into(),
            style: Style::Gpu,
            lanes: 1,
            threads: 256,
            registers: 128,
            table_lookup: false,
            pairs: false,
            signed: true,
            int8: true,
            fusion: true,
            merge: true,
            tuning: Tuning::default(),
            workers: 132,
            stage_bytes: 96 << 10,
            most_stage_bytes: 227 << 10,
            bandwidth: 4.6e12,
            jump: 0.0,
            cache_bandwidth: 10e12,
            operations: 60e12,
            launch: 3.0e-6,
            latency: 0.35e-6,
            barrier: 0.05e-6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flag_and_every_parameter_changes_a_cpu() {
        let on = Target { pairs: true, ..Target::cpu("test", 16, 2) };
        for flag in FLAGS {
            let mut off = on.clone();
            (flag.off)(&mut off);
            assert_ne!(off, on, "{}", flag.name);
            assert_eq!(FLAGS.iter().filter(|f| f.name == flag.name).count(), 1);
        }
        for p in PARAMETERS {
            let mut tuning = Tuning::default();
            assert!(p.values.contains((p.field)(&mut tuning)), "{}", p.name);
            *(p.field)(&mut tuning) = 99;
            assert_ne!(tuning, Tuning::default());
        }
    }
}
