//! Selects how the nests of a launch are mapped, and how the launch is run.
//!
//! On a GPU a candidate is applied, and costs what its linear code costs. Other plans of nests than
//! the first are listed only for a policy or a tuned plan that asks for them.

use super::launch::{Body, Launch};
use crate::apply::mapping::{Mapping, map_body};
use crate::apply::{Candidate, CodeCost, Kernel};
use crate::decision::{Alternative, Decider, Decision, margin};
use crate::lower::KernelCode;
use crate::plan::{NestPlan, Proposal};
use gristmill_uop::features::Features;
use gristmill_uop::function::Function;
use gristmill_uop::launch::{Dependents, LaunchPlan};
use gristmill_uop::machine::MachineKind;
use gristmill_uop::program::When;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id};

/// Completes the plan of a launch, and its cost on a GPU.
pub fn select_plan(
    g: &Graph,
    launch: &mut Launch,
    function: &Function,
    target: &Target,
    decider: &mut Decider,
) {
    if launch.bodies.iter().any(|body| body.kernel.is_some()) {
        return;
    }
    let first = launch.level == 0;
    for (body, plan) in launch.bodies.iter().zip(&mut launch.plan.bodies) {
        let of = NestSelection {
            site: format!("{} {} nest", function.full_name(), body.title),
            first,
            target,
        };
        plan.nests = of.select(g, body, decider);
    }
    if target.machine.kind == MachineKind::Gpu {
        let titles: Vec<&str> = launch.bodies.iter().map(|b| b.title.as_str()).collect();
        let site = format!("{} {}", function.full_name(), titles.join(" beside "));
        let (plan, features) = select_launch(g, launch, site, target, decider);
        launch.plan.launch = plan;
        launch.cost.features = features;
        launch.cost.seconds = features.seconds(&target.machine.code_coefficients());
    }
}

/// Inputs of the selection of nest plans of one body.
struct NestSelection<'a> {
    /// Beginning of the decisions' sites.
    site: String,
    /// Whether the body belongs to the first launch of its function.
    first: bool,
    target: &'a Target,
}

impl NestSelection<'_> {
    /// Decides on the plan of each nest, in order.
    fn select(&self, g: &Graph, body: &Body, decider: &mut Decider) -> Vec<NestPlan> {
        let Kernel {
            mut graph,
            bodies,
            when,
            ..
        } = Kernel::new(g, &[&body.nests], &[body.when]);
        let nests = &bodies[0];
        let mut mapping = Mapping::new(&graph, nests, self.target);
        let costed = self.target.machine.kind == MachineKind::Gpu;
        for (i, &nest) in nests.iter().enumerate() {
            let decision = Decision::new("nest", format!("{} {i}", self.site), vec![]);
            let all = decider.explores(&decision);
            let mut proposals = mapping.proposals(&mut graph, nest, all);
            let seconds = |of: &Proposal<NestPlan>| {
                if !costed || proposals.len() == 1 {
                    return 0.0;
                }
                let (mut own, mut next) = (graph.clone(), mapping.clone());
                next.map(&mut own, nest, of.plan.clone());
                self.cost(&own, nests, &when, next).seconds(self.target)
            };
            let options = proposals.iter().map(|of| option(of, seconds(of))).collect();
            let chosen = decider.choose(Decision {
                options,
                ..decision
            });
            mapping.map(&mut graph, nest, proposals.swap_remove(chosen).plan);
        }
        mapping.finish(&mut graph).1
    }
    /// Cost of the body if the nests that are not mapped yet have the heuristic's plans.
    fn cost(&self, g: &Graph, nests: &[Id], when: &[When], mut mapping: Mapping) -> CodeCost {
        let mut graph = g.clone();
        mapping.map_rest(&mut graph, nests, &[]);
        let mapped = vec![mapping.finish(&mut graph).0];
        Candidate::new(graph, &mapped, when, self.first, self.target).cost_as_proposed()
    }
}

/// A candidate and what it costs.
fn option<T: ToString>(of: &Proposal<T>, seconds: f64) -> Alternative {
    Alternative {
        name: of.name,
        plan: of.plan.to_string(),
        seconds,
    }
}

/// Decides on the launch plan of mapped bodies. Plans that make the code of an earlier one are no
/// candidates.
fn select_launch(
    g: &Graph,
    launch: &Launch,
    site: String,
    target: &Target,
    decider: &mut Decider,
) -> (LaunchPlan, Features) {
    let nests: Vec<&[Id]> = launch.bodies.iter().map(|b| &b.nests[..]).collect();
    let when: Vec<When> = launch.bodies.iter().map(|b| b.when).collect();
    let Kernel {
        mut graph,
        bodies,
        when,
        ..
    } = Kernel::new(g, &nests, &when);
    let plans = launch.plan.bodies.iter();
    let mapped: Vec<Vec<Id>> = bodies
        .iter()
        .zip(plans)
        .map(|(nests, plan)| map_body(&mut graph, nests, &plan.nests, target).0)
        .collect();
    let candidate = Candidate::new(graph, &mapped, &when, launch.level == 0, target);
    let mut decision = Decision::new("launch", site, vec![]);
    let explores = decider.explores(&decision);
    let mut kept: Vec<(LaunchPlan, Features)> = Vec::new();
    let mut kernels: Vec<(LaunchPlan, (Graph, KernelCode))> = Vec::new();
    for proposal in candidate.proposals(true) {
        let plan = proposal.plan;
        let Some(at) = kernel_of(&candidate, plan, &mut kernels) else {
            continue;
        };
        let cost = candidate.cost(&plan, &kernels[at].1);
        let seconds = cost.seconds(target);
        decision.options.push(option(&proposal, seconds));
        kept.push((plan, cost.features));
        if kept.len() == 1 && !explores && cost.floor(target) > seconds * (1.0 - margin("launch")) {
            break;
        }
    }
    kept[decider.choose(decision)]
}

/// Index of the kernel under that plan, which is lowered if it is not among these. `None` if
/// another plan makes the same code.
fn kernel_of(
    candidate: &Candidate,
    plan: LaunchPlan,
    kernels: &mut Vec<(LaunchPlan, (Graph, KernelCode))>,
) -> Option<usize> {
    // The code of a workgroup does not depend on when others start, or on the size of its cache.
    let key = LaunchPlan {
        dependents: Dependents::default(),
        shared: None,
        ..plan
    };
    if let Some(at) = kernels.iter().position(|known| known.0 == key) {
        return Some(at);
    }
    let kernel = candidate.lowered(plan);
    if kernels.iter().any(|known| known.1.1 == kernel.1) {
        return None;
    }
    kernels.push((key, kernel));
    Some(kernels.len() - 1)
}
