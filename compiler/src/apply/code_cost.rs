//! The cost of a GPU kernel's linear code: the time of a workgroup along its critical path, and
//! what all workgroups together ask of the device.

use super::walk::{Walk, WorkgroupLoad};
use crate::cost::occupancy::each;
use crate::ir::size_estimate::typical;
use crate::lower::{Code, KernelCode};
use gristmill_uop::Graph;
use gristmill_uop::features::{Amounts, Feature, Features};
use gristmill_uop::launch::{Dependents, LaunchPlan};
use gristmill_uop::target::Target;

/// How many workgroups of a launch run, and how many of them at once.
struct Occupancy {
    /// Workgroups of each body.
    counts: Vec<f64>,
    /// Workgroups that are resident on the device at once.
    at_once: f64,
}

impl Occupancy {
    fn new(
        g: &Graph,
        code: &KernelCode,
        plan: &LaunchPlan,
        scratch: usize,
        target: &Target,
    ) -> Occupancy {
        let machine = &target.machine;
        let units = machine.units as f64;
        let count = |body: &Code| {
            let sizes = body.globals.iter().map(|&r| typical(g, g[r].src[0]));
            sizes.product::<f64>().max(1.0)
        };
        let counts: Vec<f64> = code.bodies.iter().map(count).collect();
        let all: f64 = counts.iter().sum();
        // The split between shared memory and L1 limits the resident workgroups, too.
        let share = plan
            .shared
            .map_or(machine.shared_per_unit as i64, |percent| {
                machine.shared_per_unit as i64 * percent / 100
            });
        let places = share / scratch.max(1) as i64;
        let resident = plan.resident.min(places).max(1) as f64;
        Occupancy {
            at_once: all.min(resident * units),
            counts,
        }
    }
}

/// What the linear code of a launch costs.
#[derive(Clone, Debug)]
pub struct CodeCost {
    /// Features of the launch.
    pub features: Features,
    /// Whether it has matrix products.
    pub multiplies: bool,
}

impl CodeCost {
    /// Seconds of the launch.
    pub fn seconds(&self, target: &Target) -> f64 {
        self.features.seconds(&target.machine.code_coefficients())
    }
    /// Seconds below which no other mapping of the same work comes: the launch, and the transfer
    /// from memory.
    pub fn floor(&self, target: &Target) -> f64 {
        let least = Features {
            compute: Amounts::default(),
            ..self.features
        };
        least.seconds(&target.machine.code_coefficients())
    }
}

/// Cost of a launch with that code, `scratch` bytes of workgroup memory and that plan.
pub fn cost(
    g: &Graph,
    code: &KernelCode,
    plan: &LaunchPlan,
    scratch: usize,
    target: &Target,
) -> CodeCost {
    let machine = &target.machine;
    let by = machine.code_coefficients();
    let occupancy = Occupancy::new(g, code, plan, scratch, target);
    let units = machine.units as f64;
    let schedulers = machine.schedulers as f64;
    let warps = code.threads as f64 / machine.subgroup as f64;
    let free = each(plan.resident.max(1), target) - machine.gpu_facts().thread_registers;
    let mut multiplies = false;
    let (mut path, mut issue, mut memory, mut cache) = (Amounts::default(), 0.0, 0.0, 0.0);
    for (body, &count) in code.bodies.iter().zip(&occupancy.counts) {
        let load = WorkgroupLoad {
            threads: code.threads as f64,
            groups: count,
            at_once: occupancy.at_once.min(count),
            contention: warps * (occupancy.at_once / units).max(1.0) / schedulers,
            words: free.max(8) as f64,
        };
        let of = Walk::new(g, body, load, target).run(body);
        let waves = (count / occupancy.at_once).max(1.0);
        path = path.longer(of.path * waves, &by);
        issue += count * of.issue * warps / schedulers / units;
        memory += count * of.memory;
        cache += count * of.cache;
        multiplies |= of.multiplies;
    }
    // Dependents that start at the end of this kernel have no loads in flight yet.
    let late = Feature::Wait.times(f64::from(u8::from(plan.dependents == Dependents::End)));
    let cache = Feature::Cache.times(cache);
    let features = Features {
        fixed: Feature::Launch.times(1.0) + late,
        memory: Feature::Memory.times(memory),
        compute: path
            .longer(Feature::Cycle.times(issue), &by)
            .longer(cache, &by),
    };
    CodeCost {
        features,
        multiplies,
    }
}
