//! Machine descriptions as plain data: filled in by an opened device, or a row of [`NAMED`] for
//! planning without the device.

use crate::Scalar;
use crate::facts::{CpuFacts, GpuFacts, OF_CPUS, OF_GPUS};
use crate::fragment::{ADA, AMPERE, Fragment, GEFORCE, HOPPER, TURING, tensor_cores};
use std::borrow::Cow;

/// Kind of machine that runs a workgroup.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MachineKind {
    /// A workgroup is part of one thread's contiguous chunk; stages are computed once per chunk.
    Cpu,
    /// A workgroup is a block of threads; stages are computed once per workgroup, in shared memory.
    Gpu,
}

/// A machine description. Fields that differ in meaning between CPU and GPU document both.
#[derive(Clone, PartialEq, Debug)]
pub struct Machine {
    /// Name, such as `h200` or `avx512vnni`.
    pub name: Cow<'static, str>,
    /// Whether it is a CPU or a GPU.
    pub kind: MachineKind,
    /// NVIDIA architecture version, 90 for sm_90; `None` for other machines.
    pub sm: Option<u32>,
    /// Processor units, which run workgroups concurrently: cores, multiprocessors, compute units.
    pub units: usize,
    /// f32 lanes per vector register of a CPU; 1 for a GPU, where threads are the lanes.
    pub lanes: usize,
    /// Threads per subgroup (warp, wave), which run in lockstep and may exchange registers;
    /// 1 for a CPU.
    pub subgroup: i64,
    /// Largest subgroup size, if a kernel may run with subgroups of several sizes. Threads grouped
    /// by multiples of it form whole subgroups.
    pub widest: i64,
    /// Schedulers per processor unit of a GPU, each of which issues an instruction of a subgroup
    /// every cycle; 1 for a CPU.
    pub schedulers: usize,
    /// Resident threads per processor unit, over all workgroups.
    pub threads_per_unit: usize,
    /// Vector registers of a CPU; 32-bit registers of a GPU's processor unit, shared by its
    /// threads.
    pub registers: usize,
    /// Shared memory per processor unit of a GPU, or the part of a core's cache that stages should
    /// fit in, bytes.
    pub shared_per_unit: usize,
    /// Largest part of it for one workgroup, bytes.
    pub shared_per_workgroup: usize,
    /// Size of the cache shared by all processor units (last level), bytes.
    pub cache: usize,
    /// Size of the narrowest load or store, bytes, at a multiple of its size: 1, or 2 or 4 for GPUs
    /// that address only words.
    pub least_bytes: usize,
    /// Whether narrower values can be stored nevertheless, as parts of words that other
    /// threads may write concurrently.
    pub part_writes: bool,
    /// Whether it computes only with 32-bit values and basic arithmetic. Narrower types,
    /// exponentials and logarithms are then legalised.
    pub words_alone: bool,
    /// Whether the device's compiler honours unroll counts; if not, loops are unrolled before.
    pub copies_loops: bool,
    /// Words per element of a stage with a vector type. Above 1 only if a thread may write one of
    /// the words while others write the rest.
    pub stage_words: usize,
    /// Alignment of the offset at which a buffer may be bound, bytes.
    pub alignment: usize,
    /// Largest buffer binding, bytes; all offsets in it are smaller.
    pub largest_binding: usize,
    /// Largest number of buffer bindings of a kernel.
    pub most_bindings: usize,
    /// Largest number of neighbouring threads that one subgroup operation reduces, a power of two;
    /// 1 without such operations. Wider reductions go through shared memory.
    pub folds: i64,
    /// Whether kernels support programmatic dependent launch, prefetch, and
    /// asynchronous copies to stages.
    pub early: bool,
    /// Whether one instruction looks up all lanes in a table of 16 floats.
    pub table_lookup: bool,
    /// Whether products of bytes are best accumulated in 16 bits, because no instruction adds four
    /// of them into 32 bits.
    pub pairs: bool,
    /// Whether an instruction (or a few vector instructions) adds four byte products to a 32-bit
    /// sum. Without it, packed weights are multiplied as floats.
    pub dot4: bool,
    /// Whether products of two signed bytes cost no more than those of an unsigned and a signed
    /// byte. Rows of signed bytes, as in an int8 KV cache, are then multiplied directly; otherwise
    /// one side is offset to be unsigned and sums of the other are subtracted.
    pub signed_bytes: bool,
    /// Whether to subtract a weight's zero point from each word of codes rather than correct the
    /// product by activation sums per group.
    ///
    /// On a GPU the former takes three operations per four codes and saves a load per token and
    /// unit. On a CPU, many rows of a vector share each sum that is loaded.
    pub signed_codes: bool,
    /// Matrix product instructions, with their rates.
    pub fragments: &'static [Fragment],
    /// Memory bandwidth of the whole machine, bytes/s.
    pub bandwidth: f64,
    /// Seconds that a processor unit loses when it continues reading at another address.
    pub jump: f64,
    /// Bandwidth of the cache from which workgroups re-read activations, whole machine, bytes/s.
    pub cache_bandwidth: f64,
    /// f32 operations per second of the whole machine.
    pub operations: f64,
    /// f32 operations per processor unit and cycle, to compare with [`Fragment::rate`].
    pub rate: f64,
    /// Seconds per additional dependent launch.
    pub launch: f64,
    /// Seconds of a load from memory when nothing overlaps it.
    pub latency: f64,
    /// Seconds of an atomic addition to one element, serialised with others: 3 to 5 ns on a Zen 5
    /// core. Not measured on GPUs, where memory is assumed to be the bottleneck.
    pub atomic: f64,
    /// Seconds per dependent step inside a kernel (a barrier between a stage and its reader).
    pub barrier: f64,
}

