//! What a machine is, as plain data: filled in by the device that was opened, or a row of [`NAMED`] to plan for a machine that is not there.

use crate::Scalar;
use crate::fragment::{ADA, AMPERE, Fragment, GEFORCE, HOPPER, TURING, tensor_cores};
use std::borrow::Cow;

/// What kind of machine a workgroup runs on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MachineKind {
    /// A workgroup is part of one thread's contiguous chunk; stages are computed once per chunk.
    Cpu,
    /// A workgroup is a block of many threads; stages are computed once per workgroup, in shared memory.
    Gpu,
}

/// A machine's facts. What stands for one thing on a processor and for another on a GPU says so.
#[derive(Clone, PartialEq, Debug)]
pub struct Machine {
    /// Name: `h200`, `avx512vnni`.
    pub name: Cow<'static, str>,
    /// What runs a workgroup.
    pub kind: MachineKind,
    /// Version of NVIDIA's architecture, 90 of sm_90; none for other machines.
    pub sm: Option<u32>,
    /// Units that run workgroups at the same time: cores, multiprocessors, compute units.
    pub units: usize,
    /// f32 lanes of a vector register of a CPU; 1 of a GPU, whose threads are the lanes.
    pub lanes: usize,
    /// Threads that run in step and may exchange registers: a warp, a wave; 1 of a CPU.
    pub subgroup: i64,
    /// Threads of a subgroup at most, where a kernel may have subgroups of several sizes: whole ones are neighbours by multiples of them.
    pub widest: i64,
    /// Parts of a unit of a GPU that each start an instruction of a subgroup every clock; 1 of a CPU.
    pub schedulers: usize,
    /// Threads of all workgroups that a unit holds.
    pub threads_per_unit: usize,
    /// Vector registers of a CPU; of a GPU those of 32 bits of one unit, shared by its threads.
    pub registers: usize,
    /// Bytes of shared memory of one unit of a GPU, or of the cache of a core that stages are to fit.
    pub shared_per_unit: usize,
    /// Most bytes of it that one workgroup may have.
    pub shared_per_workgroup: usize,
    /// Bytes of the cache that all units share.
    pub cache: usize,
    /// Bytes of the narrowest value that a load or a write may have, at a multiple of its size: 1, or of GPUs that address only words 2 or 4.
    pub least_bytes: usize,
    /// Are values that are narrower written all the same, as parts of words that other threads may write at the same time?
    pub part_writes: bool,
    /// Does it compute with numbers of 32 bits, by arithmetic alone? What others have of narrower numbers, exponentials and logarithms is then written out.
    pub words_alone: bool,
    /// Does its own compiler write out as many iterations of a loop as it is told? Else they are written out for it.
    pub copies_loops: bool,
    /// Words of an element of a stage where its type says how many load at once: more than one only where a thread may write one of them while others write the rest.
    pub stage_words: usize,
    /// Bytes at whose multiples a part of a buffer may begin that a kernel is given.
    pub alignment: usize,
    /// Most bytes of a buffer that a kernel is given: all its offsets are smaller.
    pub largest_binding: usize,
    /// Buffers, or parts of them, that a kernel is given at most.
    pub most_bindings: usize,
    /// Neighbouring threads of a workgroup whose values one operation folds at most, a power of two; 1 where none do. Values of others meet in shared memory.
    pub folds: i64,
    /// Do a GPU's kernels start before those before them have ended, and is memory asked for and copied to stages beside their threads?
    pub early: bool,
    /// Does one instruction look up all lanes in a table of 16 floats?
    pub table_lookup: bool,
    /// Are products of bytes best added in 16 bits, since no instruction adds four of them to 32?
    pub pairs: bool,
    /// Does an instruction add four products of bytes to a sum of 32 bits, or do a few of vectors? Without it packed weights are multiplied as floats.
    pub dot4: bool,
    /// Are products of two signed bytes no dearer than those of an unsigned and a signed one? Then rows of signed bytes, as those of a cache, are multiplied as they
    /// lie; else one side gets a zero, and sums of the other are taken off.
    pub signed_bytes: bool,
    /// Is a weight's zero better taken off each word of its codes than off the product, by sums of activations for every group of terms? Of a GPU the former is three
    /// operations for four codes, which spare a load for each token and unit; vectors of a CPU have many rows for each sum that is read.
    pub signed_codes: bool,
    /// Products of matrices that one instruction computes.
    pub fragments: &'static [Fragment],
    /// Memory bandwidth of the whole machine, bytes/s.
    pub bandwidth: f64,
    /// Seconds that a unit loses where it goes on reading at another place in memory.
    pub jump: f64,
    /// Bandwidth of the cache from which every workgroup reads activations again, whole machine, bytes/s.
    pub cache_bandwidth: f64,
    /// f32 operations per second of the whole machine.
    pub operations: f64,
    /// f32 operations that a unit does each cycle in as many seconds: what rates of fragments compare with.
    pub rate: f64,
    /// Seconds that one more dependent launch costs.
    pub launch: f64,
    /// Seconds until a load from memory is there, where nothing else is done meanwhile.
    pub latency: f64,
    /// Seconds in which a unit adds to one element of memory so that other additions to it come before or after: 3 to 5 ns of a Zen 5 core. Of GPUs nobody has measured
    /// it: what they wait for is taken to be memory.
    pub atomic: f64,
    /// Seconds of one dependent step inside a kernel (a barrier between a stage and its reader).
    pub barrier: f64,
}

