//! A launch under candidate plans: its linear code, and what that costs.

use super::code_cost::{self, CodeCost};
use super::mapping::map_body;
use super::own_graph::Kernel;
use super::scratch;
use crate::ir::nest::workgroups;
use crate::lower::{Code, KernelCode, finish, lower_bodies};
use crate::plan::Proposal;
use crate::propose::launch::{Launched, launch};
use gristmill_uop::launch::LaunchPlan;
use gristmill_uop::program::{KernelContext, When};
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id};

/// Cost of a launch of these nests alone, with the heuristic's plans.
pub fn cost_as_proposed(g: &Graph, nests: &[Id], when: When, target: &Target) -> CodeCost {
    let Kernel {
        mut graph,
        bodies,
        when,
        ..
    } = Kernel::new(g, &[nests], &[when]);
    let mapped = vec![map_body(&mut graph, &bodies[0], &[], target).0];
    Candidate::new(graph, &mapped, &when, false, target).cost_as_proposed()
}

/// A launch of which every nest is mapped, in a graph of its own.
pub struct Candidate<'a> {
    graph: Graph,
    bodies: Vec<Code>,
    when: &'a [When],
    /// Maximum workgroups per unit.
    workgroups_per_unit: i64,
    /// Shared memory of a workgroup in bytes.
    scratch: usize,
    /// Whether this is the first launch of its function.
    first: bool,
    target: &'a Target,
}

impl<'a> Candidate<'a> {
    /// Linearises the mapped nests of each body.
    pub fn new(
        mut graph: Graph,
        bodies: &[Vec<Id>],
        when: &'a [When],
        first: bool,
        target: &'a Target,
    ) -> Candidate<'a> {
        let units = target.machine.units.max(1) as i64;
        let groups = bodies.iter().map(|nests| workgroups(&graph, nests));
        let groups = groups.fold(0, i64::saturating_add);
        let codes = lower_bodies(&mut graph, bodies, when, target);
        let locals: Vec<Vec<Id>> = codes.iter().map(|code| code.locals.clone()).collect();
        let bytes = scratch::place(&graph, &locals, &mut vec![]);
        Candidate {
            scratch: scratch::reserved(bytes, when, target),
            bodies: codes,
            when,
            workgroups_per_unit: groups.saturating_add(units - 1) / units,
            first,
            target,
            graph,
        }
    }
    /// Candidate launch plans, the heuristic's first; only that one unless `all` is set.
    pub fn proposals(&self, all: bool) -> Vec<Proposal<LaunchPlan>> {
        let launched = Launched {
            g: &self.graph,
            bodies: &self.bodies,
            workgroups_per_unit: self.workgroups_per_unit,
            scratch: self.scratch,
            first: self.first,
            target: self.target,
        };
        launch(&launched, all)
    }
    /// The kernel under that launch plan, and the graph of its code.
    pub fn lowered(&self, plan: LaunchPlan) -> (Graph, KernelCode) {
        let context = KernelContext {
            when: self.when.to_vec(),
            plan,
            streams: vec![],
        };
        let mut graph = self.graph.clone();
        let code = finish(&mut graph, self.bodies.clone(), &context, self.target);
        (graph, code)
    }
    /// Cost of the launch under that plan, by its kernel.
    pub fn cost(&self, plan: &LaunchPlan, (graph, code): &(Graph, KernelCode)) -> CodeCost {
        code_cost::cost(graph, code, plan, self.scratch, self.target)
    }
    /// Cost of the launch under the heuristic's plan.
    pub fn cost_as_proposed(&self) -> CodeCost {
        let plan = self.proposals(false)[0].plan;
        self.cost(&plan, &self.lowered(plan))
    }
}
