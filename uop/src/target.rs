//! What kernels are written for: a machine's facts, and what is chosen on top of them.

use crate::machine::{Machine, MachineKind};
use std::collections::BTreeMap;

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
    /// The kind of machine that has it; none if all do.
    pub of: Option<MachineKind>,
    /// Switches it off.
    pub off: fn(&mut Target),
}

impl Flag {
    /// Does a machine of that kind have it?
    pub fn acts_on(&self, kind: MachineKind) -> bool {
        self.of.is_none_or(|of| of == kind)
    }
}

const CPU: Option<MachineKind> = Some(MachineKind::Cpu);
const GPU: Option<MachineKind> = Some(MachineKind::Gpu);

/// The optimisations that can be switched off one by one: what each is worth is a matter of measurement.
pub const FLAGS: &[Flag] = &[
    Flag {
        name: "int8",
        doc: "integer dot products over packed rows, with activations quantised to int8",
        of: None,
        off: |t| t.int8 = false,
    },
    Flag { name: "prefetch", doc: "prefetch of the next rows", of: None, off: |t| t.tuning.prefetch = 0 },
    Flag { name: "pairs", doc: "int8 products summed in 16 bits (AVX2)", of: CPU, off: |t| t.machine.pairs = false },
    Flag { name: "lookup", doc: "4-bit codes by one table lookup", of: CPU, off: |t| t.machine.table_lookup = false },
    Flag {
        name: "alternatives",
        doc: "cheaper forms of a function's body, from an e-graph",
        of: None,
        off: |t| t.alternatives = false,
    },
    Flag { name: "tiles", doc: "register tiles of several tokens", of: None, off: |t| t.tuning.tokens = 1 },
    Flag { name: "fusion", doc: "intermediates computed inside their consumers", of: None, off: |t| t.fusion = false },
    Flag {
        name: "factors",
        doc: "a norm's scale deferred to the epilogue of its products",
        of: GPU,
        off: |t| t.factors = false,
    },
    Flag {
        name: "siblings",
        doc: "products that share an input in one kernel, such as gate and up",
        of: None,
        off: |t| t.siblings = false,
    },
    Flag {
        name: "chains",
        doc: "a product fused into the next one, such as low-rank queries",
        of: None,
        off: |t| t.chains = false,
    },
    Flag {
        name: "merge",
        doc: "horizontal fusion: independent kernels in one launch",
        of: None,
        off: |t| t.merge = false,
    },
    Flag {
        name: "reuse",
        doc: "a value that several dependent kernels would recompute, stored once",
        of: None,
        off: |t| t.reuse = false,
    },
    Flag {
        name: "interleave",
        doc: "rows of packed weights interleaved by vector",
        of: CPU,
        off: |t| t.interleave = false,
    },
    Flag { name: "grouping", doc: "more threads per sum where rows are few", of: GPU, off: |t| t.grouping = false },
    Flag { name: "scatter", doc: "scatter-add by index instead of comparisons", of: None, off: |t| t.scatter = false },
    Flag {
        name: "split-cache",
        doc: "attention split over the context (split-K), for many workgroups",
        of: None,
        off: |t| t.split_cache = false,
    },
    Flag { name: "fragments", doc: "matrix products by MMA fragments", of: None, off: |t| t.machine.fragments = &[] },
    Flag {
        name: "stage-cache",
        doc: "KV cache tiles in shared memory, for scores and values",
        of: GPU,
        off: |t| t.stage_cache = false,
    },
    Flag {
        name: "copy-ahead",
        doc: "software pipelining: asynchronous copies of KV cache tiles and of operands",
        of: GPU,
        off: |t| t.copy_ahead = false,
    },
    Flag { name: "early-launch", doc: "programmatic dependent launch", of: GPU, off: |t| t.early_launch = false },
    Flag {
        name: "hoist",
        doc: "early loads: later operands at the kernel's start, weights before the grid-dependency wait",
        of: GPU,
        off: |t| t.hoist = false,
    },
    Flag { name: "wide-loads", doc: "adjacent elements by one load", of: GPU, off: |t| t.wide_loads = false },
];

/// A device, as the compiler sees it.
#[derive(Clone, PartialEq, Debug)]
pub struct Target {
    /// Name: `cpu-avx512vnni`, `gpu-h200`. Part of every cache key.
    pub name: String,
    /// What the device is.
    pub machine: Machine,
    /// Threads of a workgroup; 1 of a CPU.
    pub threads: usize,
    /// Registers that a thread is planned with: vector registers of a CPU, of 32 bits of a GPU.
    pub registers: usize,
    /// Are activations encoded in eight bits where they meet packed weights?
    pub int8: bool,
    /// Are other forms of a function's body looked for?
    pub alternatives: bool,
    /// Are intermediates computed inside the kernels that read them, where that is cheaper?
    pub fusion: bool,
    /// Do factors that all terms of a sum share multiply the sum, where that is cheaper?
    pub factors: bool,
    /// Are several products in one kernel that do not read one another, where that is cheaper?
    pub siblings: bool,
    /// Are products computed inside the kernels of products that read them, where that is cheaper?
    pub chains: bool,
    /// Do independent kernels share a launch?
    pub merge: bool,
    /// Is what several kernels in a row would compute stored by one beside the first of them, where that is cheaper?
    pub reuse: bool,
    /// Do rows of packed weights lie side by side in a processor's memory?
    pub interleave: bool,
    /// Do more of a GPU's threads share a sum where there are too few rows for all units?
    pub grouping: bool,
    /// Are rows added where their numbers say, where that is cheaper than to look for them by comparison?
    pub scatter: bool,
    /// Is a cache of rows cut into short chunks, each for a workgroup of its own?
    pub split_cache: bool,
    /// Does a GPU's workgroup keep its tile of the cache in shared memory?
    pub stage_cache: bool,
    /// Is that tile copied before the kernels before have ended?
    pub copy_ahead: bool,
    /// Do a GPU's kernels let those behind them start early?
    pub early_launch: bool,
    /// Do a GPU's threads load what later nests need before the first?
    pub hoist: bool,
    /// Are neighbours in a GPU's memory one load?
    pub wide_loads: bool,
    /// May floats be added in an order that differs from run to run, where that is cheaper? Nobody who must get the same bits again wants it, so it is off
    /// unless it is asked for.
    pub any_order: bool,
    /// What was, or may be, tuned.
    pub tuning: Tuning,
    /// Plans of kernels that a tuner found, as texts, by the decisions that they answer.
    pub plans: BTreeMap<String, String>,
}