/// Shared memory that drivers reserve per workgroup, bytes (CUDA programming guide, compute
/// capability 8.0 and later).
pub const RESERVED_SHARED: usize = 1 << 10;

impl Machine {
    /// Describes a CPU with this instruction set, `cores` cores and vectors of `lanes` floats.
    pub fn cpu(isa: &'static str, lanes: usize, cores: usize) -> Machine {
        let (units, facts) = (cores as f64, &OF_CPUS);
        let vectors = facts.vectors_per_cycle * lanes as f64;
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
            shared_per_unit: facts.stage_bytes,
            shared_per_workgroup: facts.stage_bytes,
            cache: facts.shared_cache_bytes,
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
            bandwidth: facts.bandwidth_per_core * units,
            jump: facts.jump_seconds,
            cache_bandwidth: facts.cache_bandwidth_per_core * units,
            operations: facts.clock * vectors * units,
            rate: vectors,
            launch: facts.launch_seconds,
            latency: 0.0,
            atomic: facts.atomic_seconds,
            barrier: 0.0,
        }
    }
    /// Facts of CPUs; those of costs and sizes say nothing of a GPU.
    pub fn cpu_facts(&self) -> &'static CpuFacts {
        &OF_CPUS
    }
    /// Facts of GPUs. A CPU takes those of attention too, which were not measured for it apart.
    pub fn gpu_facts(&self) -> &'static GpuFacts {
        &OF_GPUS
    }
    /// Stage size of a workgroup that leaves room for a second one on the unit, bytes.
    ///
    /// The part of a unit's memory that is not shared serves as its first-level cache, and drivers
    /// divide it in steps: 96 KiB for an H200 with 228 KiB.
    pub fn stage_bytes(&self) -> usize {
        const STEP: usize = 32 << 10;
        match self.kind {
            MachineKind::Cpu => self.shared_per_workgroup,
            MachineKind::Gpu => {
                let half = self.shared_per_unit / 2;
                (if half < STEP {
                    half
                } else {
                    half / STEP * STEP
                })
                .min(self.shared_per_workgroup)
            }
        }
    }
    /// Bytes of a chunk of a buffer that exceeds the largest binding; a multiple of the
    /// alignment.
    pub fn max_binding_chunk(&self) -> usize {
        (self.largest_binding / self.alignment * self.alignment).max(self.alignment)
    }
    /// Finds a matrix product of this operand type with elements held by threads, or by a CPU core.
    pub fn fragment(&self, operand: Scalar) -> Option<&'static Fragment> {
        let held = |of: &&Fragment| self.kind == MachineKind::Cpu || !of.is_whole();
        self.fragments
            .iter()
            .filter(held)
            .find(|of| of.operand == operand)
    }
    /// Finds a matrix product of this operand type with elements held by the
    /// threads of one subgroup.
    pub fn subgroup_fragment(&self, operand: Scalar) -> Option<&'static Fragment> {
        self.fragment(operand)
            .filter(|of| !of.is_whole() && of.sums.lanes() == self.subgroup)
    }
    /// Finds the f16 matrix product with opaque tiles. It requires rounding both
    /// operands and dequantising weights.
    pub fn tile_fragment(&self) -> Option<&'static Fragment> {
        self.fragments
            .iter()
            .find(|of| of.operand.is_half() && of.is_whole())
    }
    /// Cost of one term of a sum computed by this fragment, in f32 operations.
    pub fn term_of(&self, fragment: &Fragment) -> f64 {
        2.0 * self.rate / fragment.rate
    }
    /// Returns the row of [`NAMED`] with this name.
    pub fn named(name: &str) -> Option<Machine> {
        NAMED
            .iter()
            .find(|row| row.name == name)
            .map(GpuRow::machine)
    }
    /// Describes an NVIDIA GPU from its driver's attributes.
    ///
    /// The result is the row of [`NAMED`] with the same architecture, number of units and
    /// nominal memory bandwidth, if there is one; otherwise it uses the attributes, with costs
    /// derived from the clocks.
    pub fn nvidia(name: &str, it: &Attributes) -> Machine {
        let nominal = 2.0 * it.memory_clock * it.memory_bits as f64 / 8.0;
        let is_near = |row: &&GpuRow| (row.bandwidth * 1e9 / nominal - 1.0).abs() < 0.05;
        let mut same = NAMED
            .iter()
            .filter(|row| row.sm == Some(it.sm) && row.units == it.units);
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
            // The driver reports no memory clock for partitioned GPUs: assume an H200's bandwidth
            // per unit.
            bandwidth: if nominal > 0.0 {
                nominal / 1e9
            } else {
                4800.0 / 132.0 * it.units as f64
            },
            operations: it.units as f64 * f32_lanes(it.sm) * 2.0 * it.clock / 1e12,
        };
        Machine {
            name: name.to_owned().into(),
            ..row.machine()
        }
    }
}

