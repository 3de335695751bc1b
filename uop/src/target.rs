//! Compilation target: a machine description, and the compiler's options for it.

use crate::machine::{Machine, MachineKind};
use crate::rows::GROUP;
use std::collections::BTreeMap;

/// Kernel parameters that can only be chosen by measurement on a machine; set by autotuning. The
/// defaults are reasonable everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tuning {
    /// Groups of interleaved rows per workgroup kept in registers for one token; four times as many
    /// for rows that are not interleaved.
    pub groups: u8,
    /// Largest number of tokens per workgroup kept in registers; half as many for rows
    /// that are not interleaved.
    pub tokens: u8,
    /// Prefetch distance in iterations, or in units of 2 KB if rows are
    /// contiguous; 0 disables prefetch.
    pub prefetch: u8,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            groups: 1,
            tokens: 16,
            prefetch: 1,
        }
    }
}

/// A tunable parameter, as seen by autotuning.
pub struct Parameter {
    /// Name of the parameter.
    pub name: &'static str,
    /// Values to try, including the default.
    pub values: &'static [u8],
    /// Field of [`Tuning`] that stores it.
    pub field: fn(&mut Tuning) -> &mut u8,
}

/// Parameters in the order in which autotuning tries them.
pub const PARAMETERS: &[Parameter] = &[
    Parameter {
        name: "groups",
        values: &[1, 2, 4],
        field: |t| &mut t.groups,
    },
    Parameter {
        name: "prefetch",
        values: &[0, 1, 2, 4],
        field: |t| &mut t.prefetch,
    },
    Parameter {
        name: "tokens",
        values: &[4, 8, 12, 16],
        field: |t| &mut t.tokens,
    },
];

/// An optimisation that can be disabled. Results stay correct without it.
pub struct Flag {
    /// Name on the command line.
    pub name: &'static str,
    /// User-visible description of the optimisation.
    pub doc: &'static str,
    /// Kind of machine to which it applies; `None` for all.
    pub of: Option<MachineKind>,
    /// Disables the optimisation in a target.
    pub off: fn(&mut Target),
}

impl Flag {
    /// Returns whether the setting applies to machines of this kind.
    pub fn acts_on(&self, kind: MachineKind) -> bool {
        self.of.is_none_or(|of| of == kind)
    }
}

const CPU: Option<MachineKind> = Some(MachineKind::Cpu);
const GPU: Option<MachineKind> = Some(MachineKind::Gpu);

/// Optimisations that can be disabled individually, to measure their effect.
pub const FLAGS: &[Flag] = &[
    Flag {
        name: "int8",
        doc: "integer dot products over packed rows, with activations quantised to int8",
        of: None,
        off: |t| t.int8 = false,
    },
    Flag {
        name: "prefetch",
        doc: "prefetch of the next rows",
        of: None,
        off: |t| t.tuning.prefetch = 0,
    },
    Flag {
        name: "pairs",
        doc: "int8 products summed in 16 bits (AVX2)",
        of: CPU,
        off: |t| t.machine.pairs = false,
    },
    Flag {
        name: "lookup",
        doc: "4-bit codes by one table lookup",
        of: CPU,
        off: |t| t.machine.table_lookup = false,
    },
    Flag {
        name: "alternatives",
        doc: "cheaper forms of a function's body, from an e-graph",
        of: None,
        off: |t| t.alternatives = false,
    },
    Flag {
        name: "tiles",
        doc: "register tiles of several tokens",
        of: None,
        off: |t| t.tuning.tokens = 1,
    },
    Flag {
        name: "fusion",
        doc: "intermediates computed inside their consumers",
        of: None,
        off: |t| t.fusion = false,
    },
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
    Flag {
        name: "grouping",
        doc: "more threads per sum where rows are few",
        of: GPU,
        off: |t| t.grouping = false,
    },
    Flag {
        name: "scatter",
        doc: "scatter-add by index instead of comparisons",
        of: None,
        off: |t| t.scatter = false,
    },
    Flag {
        name: "split-cache",
        doc: "attention split over the context (split-K), for many workgroups",
        of: None,
        off: |t| t.split_cache = false,
    },
    Flag {
        name: "fragments",
        doc: "matrix products by MMA fragments",
        of: None,
        off: |t| t.machine.fragments = &[],
    },
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
    Flag {
        name: "early-launch",
        doc: "programmatic dependent launch",
        of: GPU,
        off: |t| t.early_launch = false,
    },
    Flag {
        name: "hoist",
        doc: "early loads: later operands at the kernel's start, weights before the grid-dependency wait",
        of: GPU,
        off: |t| t.hoist = false,
    },
    Flag {
        name: "wide-loads",
        doc: "adjacent elements by one load",
        of: GPU,
        off: |t| t.wide_loads = false,
    },
];