/// Bytes of a GPU's shared memory that drivers keep of each workgroup's (CUDA programming guide, compute capability 8.0 and later).
pub const RESERVED_SHARED: usize = 1 << 10;

/// Cycles a second that a core of a processor is counted with.
///
/// Like the figures below it is the same for every processor of an instruction set and a number of cores, and none is asked of the machine: so plans, kernels and results to the bit are the same on
/// all of these and at every start. What is measured there is shown (`gristmill devices`) and not planned with, as it differs by what else runs: two cores of one EPYC read 25 to 60 GB/s within
/// minutes (docs/experiments.md).
const CPU_CLOCK: f64 = 3e9;
/// Vectors of f32 operations of a core, a second: 6.2e9 products with their additions on a Zen 3 of 3.0 GHz (docs/experiments.md).
const CPU_VECTORS: f64 = 2.0 * CPU_CLOCK;
/// Bytes of memory that a core reads a second: two of a Xeon with AMX 11 to 15e9 each, of EPYCs 18 to 40e9 (docs/benchmarks.md), of servers whose cores all read less.
const CPU_BANDWIDTH: f64 = 12e9;
/// Bytes of the caches behind the first that a core reads a second. Not measured: it says how dear activations are that every workgroup reads again, and only by comparison with memory.
const CPU_CACHE_BANDWIDTH: f64 = 60e9;
/// Bytes of a core's cache that stages are to fit into: half of a small second-level one, of 512 KiB. Larger ones were not tried: they would leave less for the rows that stages are read beside.
const CPU_STAGES: usize = 256 << 10;
/// Bytes of the cache that cores share, a middling one. Not measured: of what rows are added to (`decompose/scatter.rs`) it says whether that is taken to come from memory.
const CPU_SHARED_CACHE: usize = 32 << 20;
/// Seconds that a core loses where data says at which other place it goes on: rows of experts in another order (docs/experiments.md).
const CPU_JUMP: f64 = 0.4e-6;

