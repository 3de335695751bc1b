//! Machine descriptions of GPUs that are reached through a cross-vendor interface (Vulkan, Metal),
//! which reports less than a vendor's driver.
//!
//! Figures that the interface does not report come from the table of machines if it contains the
//! name, otherwise from calibration, otherwise from typical values of the adapter's kind.

use crate::costs::Costs;
use crate::fragment::{OF_SUBGROUPS_8, OF_SUBGROUPS_16};
use crate::machine::{Machine, MachineKind, NAMED};

/// Kind of a graphics adapter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdapterKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares memory with the CPU, or of unknown kind.
    Integrated,
    /// A software implementation on the CPU, with its number of cores.
    Software(usize),
}

/// Properties that an interface reports of an adapter.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// Name reported by the driver.
    pub name: String,
    /// Kind reported by the driver.
    pub kind: AdapterKind,
    /// Smallest subgroup size; `None` without subgroup operations.
    pub subgroup: Option<i64>,
    /// Largest subgroup size that a kernel may run with.
    pub widest: i64,
    /// Rows and columns of f16 cooperative matrices with f32 sums; `None` if unsupported.
    pub cooperative: Option<i64>,
    /// Whether a component of a vector in shared memory is written without the others. SPIR-V
    /// guarantees it; Metal's compiler writes the whole vector.
    pub vector_parts: bool,
    /// Largest number of threads per workgroup.
    pub threads: usize,
    /// Shared memory per workgroup, bytes.
    pub shared: usize,
    /// Largest buffer binding of a kernel, bytes.
    pub largest_binding: usize,
    /// Largest number of buffer bindings of a kernel.
    pub bindings: usize,
    /// Alignment of a binding's offset into its buffer, bytes.
    pub alignment: usize,
    /// Calibrated costs. Their bandwidth and operations are used for adapters without a row in
    /// the table of machines.
    pub measured: Costs,
}

/// Typical figures of an adapter without a row in the table of machines.
#[derive(Clone, Copy)]
struct Usual {
    units: usize,
    schedulers: usize,
    /// Resident threads per processor unit.
    threads: usize,
    /// Memory bandwidth, bytes per second.
    bandwidth: f64,
    /// f32 operations per second.
    operations: f64,
    /// Cost of one more dependent launch, seconds.
    launch: f64,
    /// Latency of a load from memory, seconds; an estimate. 0 for software adapters, where a core
    /// waits for its own loads.
    latency: f64,
}

impl Usual {
    /// Replaces estimates by calibrated costs, and scales the number of units
    /// by the measured operations.
    fn with(self, measured: Costs) -> Usual {
        let (bandwidth, operations) = (
            measured.bandwidth.unwrap_or(self.bandwidth),
            measured.operations.unwrap_or(self.operations),
        );
        let units = (self.units as f64 * operations / self.operations)
            .round()
            .max(1.0) as usize;
        Usual {
            units,
            bandwidth,
            operations,
            ..self
        }
    }
    /// Machine description of `many` such parts; `many` is above 1 for the cores
    /// of a software adapter.
    fn machine(&self, many: usize) -> Machine {
        Machine {
            units: self.units * many,
            schedulers: self.schedulers,
            threads_per_unit: self.threads,
            registers: 64 << 10,
            bandwidth: self.bandwidth * many as f64,
            cache_bandwidth: 2.0 * self.bandwidth * many as f64,
            operations: self.operations * many as f64,
            launch: self.launch,
            ..Machine::cpu("", 1, 1)
        }
    }
}

/// A mid-range card of 2023. A dependent launch takes 2.6 µs on an H200 through Vulkan, from a
/// Youtu decode step of 358 launches less the timestamped kernel times. With 6 µs assumed, the step
/// had 229 launches and took 9 % longer.
const DISCRETE: Usual = Usual {
    units: 40,
    schedulers: 4,
    threads: 1024,
    bandwidth: 400e9,
    operations: 15e12,
    launch: 3e-6,
    latency: 0.5e-6,
};
/// A mid-range integrated GPU of 2023.
const INTEGRATED: Usual = Usual {
    units: 10,
    schedulers: 4,
    threads: 1024,
    bandwidth: 90e9,
    operations: 3e12,
    launch: 8e-6,
    latency: 0.5e-6,
};
/// One CPU core, which runs a workgroup a vector at a time; a dispatch takes 26 to 30 µs (lavapipe,
/// two Xeon cores). Workgroups recompute stages, so a core gets two: a norm and 256 rows of 256 in
/// 4 bits took 0.41 ms of CPU time with 2 workgroups, 1.57 ms with 32.
const CORE: Usual = Usual {
    units: 1,
    schedulers: 1,
    threads: 16,
    bandwidth: 8e9,
    operations: 30e9,
    launch: 28e-6,
    latency: 0.0,
};
/// Shared memory reserved for reductions across subgroups, bytes, in addition to stages. It fits an
/// f32, an i32 and a u32 for each of 512 threads (6 KiB), or these and four f32 for each of 256 (7
/// KiB), without 64-bit sums in the same kernel. Computed, not measured.
const MEETING: usize = 16 * 512;
/// Assumed subgroup size where there are no subgroup operations.
const UNKNOWN_SUBGROUP: i64 = 32;

