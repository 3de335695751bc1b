//! Selects the workgroup shape and stages of each kernel.
//!
//! During the fusion search every kernel has the first proposed shape. Here, the kernels that are
//! really built are recut in each proposed shape, costed, and decided on.

use super::launch_fusion::Share;
use super::materialise::MAX_COST_RATIO;
use super::recut::{KernelShape, Recut, seconds_alone};
use crate::cost::Cost;
use crate::decision::{Alternative, Decider, Decision, margin};
use crate::ir::title::title_of_nests;
use crate::kernel::Draft;
use crate::plan::FIRST;
use crate::plan::{Proposal, StagePlan, Workgroup};
use crate::propose::stages;
use gristmill_uop::Graph;
use gristmill_uop::function::Function;

/// Whether a kernel's floor allows the saving that a decision must promise.
fn could_pay((seconds, floor): (f64, f64)) -> bool {
    floor < seconds * (1.0 - margin("workgroup"))
}

/// A stage plan with its cost.
fn option(of: &Proposal<StagePlan>, seconds: f64) -> Alternative {
    Alternative {
        name: of.name,
        plan: of.plan.to_string(),
        seconds,
    }
}

/// Context of the selection.
pub struct TilingSelection<'a> {
    /// Function of the kernels.
    pub function: &'a Function,
    /// Rebuilds a kernel in another shape.
    pub recut: &'a Recut<'a>,
    /// Maximum workgroups of each kernel.
    pub max_workgroups: &'a [i64],
}

impl TilingSelection<'_> {
    /// Decides on the workgroup shape of each kernel.
    pub fn workgroups(
        &self,
        g: &mut Graph,
        shares: &mut [Share],
        kernels: &mut [(Draft, Cost)],
        decider: &mut Decider,
    ) {
        // Trials use a copy of the graph, so that they leave no nodes in it.
        let mut tried: Option<Graph> = None;
        for share in shares {
            for &i in &share.kernels {
                let kernel = &kernels[i];
                // A custom kernel has only one shape.
                if kernel.0.call.is_some() {
                    continue;
                }
                let (root, site) = (kernel.0.root, self.site(g, &kernel.0));
                let of = Decision::new("workgroup", site, vec![]);
                let options = self.options(g, &mut tried, i, kernel, decider.explores(&of));
                let (plans, options): (Vec<Workgroup>, Vec<Alternative>) =
                    options.into_iter().unzip();
                let chosen = decider.choose(Decision { options, ..of });
                let shape = KernelShape {
                    max_workgroups: self.max_workgroups[i],
                    plan: Some(&plans[chosen]),
                    stages: None,
                };
                if chosen > 0
                    && let Some(new) = self.recut.cut(g, root, shape)
                {
                    share.cost.seconds += new.1.seconds - kernel.1.seconds;
                    kernels[i] = new;
                }
            }
        }
    }
    fn site(&self, g: &Graph, draft: &Draft) -> String {
        let title = title_of_nests(g, self.function, &draft.nests);
        format!(
            "{} {title} {}",
            self.function.full_name(),
            g.show_dims(&g.shape(draft.root))
        )
    }
    /// Decides which nodes fused into each kernel are staged, and the row layout of stages.
    pub fn stages(
        &self,
        g: &mut Graph,
        shares: &mut [Share],
        kernels: &mut [(Draft, Cost)],
        decider: &mut Decider,
    ) {
        let mut tried: Option<Graph> = None;
        for share in shares {
            for &i in &share.kernels {
                let (draft, cost) = &kernels[i];
                if draft.stage_plan == StagePlan::default() {
                    continue;
                }
                let of = Decision::new("stages", self.site(g, draft), vec![]);
                let mut plans = vec![Proposal {
                    name: FIRST,
                    plan: draft.stage_plan.clone(),
                }];
                let target = self.recut.target();
                let alone = seconds_alone(g, &kernels[i], target);
                let mut options = vec![option(&plans[0], alone.0)];
                let others = match decider.explores(&of) {
                    true => stages::others(&draft.stage_plan),
                    false => vec![],
                };
                for other in others {
                    let shape = self.shape(i, draft, &other.plan);
                    let graph = tried.get_or_insert_with(|| g.clone());
                    // If a node cannot be read the other way, the rule's choice stays.
                    let Some(new) = self.recut.cut(graph, draft.root, shape) else {
                        continue;
                    };
                    let plan = new.0.stage_plan.clone();
                    if plans.iter().any(|p| p.plan == plan)
                        || new.1.seconds > MAX_COST_RATIO * cost.seconds
                    {
                        continue;
                    }
                    let seconds = seconds_alone(graph, &new, target).0;
                    let new = Proposal { plan, ..other };
                    options.push(option(&new, seconds));
                    plans.push(new);
                }
                let plan = plans
                    .swap_remove(decider.choose(Decision { options, ..of }))
                    .plan;
                if plan != draft.stage_plan
                    && let Some(new) = self.recut.cut(g, draft.root, self.shape(i, draft, &plan))
                {
                    share.cost.seconds += new.1.seconds - cost.seconds;
                    kernels[i] = new;
                }
            }
        }
    }
    fn shape<'b>(&self, i: usize, draft: &'b Draft, stages: &'b StagePlan) -> KernelShape<'b> {
        KernelShape {
            max_workgroups: self.max_workgroups[i],
            plan: Some(&draft.plan),
            stages: Some(stages),
        }
    }
    /// The legal shapes of kernel `i`. Shapes are only tried if the kernel's cost floor allows a
    /// sufficient saving, unless `all` is set.
    fn options(
        &self,
        g: &Graph,
        tried: &mut Option<Graph>,
        i: usize,
        kernel: &(Draft, Cost),
        all: bool,
    ) -> Vec<(Workgroup, Alternative)> {
        let draft = &kernel.0;
        let target = self.recut.target();
        let alone = seconds_alone(g, kernel, target);
        let worthwhile = all || could_pay(alone);
        let mut options = vec![];
        for (n, proposal) in self
            .recut
            .proposals(g, draft, self.max_workgroups[i], worthwhile)
            .into_iter()
            .enumerate()
        {
            let seconds = if n == 0 {
                alone.0
            } else {
                let shape = KernelShape {
                    max_workgroups: self.max_workgroups[i],
                    plan: Some(&proposal.plan),
                    stages: None,
                };
                let graph = tried.get_or_insert_with(|| g.clone());
                let Some(new) = self.recut.cut(graph, draft.root, shape) else {
                    continue;
                };
                seconds_alone(graph, &new, target).0
            };
            let Proposal { name, plan } = proposal;
            options.push((
                plan.clone(),
                Alternative {
                    name,
                    plan: plan.to_string(),
                    seconds,
                },
            ));
        }
        options
    }
}