impl Machine {
    /// A CPU of that instruction set, with `cores` cores and vectors of `lanes` floats.
    pub fn cpu(isa: &'static str, lanes: usize, cores: usize) -> Machine {
        let units = cores as f64;
        Machine {
            name: isa.into(),
            kind: MachineKind::Cpu,
            sm: None,
            units: cores,
            lanes,
            subgroup: 1,
            widest: 1,
            schedulers: 1,
            threads_per_unit: 1,
            registers: if lanes >= 16 { 32 } else { 16 },
            shared_per_unit: CPU_STAGES,
            shared_per_workgroup: CPU_STAGES,
            cache: CPU_SHARED_CACHE,
            least_bytes: 1,
            part_writes: true,
            words_alone: false,
            copies_loops: true,
            stage_words: 1,
            alignment: 1,
            largest_binding: i64::MAX as usize,
            most_bindings: usize::MAX,
            folds: i64::MAX,
            early: true,
            table_lookup: lanes == 16,
            pairs: false,
            dot4: lanes > 1,
            signed_bytes: false,
            signed_codes: false,
            fragments: &[],
            bandwidth: CPU_BANDWIDTH * units,
            jump: CPU_JUMP,
            cache_bandwidth: CPU_CACHE_BANDWIDTH * units,
            operations: CPU_VECTORS * lanes as f64 * units,
            rate: CPU_VECTORS / CPU_CLOCK * lanes as f64,
            launch: 1.5e-6,
            latency: 0.0,
            atomic: 5e-9,
            barrier: 0.0,
        }
    }
    /// Bytes of stages of a workgroup that leaves room for another beside it. What of a unit's memory is not shared is its first-level cache, and drivers
    /// divide it in steps: of an H200's 228 KiB these are 96.
    pub fn stage_bytes(&self) -> usize {
        const STEP: usize = 32 << 10;
        match self.kind {
            MachineKind::Cpu => self.shared_per_workgroup,
            MachineKind::Gpu => {
                let half = self.shared_per_unit / 2;
                (if half < STEP { half } else { half / STEP * STEP }).min(self.shared_per_workgroup)
            }
        }
    }
    /// Bytes of a piece of a buffer that is too long to be given whole: the next begins where a part may.
    pub fn piece(&self) -> usize {
        (self.largest_binding / self.alignment * self.alignment).max(self.alignment)
    }
    /// Its product of matrices of that type whose elements threads hold, or a core does, if it has one.
    pub fn fragment(&self, operand: Scalar) -> Option<&'static Fragment> {
        let held = |of: &&Fragment| self.kind == MachineKind::Cpu || !of.is_whole();
        self.fragments.iter().filter(held).find(|of| of.operand == operand)
    }
    /// Its product of matrices of that type whose elements the threads of one subgroup hold, if it has one.
    pub fn subgroup_fragment(&self, operand: Scalar) -> Option<&'static Fragment> {
        self.fragment(operand).filter(|of| !of.is_whole() && of.sums.lanes() == self.subgroup)
    }
    /// The product of halves whose tiles are loaded and written as a whole, for which both operands are rounded and a weight is unpacked, if it has one.
    pub fn tile_fragment(&self) -> Option<&'static Fragment> {
        self.fragments.iter().find(|of| of.operand.is_half() && of.is_whole())
    }
    /// f32 operations that take as long as one term of a sum that this fragment adds up.
    pub fn term_of(&self, fragment: &Fragment) -> f64 {
        2.0 * self.rate / fragment.rate
    }
    /// The row of [`NAMED`] that has this name.
    pub fn named(name: &str) -> Option<Machine> {
        NAMED.iter().find(|row| row.name == name).map(GpuRow::machine)
    }
    /// An NVIDIA GPU by what its driver says of it: the row of [`NAMED`] that it is, if it is one (as many units of the same
    /// architecture, and the same memory), else what the driver says, with costs reckoned from its clocks.
    pub fn nvidia(name: &str, it: &Attributes) -> Machine {
        let nominal = 2.0 * it.memory_clock * it.memory_bits as f64 / 8.0;
        let is_near = |row: &&GpuRow| (row.bandwidth * 1e9 / nominal - 1.0).abs() < 0.05;
        let mut same = NAMED.iter().filter(|row| row.sm == Some(it.sm) && row.units == it.units);
        if let Some(row) = same.find(is_near) {
            return row.machine();
        }
        let row = GpuRow {
            name: "",
            doc: "",
            sm: Some(it.sm),
            units: it.units,
            subgroup: it.subgroup,
            schedulers: SCHEDULERS,
            threads_per_unit: it.threads_per_unit,
            registers: it.registers,
            shared: [it.shared_per_unit >> 10, it.shared_per_workgroup >> 10],
            cache: it.cache >> 20,
            fragments: tensor_cores(it.sm),
            // A driver that does not say, as those of divided GPUs: as much for each unit as an H200 has.
            bandwidth: if nominal > 0.0 { nominal / 1e9 } else { 4800.0 / 132.0 * it.units as f64 },
            operations: it.units as f64 * f32_lanes(it.sm) * 2.0 * it.clock / 1e12,
        };
        Machine { name: name.to_owned().into(), ..row.machine() }
    }
}

