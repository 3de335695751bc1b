//! Plans of kernels that a tuner tries.

use crate::failure::Result;
use crate::flags::Common;
use crate::measure::Work;
use crate::model::Model;
use gristmill_compiler::{Decision, Listed, compile};
use gristmill_llm::arch::Functions;
use gristmill_llm::engine::{CacheShape, cache_rows, classes, depths, plan_options};
use gristmill_uop::target::Target;
use std::sync::Arc;

/// Kernels whose plans are tried: the heaviest of a step, by the model of costs.
const KERNELS: usize = 3;
/// Plans of each that are tried: shapes of its workgroups, and ways to map the nest that writes what it computes.
const TRIED: usize = 2;

/// A decision with what it weighs in a step, and how the same kernel's last nest is mapped.
struct Weighed {
    decision: Decision,
    nest: Option<Decision>,
    seconds: f64,
}

/// Other plans of the heaviest kernels in each step that is measured, by the decisions that they answer.
pub fn worth_trying(
    model: &Model,
    common: &Common,
    target: &Target,
    context: usize,
    work: Work,
) -> Result<Vec<(String, String)>> {
    let described = model.describe()?;
    let settings = common.settings(Some(context));
    let chunk = settings.chunk.clamp(1, context);
    let rows = cache_rows(context, chunk);
    let (mut functions, mut tried) = (Functions::new(), Vec::new());
    for class in classes(chunk, &depths(&settings, rows, target)) {
        if (if class.tokens == 1 { work.tokens } else { work.prompt }) == 0 {
            continue;
        }
        let plan = described.plan(
            &plan_options(class, CacheShape { rows, pages: None, scalar: settings.cache }, target),
            &mut functions,
        );
        let mut all = Vec::new();
        for function in plan.functions() {
            let calls = plan.calls.iter().filter(|c| Arc::ptr_eq(&c.function, function)).count();
            all.extend(weighed(compile(function, target, None, &mut Listed).decisions, calls));
        }
        all.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        for Weighed { decision, nest, .. } in all.into_iter().take(KERNELS) {
            tried.extend(others(&decision));
            tried.extend(nest.iter().flat_map(others));
        }
    }
    Ok(tried)
}

/// What workgroups compute, of a function that is called so many times a step.
fn weighed(decisions: Vec<Decision>, calls: usize) -> impl Iterator<Item = Weighed> {
    let (nests, others): (Vec<Decision>, Vec<Decision>) = decisions.into_iter().partition(|d| d.kind == "nest");
    let shapes = others.into_iter().filter(|d| d.kind == "workgroup" && d.options.len() > 1);
    shapes.map(move |decision| {
        // Sites of nests are the kernel's without its dims.
        let kernel = decision.site.rsplit_once(" [").map_or("", |site| site.0);
        let of_kernel = |d: &&Decision| d.site.rsplit_once(" nest ").is_some_and(|site| site.0 == kernel);
        let nest = nests.iter().rfind(of_kernel).cloned();
        Weighed { seconds: decision.options[decision.chosen].seconds * calls as f64, decision, nest }
    })
}

/// The cheapest plans besides the chosen one, the first of equals.
fn others(decision: &Decision) -> Vec<(String, String)> {
    let mut options: Vec<_> = decision.options.iter().enumerate().filter(|o| o.0 != decision.chosen).collect();
    options.sort_by(|a, b| a.1.seconds.total_cmp(&b.1.seconds));
    options.into_iter().take(TRIED).map(|o| (decision.key(), o.1.plan.clone())).collect()
}
