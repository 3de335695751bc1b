//! The cost of a launch plan: the kernel's cost by bytes and operations, or its memory stalls,
//! if these take longer.
//!
//! A thread stalls once for all loads that are issued together. Workgroups beyond the occupancy
//! wait for a later wave.

use gristmill_uop::launch::{Dependents, LaunchPlan};
use gristmill_uop::target::Target;

/// Properties of a launch that its plan's cost depends on.
#[derive(Clone, Copy, Debug)]
pub struct LaunchWork {
    /// Seconds of the launch by bytes and operations.
    pub seconds: f64,
    /// Workgroups that each processor unit runs in total.
    pub workgroups_per_unit: f64,
    /// Shared memory of a workgroup in bytes.
    pub scratch: usize,
    /// Memory stalls of a thread.
    pub waits: f64,
}

/// Seconds of the launch with that plan.
pub fn launch(of: LaunchWork, plan: &LaunchPlan, target: &Target) -> f64 {
    let machine = &target.machine;
    // The split between shared memory and L1 limits the resident workgroups, too.
    let share = plan
        .shared
        .map(|percent| machine.shared_per_unit as i64 * percent / 100);
    let places = share.map_or(i64::MAX, |bytes| bytes / of.scratch.max(1) as i64);
    let at_once = plan.resident.min(places).max(1) as f64;
    let waits = (of.workgroups_per_unit / at_once).ceil().max(1.0) * of.waits * machine.latency;
    // Dependents that start at the end of this kernel have no loads in flight yet.
    let late = if plan.dependents == Dependents::End {
        machine.latency
    } else {
        0.0
    };
    of.seconds.max(machine.launch + waits) + late
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_and_waits_have_a_price() {
        let target = Target::named("h200");
        let of = LaunchWork {
            seconds: 3.5e-6,
            workgroups_per_unit: 4.0,
            scratch: 96 << 10,
            waits: 10.0,
        };
        let plan = LaunchPlan {
            resident: 2,
            words: 32,
            iterations: 8,
            ..LaunchPlan::default()
        };
        let cost = |of: LaunchWork, plan: LaunchPlan| launch(of, &plan, &target);
        assert!(
            cost(of, plan)
                < cost(
                    of,
                    LaunchPlan {
                        resident: 1,
                        ..plan
                    }
                )
        );
        assert!(cost(of, plan) < cost(LaunchWork { waits: 20.0, ..of }, plan));
        assert!(
            cost(of, plan)
                > cost(
                    of,
                    LaunchPlan {
                        dependents: Dependents::Entry,
                        ..plan
                    }
                )
        );
        // Half of 228 KiB holds one workgroup of 96 KiB.
        assert!(
            cost(of, plan)
                < cost(
                    of,
                    LaunchPlan {
                        shared: Some(50),
                        ..plan
                    }
                )
        );
        assert_eq!(
            cost(of, plan),
            cost(
                of,
                LaunchPlan {
                    shared: Some(100),
                    ..plan
                }
            )
        );
    }
}
