//! Horizontal fusion: independent kernels share a launch where that is cheaper.

use super::launch::{Body, Launch};
use super::recut::{FusionContext, KernelShape, Recut};
use crate::cost::{Cost, occupancy};
use crate::custom;
use crate::decision::{Decider, LAUNCH_FUSION};
use crate::ir::nest::workgroups;
use crate::ir::title::{title_of_nests, title_of_text};
use crate::kernel::Draft;
use crate::plan::{KernelPlan, TilePlan};
use gristmill_uop::features::{Amounts, Feature, Features};
use gristmill_uop::function::Function;
use gristmill_uop::launch::LaunchPlan;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op};

/// Kernels of one launch, by index.
pub struct Share {
    /// Indices of the kernels.
    pub kernels: Vec<usize>,
    /// Dependency level of all of them.
    pub level: usize,
    /// Cost of the launch.
    pub cost: Cost,
}

impl Share {
    /// Builds the launch of these kernels, of which the plans of nests and of the launch are open.
    pub fn launch(
        &self,
        g: &Graph,
        function: &Function,
        kernels: &[(Draft, Cost)],
        target: &Target,
    ) -> Launch {
        let body = |&i: &usize| {
            let Draft {
                root,
                nests,
                when,
                call,
                ..
            } = &kernels[i].0;
            let kernel = call.and_then(|call| custom::called(g, call));
            let title = match kernel {
                Some(kernel) => title_of_text(g, function, kernel.name, nests),
                None => title_of_nests(g, function, nests),
            };
            let seconds = (kernels[i].1.seconds - target.machine.launch).max(0.0);
            Body {
                nests: nests.clone(),
                when: *when,
                root: Some(*root),
                kernel,
                title,
                seconds,
            }
        };
        let plan = |&i: &usize| TilePlan {
            workgroup: kernels[i].0.plan.clone(),
            stages: kernels[i].0.stage_plan.clone(),
            nests: vec![],
        };
        Launch {
            bodies: self.kernels.iter().map(body).collect(),
            level: self.level,
            cost: self.cost,
            plan: KernelPlan {
                bodies: self.kernels.iter().map(plan).collect(),
                launch: LaunchPlan::default(),
            },
        }
    }
}

/// What a fused launch loses to lower occupancy: on a GPU the body with the most registers limits
/// all bodies.
fn crowding(
    g: &Graph,
    share: &Share,
    kernels: &[(Draft, Cost)],
    new: usize,
    target: &Target,
) -> Amounts {
    if target.machine.kind == MachineKind::Cpu {
        return Amounts::default();
    }
    let beside = |i: usize| occupancy::resident_when_merged(g, &kernels[i].0.nests, target);
    let of_launch = share.kernels.iter().map(|&i| beside(i)).min().unwrap_or(1);
    let of_new = beside(new);
    let (own, crowded, cost) = match of_launch < of_new {
        true => (of_new, of_launch, &kernels[new].1),
        false => (of_launch, of_new, &share.cost),
    };
    behind_launch(cost, target) * (own as f64 / crowded as f64 - 1.0)
}

/// What a launch consists of, without the launch itself.
fn behind_launch(cost: &Cost, target: &Target) -> Amounts {
    let all = cost.features.decisive(&target.machine.coefficients());
    all + Feature::Launch.times(-1.0)
}

/// Whether the buffers of these kernels fit the machine's binding limit.
fn fit_bindings<'a>(g: &Graph, drafts: impl Iterator<Item = &'a Draft>, target: &Target) -> bool {
    if target.machine.most_bindings == usize::MAX {
        return true;
    }
    let nests: Vec<Id> = drafts
        .flat_map(|draft| draft.nests.iter().copied())
        .collect();
    let buffers = g
        .toposort(&nests)
        .into_iter()
        .filter(|&n| g[n].op == Op::Param)
        .count();
    buffers <= target.machine.most_bindings
}

/// Merges kernels of one level into launches where that is cheaper; returns
/// launches in level order.
///
/// `reused` kernels come last in a launch, since no other body waits for them: last instead of
/// first on an H100, DeepSeek-V2-Lite makes 939 instead of 931 tok/s, GLM-4.7-Flash 568 instead of
/// 565, Qwen3-30B-A3B 493 instead of 495 (docs/experiments/115).
pub fn merge(
    g: &Graph,
    context: FusionContext,
    kernels: &[(Draft, Cost)],
    level: &[usize],
    reused: impl Fn(Id) -> bool,
    decider: &mut Decider,
) -> Vec<Share> {
    let target = context.target;
    let mut out: Vec<Share> = Vec::new();
    let alone = |i: usize| kernels[i].0.when.exclusive || kernels[i].0.call.is_some();
    let mut order: Vec<usize> = (0..kernels.len()).collect();
    order.sort_by_key(|&i| reused(kernels[i].0.root));
    for i in order {
        let (k, cost) = &kernels[i];
        let fits = |s: &Share| {
            let shares = s.level == level[i] && !alone(i) && !s.kernels.iter().any(|&k| alone(k));
            shares
                && fit_bindings(
                    g,
                    s.kernels.iter().chain([&i]).map(|&k| &kernels[k].0),
                    target,
                )
        };
        let mate = out.iter_mut().find(|s| target.merge && fits(s));
        if let Some(mate) = mate {
            let apart = mate.cost.seconds + cost.seconds;
            let by = target.machine.coefficients();
            let features = Features {
                fixed: mate.cost.features.decisive(&by)
                    + behind_launch(cost, target)
                    + crowding(g, mate, kernels, i, target),
                ..Features::default()
            };
            let together = features.seconds(&by);
            if decider.choose(LAUNCH_FUSION.at(context.sites[&k.root].clone(), [apart, together]))
                == 1
            {
                mate.kernels.push(i);
                mate.cost.seconds = together;
                mate.cost.features = features;
                mate.cost.stages = mate.cost.stages.max(cost.stages);
                mate.cost.estimate.weight_bytes += cost.estimate.weight_bytes;
                mate.cost.estimate.other_bytes += cost.estimate.other_bytes;
                mate.cost.estimate.operations += cost.estimate.operations;
                continue;
            }
        }
        out.push(Share {
            kernels: vec![i],
            level: level[i],
            cost: *cost,
        });
    }
    out.sort_by_key(|s| s.level);
    out
}

/// Recuts the kernels of a launch that exceeds one wave, each for a share of the wave in proportion
/// to its weight bytes. Updates `max_workgroups` of these kernels.
pub fn in_one_round(
    g: &mut Graph,
    share: &Share,
    kernels: &mut [(Draft, Cost)],
    max_workgroups: &mut [i64],
    recut: &Recut,
) {
    let resident = occupancy::resident_workgroups(recut.target());
    let total = share
        .kernels
        .iter()
        .map(|&i| workgroups(g, &kernels[i].0.nests))
        .fold(0, i64::saturating_add);
    if share.kernels.len() == 1 || total <= resident {
        return;
    }
    let all: f64 = share
        .kernels
        .iter()
        .map(|&i| kernels[i].1.estimate.weight_bytes)
        .sum();
    for &i in &share.kernels {
        let own = kernels[i].1.estimate.weight_bytes;
        let part = ((resident as f64 * own / all) as i64).max(1);
        if own > 0.0
            && let Some(new) = recut.cut(
                g,
                kernels[i].0.root,
                KernelShape {
                    max_workgroups: part,
                    ..KernelShape::default()
                },
            )
            && workgroups(g, &new.0.nests) < workgroups(g, &kernels[i].0.nests)
        {
            (kernels[i], max_workgroups[i]) = (new, part);
        }
    }
}
