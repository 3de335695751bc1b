//! Chooses the launch plan of a GPU kernel by cost; the first plan is kept unless another is
//! predicted to be far cheaper.

use crate::cost::launch::{LaunchWork, launch as cost};
use crate::decision::{Alternative, Decider, Decision};
use crate::ir::size_estimate::typical;
use crate::lower::Statement;
use crate::lower::loops::unroll::unroll;
use crate::lower::pressure::waits;
use crate::plan::Proposal;
use crate::propose::launch::{Launched, launch as proposals};
use gristmill_uop::Id;
use gristmill_uop::launch::LaunchPlan;

/// Fraction of a launch's cost that another plan must save to replace the first. Not measured. The
/// cost model ignores register spills and cache hits: for a router's loops over tokens it predicts
/// a saving of one half.
const LAUNCH_MARGIN: f64 = 0.75;

/// Returns the launch plan. `seconds` is the cost by bytes and operations; `groups` is an index
/// expression for the number of workgroups.
pub fn decided(
    of: &Launched,
    groups: Id,
    seconds: f64,
    site: String,
    decider: &mut Decider,
) -> LaunchPlan {
    let decision = Decision {
        margin: LAUNCH_MARGIN,
        ..Decision::new("launch", site, vec![])
    };
    let workgroups_per_unit = typical(of.g, groups) / of.target.machine.units.max(1) as f64;
    let unrolled = |plan: &LaunchPlan| -> Vec<Vec<Statement>> {
        of.bodies
            .iter()
            .map(|b| unroll(of.g, b.statements.clone(), plan, of.target))
            .collect()
    };
    let costed = |plan: &LaunchPlan, bodies: &[Vec<Statement>]| {
        // Asynchronous copies of all in-flight iterations share one wait.
        let waits =
            bodies.iter().map(|b| waits(of.g, b)).fold(0.0, f64::max) / (plan.ahead + 1) as f64;
        cost(
            LaunchWork {
                seconds,
                workgroups_per_unit,
                scratch: of.scratch,
                waits,
            },
            plan,
            of.target,
        )
    };
    let mut plans = proposals(of, false);
    let proposed = plans[0].plan;
    let loops = unrolled(&proposed);
    let first = costed(&proposed, &loops);
    let mut costs = vec![Some(first)];
    // Bytes and operations are the same in every plan.
    if decider.explores(&decision) || seconds < first * (1.0 - LAUNCH_MARGIN) {
        plans = proposals(of, true);
        // Unrolling depends on these fields alone; where no loop can be unrolled, other unroll
        // factors are not other plans.
        let copies = |p: &LaunchPlan| (p.resident == 1, p.words, p.iterations);
        costs.extend(plans[1..].iter().map(|Proposal { plan, .. }| {
            if copies(plan) == copies(&proposed) {
                return Some(costed(plan, &loops));
            }
            let new = unrolled(plan);
            (plan.resident != proposed.resident || new != loops).then(|| costed(plan, &new))
        }));
    }
    let (mut kept, mut options) = (vec![], vec![]);
    for (Proposal { name, plan }, seconds) in plans.into_iter().zip(costs) {
        let Some(seconds) = seconds else { continue };
        kept.push(plan);
        options.push(Alternative {
            name,
            plan: plan.to_string(),
            seconds,
        });
    }
    kept[decider.choose(Decision {
        options,
        ..decision
    })]
}