/// f32 operations that begin in a multiprocessor each clock (CUDA C++ Programming Guide, throughput of native arithmetic instructions).
fn f32_lanes(sm: u32) -> f64 {
    match sm {
        ..=80 => 64.0,
        _ => 128.0,
    }
}

/// Schedulers of a multiprocessor: of every one since Maxwell (CUDA C++ Programming Guide, compute capabilities).
const SCHEDULERS: usize = 4;

/// The first architecture of NVIDIA's with products of four bytes (PTX ISA, `dp4a`). Those of other vendors in the table all have them.
const DOT4_SINCE: u32 = 61;

/// What CUDA's driver says of a GPU (`CUdevice_attribute`).
#[derive(Clone, Debug)]
pub struct Attributes {
    /// Compute capability, 90 for 9.0.
    pub sm: u32,
    /// Multiprocessors.
    pub units: usize,
    /// Threads of a warp.
    pub subgroup: i64,
    /// Most threads of a multiprocessor.
    pub threads_per_unit: usize,
    /// Registers of a multiprocessor.
    pub registers: usize,
    /// Bytes of shared memory of a multiprocessor.
    pub shared_per_unit: usize,
    /// Most bytes of it for one workgroup, which has to ask for them.
    pub shared_per_workgroup: usize,
    /// Bytes of the second-level cache.
    pub cache: usize,
    /// Most cycles a second of multiprocessors.
    pub clock: f64,
    /// Cycles a second of the memory, which moves data at both edges; 0 if the driver does not say.
    pub memory_clock: f64,
    /// Bits that the memory moves at an edge.
    pub memory_bits: usize,
}

/// A GPU that plans can be made for without one. Figures that no test has measured are the vendor's.
pub struct GpuRow {
    /// Name, after `null:`.
    pub name: &'static str,
    /// Its name as its driver gives it, by which an interface to every vendor's finds it, and in brackets what it is.
    pub doc: &'static str,
    sm: Option<u32>,
    units: usize,
    subgroup: i64,
    schedulers: usize,
    threads_per_unit: usize,
    registers: usize,
    /// KiB of a unit, and of a workgroup at most.
    shared: [usize; 2],
    /// MiB.
    cache: usize,
    fragments: &'static [Fragment],
    /// GB/s.
    bandwidth: f64,
    /// Tera-operations of f32 a second.
    operations: f64,
}

/// What a stream of loads reaches of the memory's nominal rate, and kernels of the units' nominal operations: an H200 reads 4.6 of its 4.8 TB/s, and
/// 60 of its 67 tera-operations were seen.
const REACHED: [f64; 2] = [4.6 / 4.8, 60.0 / 67.0];
/// Bytes that a unit reads from the cache that all share, a second: 10 TB/s of an H200's 132 units.
const CACHE_PER_UNIT: f64 = 10e12 / 132.0;

/// The architecture since which a kernel may start while those before it run.
pub const EARLY_LAUNCH_SINCE: u32 = 90;
/// Seconds of one more dependent launch there, by what plans gain: an H200's profiles show 0.9 to 1.3 us for small kernels, and of seven values from 3.0 to 1.4 us 1.9 was best on the whole
/// for one token of six models and eight sequences of two (experiments, 118).
const EARLY_LAUNCH: f64 = 1.9e-6;
/// The same elsewhere. Not measured.
const LAUNCH: f64 = 3.0e-6;