/// f32 multiply-adds that a multiprocessor issues per cycle (CUDA C++ Programming Guide, throughput
/// of native arithmetic instructions).
fn f32_lanes(sm: u32) -> f64 {
    match sm {
        ..=80 => 64.0,
        _ => 128.0,
    }
}

/// Schedulers per multiprocessor since Maxwell (CUDA C++ Programming Guide, compute capabilities).
const SCHEDULERS: usize = 4;

/// First NVIDIA architecture with four-byte dot products (PTX ISA, `dp4a`). All other GPUs in
/// the table have them.
const DOT4_SINCE: u32 = 61;

/// Attributes that the CUDA driver reports of a GPU (`CUdevice_attribute`).
#[derive(Clone, Debug)]
pub struct Attributes {
    /// Compute capability, 90 for 9.0.
    pub sm: u32,
    /// Number of multiprocessors on the GPU.
    pub units: usize,
    /// Number of threads per warp.
    pub subgroup: i64,
    /// Largest number of threads per multiprocessor.
    pub threads_per_unit: usize,
    /// 32-bit registers per multiprocessor.
    pub registers: usize,
    /// Shared memory per multiprocessor, bytes.
    pub shared_per_unit: usize,
    /// Largest opt-in shared memory per workgroup, bytes.
    pub shared_per_workgroup: usize,
    /// Size of the second-level cache, bytes.
    pub cache: usize,
    /// Peak clock of the multiprocessors, Hz.
    pub clock: f64,
    /// Memory clock, Hz; data moves on both edges. 0 if the driver does not report it.
    pub memory_clock: f64,
    /// Width of the memory bus, bits.
    pub memory_bits: usize,
}

/// A GPU for which plans can be made without the device. Unmeasured figures are the vendor's.
pub struct GpuRow {
    /// Name on the command line, after `null:`.
    pub name: &'static str,
    /// Name reported by the driver, used for lookup through cross-vendor interfaces, then
    /// a description in parentheses.
    pub doc: &'static str,
    sm: Option<u32>,
    units: usize,
    subgroup: i64,
    schedulers: usize,
    threads_per_unit: usize,
    registers: usize,
    /// Shared memory per unit and per workgroup, KiB.
    shared: [usize; 2],
    /// Size of the cache shared by all units, MiB.
    cache: usize,
    fragments: &'static [Fragment],
    /// Bandwidth in GB/s.
    bandwidth: f64,
    /// Tera-operations of f32 per second.
    operations: f64,
}