/// Properties that interfaces report for rows of the table of machines. Used to plan without the
/// device: kind, subgroup sizes, and rows of cooperative matrices (16 from Vulkan, 8 from Metal).
const ADAPTER_TABLE: [(&str, AdapterKind, [i64; 2], i64); 4] = [
    ("h200", AdapterKind::Discrete, [32, 32], 16),
    ("m3-max", AdapterKind::Integrated, [32, 32], 8),
    ("rx7900xtx", AdapterKind::Discrete, [32, 64], 16),
    ("arc-b580", AdapterKind::Discrete, [16, 32], 16),
];

impl Adapter {
    /// Buffer bindings of a kernel if no adapter has reported a limit. wgpu's figure
    /// for Metal argument tables of tier 2 is 29; one is taken by the variables.
    /// Other interfaces permit more.
    pub const MAX_BINDINGS: usize = 28;
    /// Returns the adapter that an interface would report for the row of [`NAMED`] with this name.
    pub fn named(name: &str) -> Option<Adapter> {
        let (_, kind, [subgroup, widest], cooperative) =
            ADAPTER_TABLE.into_iter().find(|told| told.0 == name)?;
        let row = NAMED.iter().find(|row| row.name == name)?;
        let name = row.title().into();
        let (subgroup, cooperative, vector_parts) =
            (Some(subgroup), Some(cooperative), cooperative == 16);
        let (threads, shared, largest_binding, alignment) =
            (1024, 32 << 10, i32::MAX as usize, 256);
        let bindings = Adapter::MAX_BINDINGS;
        Some(Adapter {
            name,
            kind,
            subgroup,
            widest,
            cooperative,
            vector_parts,
            threads,
            shared,
            largest_binding,
            bindings,
            alignment,
            measured: Costs::default(),
        })
    }
    /// Returns whether the adapter's speed is known from its name or because it is
    /// software; otherwise calibrate it.
    pub fn is_known(&self) -> bool {
        matches!(self.kind, AdapterKind::Software(_)) || self.row().is_some()
    }
    /// Finds the row of the table with its name. Ignores additions by drivers: trade marks,
    /// "Graphics" and parenthesised parts, as in "Intel(R) Arc(tm) B580 Graphics (BMG G21)".
    fn row(&self) -> Option<Machine> {
        let name = ["(R)", "(TM)", "(tm)"]
            .into_iter()
            .fold(self.name.clone(), |name, mark| name.replace(mark, ""));
        let name = name
            .split(" (")
            .next()
            .unwrap_or(&name)
            .trim_end_matches(" Graphics");
        Machine::named(NAMED.iter().find(|row| row.title() == name)?.name)
    }
    /// Machine description for which kernels are planned.
    pub fn machine(&self) -> Machine {
        let (of, many) = match self.kind {
            AdapterKind::Discrete => (DISCRETE, 1),
            AdapterKind::Integrated => (INTEGRATED, 1),
            AdapterKind::Software(cores) => (CORE, cores),
        };
        let from = self
            .row()
            .unwrap_or_else(|| of.with(self.measured).machine(many));
        let (subgroup, shared) = (
            self.subgroup.unwrap_or(UNKNOWN_SUBGROUP),
            self.shared.saturating_sub(MEETING),
        );
        // A workgroup has two subgroups per scheduler (`Target::new`).
        let most = (self.threads as i64 / (2 * subgroup)).max(1) as usize;
        Machine {
            name: format!("adapter {}", self.name).into(),
            kind: MachineKind::Gpu,
            sm: None,
            lanes: 1,
            subgroup,
            widest: self.widest.max(subgroup),
            schedulers: from.schedulers.min(most),
            shared_per_unit: 2 * shared,
            shared_per_workgroup: shared,
            least_bytes: 4,
            part_writes: true,
            words_alone: true,
            copies_loops: false,
            stage_words: if self.vector_parts { 4 } else { 1 },
            alignment: self.alignment,
            // From the interface's kind: a row's figure is that of the vendor's own interface,
            // which launches faster.
            launch: of.launch,
            largest_binding: self.largest_binding,
            // One binding is taken by constant tables, which exist only in the emitted text.
            most_bindings: self.bindings.saturating_sub(1),
            folds: self.subgroup.unwrap_or(1),
            early: false,
            table_lookup: false,
            pairs: false,
            // `dot4I8Packed` is always available; implementations emulate it with four products if
            // necessary.
            dot4: true,
            signed_bytes: true,
            signed_codes: true,
            fragments: match self.cooperative {
                Some(16) => OF_SUBGROUPS_16,
                Some(8) => OF_SUBGROUPS_8,
                _ => &[],
            },
            jump: 0.0,
            rate: 1.0,
            latency: of.latency,
            atomic: 0.0,
            barrier: 0.1e-6,
            ..from
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Scalar;
    use crate::target::Target;

    fn adapter(name: &str, kind: AdapterKind) -> Adapter {
        let (threads, shared) = (256, 32 << 10);
        Adapter {
            name: name.into(),
            kind,
            subgroup: Some(32),
            widest: 32,
            cooperative: None,
            vector_parts: true,
            threads,
            shared,
            largest_binding: 1 << 27,
            bindings: Adapter::MAX_BINDINGS,
            alignment: 64,
            measured: Costs::default(),
        }
    }

    #[test]
    fn an_adapter_name_finds_its_machine_description() {
        let named = |name| Machine::named(name).unwrap();
        let of = |name| adapter(name, AdapterKind::Discrete).machine();
        let found = of("AMD Radeon RX 7900 XTX (RADV NAVI31)");
        assert_eq!(
            (found.units, found.bandwidth),
            (96, named("rx7900xtx").bandwidth)
        );
        assert_eq!(of("Apple M3 Max").units, named("m3-max").units);
        assert_eq!(
            of("Intel(R) Arc(tm) B580 Graphics (BMG G21)").units,
            named("arc-b580").units
        );
        for (name, row) in [
            ("NVIDIA H200", "h200"),
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("NVIDIA A100-SXM4-80GB", "a100"),
            ("NVIDIA GeForce RTX 4090", "rtx4090"),
            ("Tesla T4", "t4"),
        ] {
            assert_eq!(
                (of(name).units, of(name).bandwidth),
                (named(row).units, named(row).bandwidth),
                "{name}"
            );
        }
        // A name that only begins like a known card's has none of its figures.
        for other in [
            "a card of next year",
            "NVIDIA L40S",
            "NVIDIA GeForce RTX 4090 Laptop GPU",
            "Apple M3 Max Ultra",
        ] {
            assert!(!adapter(other, AdapterKind::Discrete).is_known(), "{other}");
            assert_eq!(of(other).units, DISCRETE.units, "{other}");
        }
        assert!(found.fragments.is_empty() && !found.early && found.least_bytes == 4);
        // Every row of another vendor than NVIDIA has an adapter for planning.
        assert!(
            NAMED
                .iter()
                .filter(|row| !row.is_nvidia())
                .all(|row| Adapter::named(row.name).is_some())
        );
        let multiplies = Adapter {
            cooperative: Some(8),
            ..adapter("Apple M3 Max", AdapterKind::Integrated)
        }
        .machine();
        assert!(
            multiplies.tile_fragment().is_some_and(|of| of.rows == 8)
                && multiplies.fragment(Scalar::F16).is_none()
        );
    }

    #[test]
    fn measurements_replace_a_machine_description() {
        let measured = Costs {
            bandwidth: Some(3e12),
            operations: Some(60e12),
            ..Costs::default()
        };
        let next = Adapter {
            measured,
            ..adapter("a card of next year", AdapterKind::Discrete)
        };
        assert!(!next.is_known());
        let machine = next.machine();
        assert_eq!(
            (machine.units, machine.bandwidth, machine.operations),
            (160, 3e12, 60e12)
        );
        // Either figure may be missing.
        let measured = Costs {
            operations: None,
            ..measured
        };
        let machine = Adapter { measured, ..next }.machine();
        assert_eq!((machine.units, machine.bandwidth), (DISCRETE.units, 3e12));
        let known = adapter("NVIDIA H200", AdapterKind::Discrete);
        assert!(known.is_known() && adapter("llvmpipe", AdapterKind::Software(2)).is_known());
        assert_eq!(
            Adapter {
                measured,
                ..known.clone()
            }
            .machine(),
            known.machine()
        );
    }

    #[test]
    fn a_core_has_few_workgroups() {
        for subgroup in [None, Some(4), Some(8)] {
            let target = Target::new(
                Adapter {
                    subgroup,
                    ..adapter("", AdapterKind::Software(2))
                }
                .machine(),
            );
            assert!(
                (1..=2).contains(&target.resident()),
                "{} of {} threads",
                target.resident(),
                target.threads
            );
        }
    }

    #[test]
    fn workgroups_are_no_larger_than_the_adapter_takes() {
        for threads in [32, 128, 256, 1024] {
            for subgroup in [None, Some(4), Some(8), Some(32), Some(64)] {
                let it = Adapter {
                    threads,
                    subgroup,
                    ..adapter("", AdapterKind::Software(2))
                };
                let target = Target::new(it.machine());
                let least = 2 * subgroup.unwrap_or(UNKNOWN_SUBGROUP) as usize;
                assert!(
                    target.threads <= threads.max(least),
                    "{} of {threads}",
                    target.threads
                );
            }
        }
    }
}