impl GpuRow {
    /// Is it reached by its vendor's own interface, and not by one to every vendor's?
    pub fn is_nvidia(&self) -> bool {
        self.sm.is_some()
    }
    /// Its name as its driver gives it.
    pub fn title(&self) -> &'static str {
        self.doc.split(" (").next().unwrap_or(self.doc)
    }
    fn machine(&self) -> Machine {
        Machine {
            name: self.name.into(),
            kind: MachineKind::Gpu,
            sm: self.sm,
            units: self.units,
            lanes: 1,
            subgroup: self.subgroup,
            widest: self.subgroup,
            schedulers: self.schedulers,
            threads_per_unit: self.threads_per_unit,
            registers: self.registers,
            shared_per_unit: self.shared[0] << 10,
            shared_per_workgroup: self.shared[1] << 10,
            cache: self.cache << 20,
            least_bytes: 1,
            part_writes: true,
            words_alone: false,
            copies_loops: true,
            stage_words: 1,
            alignment: 1,
            largest_binding: i64::MAX as usize,
            most_bindings: usize::MAX,
            folds: i64::MAX,
            early: true,
            table_lookup: false,
            pairs: false,
            dot4: self.sm.is_none_or(|sm| sm >= DOT4_SINCE),
            signed_bytes: true,
            signed_codes: true,
            fragments: self.fragments,
            bandwidth: self.bandwidth * 1e9 * REACHED[0],
            jump: 0.0,
            cache_bandwidth: self.units as f64 * CACHE_PER_UNIT,
            operations: self.operations * 1e12 * REACHED[1],
            rate: self.sm.map_or(0.0, |sm| 2.0 * f32_lanes(sm)),
            launch: if self.sm.is_some_and(|sm| sm >= EARLY_LAUNCH_SINCE) { EARLY_LAUNCH } else { LAUNCH },
            latency: 0.35e-6,
            atomic: 0.0,
            barrier: 0.05e-6,
        }
    }
}