/// Subgroups of a GPU's workgroup for each scheduler of a unit, so that one computes while another waits. H200, GLM: 256 threads.
const OF_A_SCHEDULER: usize = 2;
/// Workgroups that fill a unit's registers where each thread has those that it is planned with. H200, GLM: 128 registers a thread.
const RESIDENT: usize = 2;
/// Registers that an instruction of a GPU can tell apart (RDNA 3 and Xe2: 256; NVIDIA's 255 are more than two workgroups of a multiprocessor have).
const MOST_REGISTERS: usize = 256;
/// Workgroups that a core takes one after the other, at least: what it stages is computed once for all of them.
const OF_A_CORE: i64 = 2;

impl Target {
    /// That machine, with every optimisation on.
    pub fn new(machine: Machine) -> Target {
        let (kind, threads, registers) = match machine.kind {
            MachineKind::Cpu => ("cpu", 1, machine.registers),
            MachineKind::Gpu => {
                let threads = OF_A_SCHEDULER * machine.schedulers * machine.subgroup as usize;
                ("gpu", threads, (machine.registers / (RESIDENT * threads)).min(MOST_REGISTERS))
            }
        };
        // A processor's cores ask ahead whatever kernels are.
        let early = machine.kind == MachineKind::Cpu || machine.early;
        let tuning = Tuning::default();
        Target {
            name: format!("{kind}-{}", machine.name),
            machine,
            threads,
            registers,
            int8: true,
            alternatives: true,
            fusion: true,
            factors: true,
            siblings: true,
            chains: true,
            merge: true,
            reuse: true,
            interleave: true,
            grouping: true,
            scatter: true,
            split_cache: true,
            stage_cache: true,
            copy_ahead: early,
            early_launch: early,
            hoist: early,
            wide_loads: true,
            any_order: false,
            tuning: Tuning { prefetch: if early { tuning.prefetch } else { 0 }, ..tuning },
            plans: BTreeMap::new(),
        }
    }
    /// A CPU with `cores` cores and vectors of `lanes` floats.
    pub fn cpu(isa: &'static str, lanes: usize, cores: usize) -> Target {
        Target::new(Machine::cpu(isa, lanes, cores))
    }
    /// A row of [`NAMED`](crate::machine::NAMED).
    ///
    /// # Panics
    /// When there is none of that name.
    pub fn named(name: &str) -> Target {
        Target::new(Machine::named(name).unwrap_or_else(|| panic!("no machine is called {name}")))
    }
    /// Statements of a GPU's loop whose turns, of all subgroups that a scheduler takes turns with, take as long as a load from memory: a loop with more need not be
    /// copied for its loads to be waited for. H200: 155, by its multiplications and additions a second.
    pub fn statements_of_a_wait(&self) -> usize {
        let m = &self.machine;
        let lanes = (m.units * m.schedulers) as f64 * m.subgroup as f64;
        let clocks = m.latency * m.operations / (2.0 * lanes);
        let subgroups = self.threads as i64 * self.resident() / (m.subgroup * m.schedulers as i64);
        (clocks / subgroups.max(1) as f64) as usize
    }
    /// Workgroups that a unit holds at once, as counted from the registers that threads are planned with.
    pub fn resident(&self) -> i64 {
        match self.machine.kind {
            MachineKind::Cpu => OF_A_CORE,
            MachineKind::Gpu => {
                let held = self.machine.threads_per_unit.min(self.machine.registers / self.registers) / self.threads;
                held.max(1) as i64
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::NAMED;

    #[test]
    fn workgroups_follow_from_a_units_parts() {
        let of = |name| (Target::named(name).threads, Target::named(name).registers);
        assert_eq!(
            (of("h200"), of("t4"), of("rx7900xtx"), of("arc-b580")),
            ((256, 128), (256, 128), (128, 256), (256, 256))
        );
        for row in NAMED {
            let t = Target::named(row.name);
            assert!(
                t.registers >= 64 && t.threads * t.resident() as usize <= t.machine.threads_per_unit,
                "{}",
                row.name
            );
            assert!(t.threads <= 1024 && t.threads * t.registers * RESIDENT <= t.machine.registers, "{}", row.name);
        }
    }

    #[test]
    fn every_flag_and_every_parameter_changes_a_target() {
        let fragments = &[crate::fragment::AMX_BF16];
        let cpu = Target::new(Machine { pairs: true, fragments, ..Machine::cpu("test", 16, 2) });
        for flag in FLAGS {
            for on in [&cpu, &Target::named("h200")].into_iter().filter(|on| flag.acts_on(on.machine.kind)) {
                let mut off = on.clone();
                (flag.off)(&mut off);
                assert_ne!(off, *on, "{}", flag.name);
            }
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