/// First architecture with programmatic dependent launch.
pub const EARLY_LAUNCH_SINCE: u32 = 90;

impl GpuRow {
    /// Returns whether it is an NVIDIA GPU, which is reached through CUDA rather than
    /// a cross-vendor interface.
    pub fn is_nvidia(&self) -> bool {
        self.sm.is_some()
    }
    /// Name reported by its driver.
    pub fn title(&self) -> &'static str {
        self.doc.split(" (").next().unwrap_or(self.doc)
    }
    fn machine(&self) -> Machine {
        let facts = &OF_GPUS;
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
            bandwidth: self.bandwidth * 1e9 * facts.bandwidth_reached,
            jump: 0.0,
            cache_bandwidth: self.units as f64 * facts.cache_bandwidth_per_unit,
            operations: self.operations * 1e12 * facts.operations_reached,
            rate: self.sm.map_or(0.0, |sm| 2.0 * f32_lanes(sm)),
            launch: if self.sm.is_some_and(|sm| sm >= EARLY_LAUNCH_SINCE) {
                facts.dependent_launch_seconds
            } else {
                facts.launch_seconds
            },
            latency: facts.latency_seconds,
            atomic: 0.0,
            barrier: facts.barrier_seconds,
        }
    }
}

/// Table of GPUs by name.
///
/// Sources: NVIDIA's CUDA C++ Programming Guide (table of technical specifications per compute
/// capability) and data sheets, AMD's RDNA 3 instruction set manual, Intel's Xe2 product pages.
/// Apple does not publish register counts; they were measured by others
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

    /// Attributes reported by an H200's driver.
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
        assert_eq!(
            Machine::nvidia("any", &h200()),
            Machine::named("h200").unwrap()
        );
        let h100 = Attributes {
            memory_clock: 2.619e9,
            memory_bits: 5120,
            ..h200()
        };
        assert_eq!(
            Machine::nvidia("any", &h100),
            Machine::named("h100").unwrap()
        );
    }

    #[test]
    fn a_gpu_that_is_not_known_is_what_its_driver_says() {
        // A partition of an H200.
        let part = Machine::nvidia(
            "part",
            &Attributes {
                units: 60,
                memory_clock: 0.0,
                ..h200()
            },
        );
        let whole = Machine::named("h200").unwrap();
        assert_eq!(
            (part.name.as_ref(), part.units, part.fragments),
            ("part", 60, whole.fragments)
        );
        let ratio = |a: f64, b: f64| (a / b * 132.0 / 60.0 - 1.0).abs() < 0.05;
        assert!(
            ratio(part.bandwidth, whole.bandwidth) && ratio(part.operations, whole.operations),
            "{part:?}"
        );
        // A GeForce RTX 2080 Ti: 616 GB/s, 13.4 tera-operations.
        let turing = Attributes {
            sm: 75,
            units: 68,
            clock: 1.545e9,
            memory_clock: 7e9,
            memory_bits: 352,
            ..h200()
        };
        let turing = Machine::nvidia("turing", &turing);
        assert_eq!(turing.fragments, TURING);
        assert!(turing.dot4 && !Machine::nvidia("pascal", &Attributes { sm: 60, ..h200() }).dot4);
        assert!(
            (turing.bandwidth / (616e9 * OF_GPUS.bandwidth_reached) - 1.0).abs() < 0.01,
            "{turing:?}"
        );
        assert!(
            (turing.operations / (13.4e12 * OF_GPUS.operations_reached) - 1.0).abs() < 0.01,
            "{turing:?}"
        );
    }

    #[test]
    fn rows_make_sense() {
        for row in NAMED {
            let machine = Machine::named(row.name).unwrap();
            assert!(
                machine.stage_bytes() > 0 && machine.stage_bytes() <= machine.shared_per_workgroup,
                "{}",
                row.name
            );
            assert!(
                machine.shared_per_workgroup <= machine.shared_per_unit,
                "{}",
                row.name
            );
            assert!(
                machine.subgroup.count_ones() == 1 && machine.units > 0,
                "{}",
                row.name
            );
            assert_eq!(
                NAMED.iter().filter(|other| other.name == row.name).count(),
                1
            );
        }
        assert_eq!(Machine::named("h200").unwrap().stage_bytes(), 96 << 10);
    }
}