/// GPUs by name. Sources: NVIDIA's CUDA C++ Programming Guide (table of technical specifications per compute capability) and data sheets, AMD's RDNA 3
/// instruction set manual, Intel's Xe2 product pages; Apple publishes no registers, those are measured by others
/// (github.com/philipturner/metal-benchmarks).
pub const NAMED: &[GpuRow] = &[
    GpuRow {
        name: "h200",
        doc: "NVIDIA H200 (Hopper, 141 GB)",
        sm: Some(90),
        units: 132,
        subgroup: 32,
        schedulers: SCHEDULERS,
        threads_per_unit: 2048,
        registers: 64 << 10,
        shared: [228, 227],
        cache: 50,
        fragments: HOPPER,
        bandwidth: 4800.0,
        operations: 67.0,
    },
    GpuRow {
        name: "h100",
        doc: "NVIDIA H100 80GB HBM3 (Hopper, SXM)",
        sm: Some(90),
        units: 132,
        subgroup: 32,
        schedulers: SCHEDULERS,
        threads_per_unit: 2048,
        registers: 64 << 10,
        shared: [228, 227],
        cache: 50,
        fragments: HOPPER,
        bandwidth: 3350.0,
        operations: 67.0,
    },
    GpuRow {
        name: "a100",
        doc: "NVIDIA A100-SXM4-80GB (Ampere)",
        sm: Some(80),
        units: 108,
        subgroup: 32,
        schedulers: SCHEDULERS,
        threads_per_unit: 2048,
        registers: 64 << 10,
        shared: [164, 163],
        cache: 40,
        fragments: AMPERE,
        bandwidth: 2039.0,
        operations: 19.5,
    },
    GpuRow {
        name: "rtx4090",
        doc: "NVIDIA GeForce RTX 4090 (Ada, 24 GB)",
        sm: Some(89),
        units: 128,
        subgroup: 32,
        schedulers: SCHEDULERS,
        threads_per_unit: 1536,
        registers: 64 << 10,
        shared: [100, 99],
        cache: 72,
        fragments: GEFORCE,
        bandwidth: 1008.0,
        operations: 82.6,
    },
    GpuRow {
        name: "rtx3060",
        doc: "NVIDIA GeForce RTX 3060 (Ampere, 12 GB)",
        sm: Some(86),
        units: 28,
        subgroup: 32,
        schedulers: SCHEDULERS,
        threads_per_unit: 1536,
        registers: 64 << 10,
        shared: [100, 99],
        cache: 3,
        fragments: GEFORCE,
        bandwidth: 360.0,
        operations: 12.7,
    },
    GpuRow {
        name: "l4",
        doc: "NVIDIA L4 (Ada, 24 GB)",
        sm: Some(89),
        units: 58,
        subgroup: 32,
        schedulers: SCHEDULERS,
        threads_per_unit: 1536,
        registers: 64 << 10,
        shared: [100, 99],
        cache: 48,
        fragments: ADA,
        bandwidth: 300.0,
        operations: 30.3,
    },
    GpuRow {
        name: "t4",
        doc: "Tesla T4 (NVIDIA, Turing, 16 GB)",
        sm: Some(75),
        units: 40,
        subgroup: 32,
        schedulers: SCHEDULERS,
        threads_per_unit: 1024,
        registers: 64 << 10,
        shared: [64, 64],
        cache: 4,
        fragments: TURING,
        bandwidth: 320.0,
        operations: 8.1,
    },
    GpuRow {
        name: "m3-max",
        doc: "Apple M3 Max (40 cores)",
        sm: None,
        units: 40,
        subgroup: 32,
        schedulers: 4,
        threads_per_unit: 1024,
        registers: 52 << 10,
        shared: [60, 32],
        cache: 48,
        fragments: &[],
        bandwidth: 400.0,
        operations: 14.2,
    },
    GpuRow {
        name: "rx7900xtx",
        doc: "AMD Radeon RX 7900 XTX (RDNA 3, 24 GB)",
        sm: None,
        units: 96,
        subgroup: 32,
        schedulers: 2,
        threads_per_unit: 1024,
        registers: 96 << 10,
        shared: [64, 64],
        cache: 96,
        fragments: &[],
        bandwidth: 960.0,
        operations: 30.7,
    },
    GpuRow {
        name: "arc-b580",
        doc: "Intel Arc B580 (Xe2, 12 GB)",
        sm: None,
        units: 20,
        subgroup: 16,
        schedulers: 8,
        threads_per_unit: 1024,
        registers: 128 << 10,
        shared: [128, 64],
        cache: 18,
        fragments: &[],
        bandwidth: 456.0,
        operations: 13.7,
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// As an H200's driver has it.
    fn h200() -> Attributes {
        Attributes {
            sm: 90,
            units: 132,
            subgroup: 32,
            threads_per_unit: 2048,
            registers: 65536,
            shared_per_unit: 233_472,
            shared_per_workgroup: 232_448,
            cache: 52_428_800,
            clock: 1.98e9,
            memory_clock: 3.201e9,
            memory_bits: 6016,
        }
    }

    #[test]
    fn a_gpu_that_is_known_is_its_row() {
        assert_eq!(Machine::nvidia("any", &h200()), Machine::named("h200").unwrap());
        let h100 = Attributes { memory_clock: 2.619e9, memory_bits: 5120, ..h200() };
        assert_eq!(Machine::nvidia("any", &h100), Machine::named("h100").unwrap());
    }

    #[test]
    fn a_gpu_that_is_not_known_is_what_its_driver_says() {
        // A part of an H200.
        let part = Machine::nvidia("part", &Attributes { units: 60, memory_clock: 0.0, ..h200() });
        let whole = Machine::named("h200").unwrap();
        assert_eq!((part.name.as_ref(), part.units, part.fragments), ("part", 60, whole.fragments));
        let ratio = |a: f64, b: f64| (a / b * 132.0 / 60.0 - 1.0).abs() < 0.05;
        assert!(ratio(part.bandwidth, whole.bandwidth) && ratio(part.operations, whole.operations), "{part:?}");
        // A GeForce RTX 2080 Ti: 616 GB/s, 13.4 tera-operations.
        let turing = Attributes { sm: 75, units: 68, clock: 1.545e9, memory_clock: 7e9, memory_bits: 352, ..h200() };
        let turing = Machine::nvidia("turing", &turing);
        assert_eq!(turing.fragments, TURING);
        assert!(turing.dot4 && !Machine::nvidia("pascal", &Attributes { sm: 60, ..h200() }).dot4);
        assert!((turing.bandwidth / (616e9 * REACHED[0]) - 1.0).abs() < 0.01, "{turing:?}");
        assert!((turing.operations / (13.4e12 * REACHED[1]) - 1.0).abs() < 0.01, "{turing:?}");
    }

    #[test]
    fn rows_make_sense() {
        for row in NAMED {
            let machine = Machine::named(row.name).unwrap();
            assert!(machine.stage_bytes() > 0 && machine.stage_bytes() <= machine.shared_per_workgroup, "{}", row.name);
            assert!(machine.shared_per_workgroup <= machine.shared_per_unit, "{}", row.name);
            assert!(machine.subgroup.count_ones() == 1 && machine.units > 0, "{}", row.name);
            assert_eq!(NAMED.iter().filter(|other| other.name == row.name).count(), 1);
        }
        assert_eq!(Machine::named("h200").unwrap().stage_bytes(), 96 << 10);
    }
}
