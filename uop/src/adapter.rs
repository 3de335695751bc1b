//! A GPU as an interface to every vendor's tells of it: less than a vendor's own driver does. What it does not tell is a row of the table of machines, where
//! the name is one of them, or was measured, or is what is usual of its kind.

use crate::costs::Costs;
use crate::fragment::{OF_SUBGROUPS_8, OF_SUBGROUPS_16};
use crate::machine::{Machine, MachineKind, NAMED};

/// What kind of adapter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AdapterKind {
    /// With memory of its own.
    Discrete,
    /// On the memory of the processor, or nobody says.
    Integrated,
    /// Programs of this processor, of so many cores.
    Software(usize),
}

/// What is told of an adapter.
#[derive(Clone, Debug)]
pub struct Adapter {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: AdapterKind,
    /// Fewest threads of a subgroup; none where threads exchange no registers.
    pub subgroup: Option<i64>,
    /// Most of them.
    pub widest: i64,
    /// Rows and columns of the matrices of halves that a subgroup multiplies, with sums in f32; none where it multiplies none.
    pub cooperative: Option<i64>,
    /// Is a word of a vector in shared memory written without the others? SPIR-V says so; Metal's compiler writes the whole vector.
    pub vector_parts: bool,
    /// Most threads of a workgroup.
    pub threads: usize,
    /// Most bytes that a workgroup shares.
    pub shared: usize,
    /// Most bytes of a buffer that a kernel is given.
    pub largest_binding: usize,
    /// Most buffers, or parts of them, that a kernel is given.
    pub bindings: usize,
    /// Bytes at whose multiples such a part begins.
    pub alignment: usize,
    /// What was measured of it: of one that no row has, the bytes and the operations of a second are those.
    pub measured: Costs,
}

/// Figures of an adapter that no row has.
#[derive(Clone, Copy)]
struct Usual {
    units: usize,
    schedulers: usize,
    /// Threads that a unit runs at once.
    threads: usize,
    /// Bytes a second.
    bandwidth: f64,
    /// Operations of f32 a second.
    operations: f64,
    /// Seconds of one more dependent launch.
    launch: f64,
    /// Seconds that threads wait for a load from memory, a guess; none of a program, whose core waits for its own loads.
    latency: f64,
}