/// A device from the compiler's point of view.
#[derive(Clone, PartialEq, Debug)]
pub struct Target {
    /// Name, such as `cpu-avx512vnni` or `gpu-h200`. Part of every cache key.
    pub name: String,
    /// Machine description of the device.
    pub machine: Machine,
    /// Threads per workgroup; 1 for a CPU.
    pub threads: usize,
    /// Registers planned per thread: vector registers of a CPU, 32-bit registers of a GPU.
    pub registers: usize,
    /// Whether activations are quantised to int8 for products with packed weights.
    pub int8: bool,
    /// Elements of an activation row that share a scale then: [`GROUP`] or
    /// [`FINE_GROUP`](crate::rows::FINE_GROUP). 1 stands for halves: operands of matrix units, and
    /// f32 where there are none.
    pub activation_group: i64,
    /// Whether equivalent forms of a function's body are searched.
    pub alternatives: bool,
    /// Whether intermediates are fused into the kernels that read them, if that is cheaper.
    pub fusion: bool,
    /// Whether factors common to all terms of a sum are applied to the sum, if that is cheaper.
    pub factors: bool,
    /// Whether independent products share a kernel, if that is cheaper.
    pub siblings: bool,
    /// Whether independent kernels share a launch (horizontal fusion).
    pub merge: bool,
    /// Whether a value that several dependent kernels would recompute is stored by the first one,
    /// if that is cheaper.
    pub reuse: bool,
    /// Whether rows of packed weights are interleaved in memory on a CPU.
    pub interleave: bool,
    /// Whether more GPU threads share a sum if there are too few rows for all processor units.
    pub grouping: bool,
    /// Whether scatter-add writes to the indexed rows instead of finding them by comparison,
    /// if that is cheaper.
    pub scatter: bool,
    /// Whether attention splits the KV cache into short chunks, with a workgroup for each.
    pub split_cache: bool,
    /// Whether a GPU workgroup stages its tile of the KV cache in shared memory.
    pub stage_cache: bool,
    /// Whether that tile is copied before the predecessor kernels have ended.
    pub copy_ahead: bool,
    /// Whether GPU kernels start early by programmatic dependent launch.
    pub early_launch: bool,
    /// Whether GPU threads load operands of later nests before the first nest (early loads).
    pub hoist: bool,
    /// Whether adjacent elements in GPU memory are loaded by one wide load.
    pub wide_loads: bool,
    /// Whether floats may be summed in an order that varies between runs, if that is cheaper. Off
    /// by default, since results are then not reproducible.
    pub any_order: bool,
    /// Current values of the tunable parameters.
    pub tuning: Tuning,
    /// Autotuned kernel plans in text form, keyed by the decisions that they answer.
    pub plans: BTreeMap<String, String>,
}

/// Registers addressable per thread (256 on RDNA 3 and Xe2; NVIDIA's 255 exceed the share of
/// two workgroups per multiprocessor).
const MAX_REGISTERS: usize = 256;
/// Minimum number of workgroups that a core runs in sequence; its stages are computed once
/// for all of them.
const OF_A_CORE: i64 = 2;

impl Target {
    /// True if products have halves as operands: see
    /// [`activation_group`](Target::activation_group).
    pub fn has_halves(&self) -> bool {
        self.activation_group == 1
    }
    /// Targets that machine with every optimisation enabled.
    pub fn new(machine: Machine) -> Target {
        let facts = machine.gpu_facts();
        let (kind, threads, registers) = match machine.kind {
            MachineKind::Cpu => ("cpu", 1, machine.registers),
            MachineKind::Gpu => {
                let threads =
                    facts.subgroups_per_scheduler * machine.schedulers * machine.subgroup as usize;
                (
                    "gpu",
                    threads,
                    (machine.registers / (facts.resident_workgroups * threads)).min(MAX_REGISTERS),
                )
            }
        };
        // Prefetching on a CPU does not depend on `Machine::early`.
        let early = machine.kind == MachineKind::Cpu || machine.early;
        let tuning = Tuning::default();
        Target {
            name: format!("{kind}-{}", machine.name),
            machine,
            threads,
            registers,
            int8: true,
            activation_group: GROUP,
            alternatives: true,
            fusion: true,
            factors: true,
            siblings: true,
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
            tuning: Tuning {
                prefetch: if early { tuning.prefetch } else { 0 },
                ..tuning
            },
            plans: BTreeMap::new(),
        }
    }
    /// Targets a CPU with `cores` cores and vectors of `lanes` floats.
    pub fn cpu(isa: &'static str, lanes: usize, cores: usize) -> Target {
        Target::new(Machine::cpu(isa, lanes, cores))
    }
    /// Targets a row of [`NAMED`](crate::machine::NAMED).
    ///
    /// # Panics
    /// If there is no row with that name.
    pub fn named(name: &str) -> Target {
        Target::new(Machine::named(name).unwrap_or_else(|| panic!("no machine is called {name}")))
    }
    /// Number of loop statements that hide a load from memory.
    ///
    /// One iteration of that length, executed by all subgroups that share a scheduler, takes as
    /// long as the load; longer loops need not be unrolled to overlap loads. 155 on an H200, from
    /// its multiply-adds per second.
    pub fn statements_of_a_wait(&self) -> usize {
        let m = &self.machine;
        let lanes = (m.units * m.schedulers) as f64 * m.subgroup as f64;
        let clocks = m.latency * m.operations / (2.0 * lanes);
        let subgroups = self.threads as i64 * self.resident() / (m.subgroup * m.schedulers as i64);
        (clocks / subgroups.max(1) as f64) as usize
    }
    /// Resident workgroups per processor unit, by the registers planned per thread.
    pub fn resident(&self) -> i64 {
        match self.machine.kind {
            MachineKind::Cpu => OF_A_CORE,
            MachineKind::Gpu => {
                let held = self
                    .machine
                    .threads_per_unit
                    .min(self.machine.registers / self.registers)
                    / self.threads;
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
                t.registers >= 64
                    && t.threads * t.resident() as usize <= t.machine.threads_per_unit,
                "{}",
                row.name
            );
            assert!(
                t.threads <= 1024
                    && t.threads * t.registers * t.machine.gpu_facts().resident_workgroups
                        <= t.machine.registers,
                "{}",
                row.name
            );
        }
    }

    #[test]
    fn every_flag_and_every_parameter_changes_a_target() {
        let fragments = &[crate::fragment::AMX_BF16];
        let cpu = Target::new(Machine {
            pairs: true,
            fragments,
            ..Machine::cpu("test", 16, 2)
        });
        for flag in FLAGS {
            for on in [&cpu, &Target::named("h200")]
                .into_iter()
                .filter(|on| flag.acts_on(on.machine.kind))
            {
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
