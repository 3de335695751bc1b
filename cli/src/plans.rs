//! Plans of kernels that a tuner tries.

use crate::failure::Result;
use crate::flags::Common;
use crate::measure::Work;
use crate::model::Model;
use gristmill_compiler::{Decision, Listed, compile};
use gristmill_llm::arch::Functions;
use gristmill_llm::engine::{CacheShape, Most, cache_rows, classes, depths, plan_options};
use gristmill_uop::target::Target;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Kernels whose plans are tried: the heaviest of a step, by the model of costs. As many formats and shapes of weights.
const KERNELS: usize = 3;
/// Plans of each that are tried: shapes of its workgroups, ways to map the nest that writes what it computes, places of what is fused into it, layouts.
const TRIED: usize = 2;
/// Plans of a GPU's launch that are tried: nearly all, since the price tells few of them apart.
const LAUNCHES: usize = 8;

/// A kernel's decision on its workgroups, with those on its last nest, its stages and its launch, and what it weighs in a step.
struct Weighed {
    decisions: Vec<Decision>,
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
    let most = Most::of(&settings, context, described.as_ref(), target);
    let rows = cache_rows(context, most.long);
    let (mut functions, mut tried) = (Functions::new(), Vec::new());
    for class in classes(most, &depths(&settings, rows, target), None) {
        if (if class.tokens == 1 { work.tokens } else { work.prompt }) == 0 {
            continue;
        }
        let plan = described.plan(
            &plan_options(class, CacheShape { rows, pages: None, chunk: most.long, scalar: settings.cache }, target),
            &mut functions,
        );
        let (mut all, mut weights) = (Vec::new(), BTreeMap::new());
        for function in plan.functions() {
            let calls = plan.calls.iter().filter(|c| Arc::ptr_eq(&c.function, function)).count();
            let decisions = compile(function, target, None, &mut Listed).decisions;
            for layout in decisions.iter().filter(|d| d.kind == "layout" && d.options.len() > 1) {
                let (of, seconds) = weights.entry(layout.key()).or_insert((layout.clone(), 0.0));
                *seconds += of.options[of.chosen].seconds * calls as f64;
            }
            all.extend(weighed(&decisions, calls));
        }
        all.extend(weights.into_values().map(|(layout, seconds)| Weighed { decisions: vec![layout], seconds }));
        all.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        for layouts in [false, true] {
            let of_kind = |w: &&Weighed| (w.decisions[0].kind == "layout") == layouts;
            let heaviest = all.iter().filter(of_kind).take(KERNELS);
            tried.extend(heaviest.flat_map(|w| &w.decisions).flat_map(others));
        }
    }
    // A layout serves steps of every kind.
    let mut seen = HashSet::new();
    tried.retain(|plan| seen.insert(plan.clone()));
    Ok(tried)
}

/// What is decided of each kernel of a function that is called so many times a step.
fn weighed(decisions: &[Decision], calls: usize) -> impl Iterator<Item = Weighed> {
    let of = |kind: &'static str| decisions.iter().filter(move |d| d.kind == kind);
    of("workgroup").filter(|d| d.options.len() > 1).map(move |shape| {
        // Sites of nests and launches are the kernel's without its dims, and a launch has the kernels that run beside it too.
        let kernel = shape.site.rsplit_once(" [").map_or("", |site| site.0);
        let nest = of("nest").rfind(|d| d.site.rsplit_once(" nest ").is_some_and(|site| site.0 == kernel));
        let stages = of("stages").find(|d| d.site == shape.site);
        let launch = of("launch").find(|d| d.site.split(" beside ").next() == Some(kernel));
        let decisions = [Some(shape), nest, stages, launch].into_iter().flatten().cloned().collect();
        Weighed { seconds: shape.options[shape.chosen].seconds * calls as f64, decisions }
    })
}

/// The cheapest plans besides the chosen one, the first of equals.
fn others(decision: &Decision) -> Vec<(String, String)> {
    let mut options: Vec<_> = decision.options.iter().enumerate().filter(|o| o.0 != decision.chosen).collect();
    options.sort_by(|a, b| a.1.seconds.total_cmp(&b.1.seconds));
    let tried = if decision.kind == "launch" { LAUNCHES } else { TRIED };
    options.into_iter().take(tried).map(|o| (decision.key(), o.1.plan.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        common: Common,
    }

    #[test]
    fn every_kind_of_plan_is_tried() {
        let (Ok(model), Flags { common }) = (Model::open(None), Flags::parse_from(["tune"])) else { panic!("no demo") };
        let work = Work { prompt: 0, tokens: 2, times: 1 };
        for (target, launches) in [(Target::named("h200"), true), (Target::cpu("avx512vnni", 16, 2), false)] {
            let Ok(tried) = worth_trying(&model, &common, &target, 8, work) else { panic!("no plans") };
            let count = |kind: &str| tried.iter().filter(|(key, _)| key.starts_with(&format!("{kind} "))).count();
            let counts = ["workgroup", "nest", "layout", "stages", "launch"].map(count);
            assert!(counts[..3].iter().all(|n| (1..=TRIED * KERNELS).contains(n)), "{counts:?}");
            assert_eq!(counts[4] > TRIED * KERNELS, launches, "{counts:?}");
            assert!(tried.iter().all(|(_, plan)| gristmill_compiler::check_plan(plan).is_ok()), "{tried:?}");
        }
    }
}