impl Usual {
    /// With what was measured in place of guesses, and as many units as have those operations.
    fn with(self, measured: Costs) -> Usual {
        let (bandwidth, operations) =
            (measured.bandwidth.unwrap_or(self.bandwidth), measured.operations.unwrap_or(self.operations));
        let units = (self.units as f64 * operations / self.operations).round().max(1.0) as usize;
        Usual { units, bandwidth, operations, ..self }
    }
    /// What so many of them tell of a machine.
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

/// A middling card of 2023. A launch that waits for the one before takes 2.6 µs on an H200 through Vulkan: a token of Youtu in 358 launches, less what timestamps say that each
/// takes beyond one that computes nothing. Counted with 6 µs the token had 229 launches and took 9 % longer.
const DISCRETE: Usual = Usual {
    units: 40,
    schedulers: 4,
    threads: 1024,
    bandwidth: 400e9,
    operations: 15e12,
    launch: 3e-6,
    latency: 0.5e-6,
};
/// A middling part of a processor of 2023.
const INTEGRATED: Usual =
    Usual { units: 10, schedulers: 4, threads: 1024, bandwidth: 90e9, operations: 3e12, launch: 8e-6, latency: 0.5e-6 };
/// One core of a processor: of a workgroup's threads it runs a vector at a time, and a dispatch takes 26 to 30 µs (lavapipe, two cores of a Xeon). It takes one workgroup after
/// the other, and what a workgroup stages it computes for itself: so there are two for each core, as many as even out. With 32, a norm and 256 rows of 256 in four bits took 1.57 ms of
/// processor time, with two 0.41.
const CORE: Usual =
    Usual { units: 1, schedulers: 1, threads: 16, bandwidth: 8e9, operations: 30e9, launch: 28e-6, latency: 0.0 };
/// Bytes of what a workgroup shares in which values of its threads meet, beside the stages that plans have: of each of 512 threads an f32, an i32 and a u32 (6 KiB), or of each of 256 these and four f32
/// at once (7 KiB). Sums of 64 bits that meet in the same kernel find no room beside all of them. Counted, not measured.
const MEETING: usize = 16 * 512;
/// Threads that a subgroup is taken to have where they exchange nothing.
const UNKNOWN_SUBGROUP: i64 = 32;

/// What interfaces tell of rows of the table of machines, for plans without them: kind, fewest and most threads of a subgroup, and rows of its matrices. Those of 16 rows are Vulkan's,
/// those of 8 Metal's.
const TOLD: [(&str, AdapterKind, [i64; 2], i64); 4] = [
    ("h200", AdapterKind::Discrete, [32, 32], 16),
    ("m3-max", AdapterKind::Integrated, [32, 32], 8),
    ("rx7900xtx", AdapterKind::Discrete, [32, 64], 16),
    ("arc-b580", AdapterKind::Discrete, [16, 32], 16),
];

impl Adapter {
    /// Buffers of a kernel, where no adapter has told: those that Metal binds beside its own (29, wgpu's figure for argument tables of the second tier), without that of the variables. Of
    /// every other interface fewer than it has.
    pub const MOST_BINDINGS: usize = 28;
    /// What would be told of the row of [`NAMED`] that has this name.
    pub fn named(name: &str) -> Option<Adapter> {
        let (_, kind, [subgroup, widest], cooperative) = TOLD.into_iter().find(|told| told.0 == name)?;
        let row = NAMED.iter().find(|row| row.name == name)?;
        let name = row.title().into();
        let (subgroup, cooperative, vector_parts) = (Some(subgroup), Some(cooperative), cooperative == 16);
        let (threads, shared, largest_binding, alignment) = (1024, 32 << 10, i32::MAX as usize, 256);
        let bindings = Adapter::MOST_BINDINGS;
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
    /// Does its name, or that it is a program, say how fast it is? Else that is to be measured.
    pub fn is_known(&self) -> bool {
        matches!(self.kind, AdapterKind::Software(_)) || self.row().is_some()
    }
    /// The row of the table that has its name, but for what drivers add to it: trade marks, "Graphics" and what stands in brackets, as of "Intel(R) Arc(tm) B580 Graphics (BMG G21)".
    fn row(&self) -> Option<Machine> {
        let name = ["(R)", "(TM)", "(tm)"].into_iter().fold(self.name.clone(), |name, mark| name.replace(mark, ""));
        let name = name.split(" (").next().unwrap_or(&name).trim_end_matches(" Graphics");
        Machine::named(NAMED.iter().find(|row| row.title() == name)?.name)
    }
    /// The machine that kernels are planned for.
    pub fn machine(&self) -> Machine {
        let (of, many) = match self.kind {
            AdapterKind::Discrete => (DISCRETE, 1),
            AdapterKind::Integrated => (INTEGRATED, 1),
            AdapterKind::Software(cores) => (CORE, cores),
        };
        let from = self.row().unwrap_or_else(|| of.with(self.measured).machine(many));
        let (subgroup, shared) = (self.subgroup.unwrap_or(UNKNOWN_SUBGROUP), self.shared.saturating_sub(MEETING));
        // Two subgroups for each scheduler are a workgroup (`Target::new`).
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
            // Of the interface: a row's figure is that of its vendor's own, whose launches wait for less.
            launch: of.launch,
            largest_binding: self.largest_binding,
            // One is of tables, which only the text knows of.
            most_bindings: self.bindings.saturating_sub(1),
            folds: self.subgroup.unwrap_or(1),
            early: false,
            table_lookup: false,
            pairs: false,
            // `dot4I8Packed`, which every implementation has, if need be as four products.
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
            bindings: Adapter::MOST_BINDINGS,
            alignment: 64,
            measured: Costs::default(),
        }
    }

    #[test]
    fn a_row_is_found_by_the_adapters_name_and_gives_what_nobody_tells() {
        let named = |name| Machine::named(name).unwrap();
        let of = |name| adapter(name, AdapterKind::Discrete).machine();
        let found = of("AMD Radeon RX 7900 XTX (RADV NAVI31)");
        assert_eq!((found.units, found.bandwidth), (96, named("rx7900xtx").bandwidth));
        assert_eq!(of("Apple M3 Max").units, named("m3-max").units);
        assert_eq!(of("Intel(R) Arc(tm) B580 Graphics (BMG G21)").units, named("arc-b580").units);
        for (name, row) in [
            ("NVIDIA H200", "h200"),
            ("NVIDIA H100 80GB HBM3", "h100"),
            ("NVIDIA A100-SXM4-80GB", "a100"),
            ("NVIDIA GeForce RTX 4090", "rtx4090"),
            ("Tesla T4", "t4"),
        ] {
            assert_eq!((of(name).units, of(name).bandwidth), (named(row).units, named(row).bandwidth), "{name}");
        }
        // What another card's name begins with is none of its figures.
        for other in ["a card of next year", "NVIDIA L40S", "NVIDIA GeForce RTX 4090 Laptop GPU", "Apple M3 Max Ultra"]
        {
            assert!(!adapter(other, AdapterKind::Discrete).is_known(), "{other}");
            assert_eq!(of(other).units, DISCRETE.units, "{other}");
        }
        assert!(found.fragments.is_empty() && !found.early && found.least_bytes == 4);
        // What no interface of its vendor's plans for is told.
        assert!(NAMED.iter().filter(|row| !row.is_nvidia()).all(|row| Adapter::named(row.name).is_some()));
        let multiplies = Adapter { cooperative: Some(8), ..adapter("Apple M3 Max", AdapterKind::Integrated) }.machine();
        assert!(
            multiplies.tile_fragment().is_some_and(|of| of.rows == 8) && multiplies.fragment(Scalar::F16).is_none()
        );
    }

    #[test]
    fn what_was_measured_stands_for_a_row() {
        let measured = Costs { bandwidth: Some(3e12), operations: Some(60e12), ..Costs::default() };
        let next = Adapter { measured, ..adapter("a card of next year", AdapterKind::Discrete) };
        assert!(!next.is_known());
        let machine = next.machine();
        assert_eq!((machine.units, machine.bandwidth, machine.operations), (160, 3e12, 60e12));
        // Either figure may be missing.
        let measured = Costs { operations: None, ..measured };
        let machine = Adapter { measured, ..next }.machine();
        assert_eq!((machine.units, machine.bandwidth), (DISCRETE.units, 3e12));
        let known = adapter("NVIDIA H200", AdapterKind::Discrete);
        assert!(known.is_known() && adapter("llvmpipe", AdapterKind::Software(2)).is_known());
        assert_eq!(Adapter { measured, ..known.clone() }.machine(), known.machine());
    }

    #[test]
    fn a_core_has_few_workgroups() {
        for subgroup in [None, Some(4), Some(8)] {
            let target = Target::new(Adapter { subgroup, ..adapter("", AdapterKind::Software(2)) }.machine());
            assert!((1..=2).contains(&target.resident()), "{} of {} threads", target.resident(), target.threads);
        }
    }

    #[test]
    fn workgroups_are_no_larger_than_the_adapter_takes() {
        for threads in [32, 128, 256, 1024] {
            for subgroup in [None, Some(4), Some(8), Some(32), Some(64)] {
                let it = Adapter { threads, subgroup, ..adapter("", AdapterKind::Software(2)) };
                let target = Target::new(it.machine());
                let least = 2 * subgroup.unwrap_or(UNKNOWN_SUBGROUP) as usize;
                assert!(target.threads <= threads.max(least), "{} of {threads}", target.threads);
            }
        }
    }
}
