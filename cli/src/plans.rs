//! Kernel plans that the autotuner tries.

use crate::beam::Question;
use gristmill_backend::tuning::Plans;
use gristmill_compiler::decision::{DEFER_NORM_SCALE, LAYOUT, Pair};
use gristmill_compiler::decompose::matmul_variant::MatmulVariant;
use gristmill_compiler::{Compiled, Decision, Listed, compile};
use gristmill_llm::arch::Plan;
use gristmill_uop::target::Target;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Plans by decision key: one decision, or the same decision of similar functions.
pub type Answer = Plans;

/// Subject of a stage of questions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum About {
    /// Fusion, materialisation and matmul variants of a function, from which its kernels follow.
    Functions,
    /// Schedule of each kernel.
    Kernels,
    /// Weight layouts; each one tried reloads the weights.
    Layouts,
}

/// Minimum modelled share of a step for a decision to be tried, which bounds its possible gain.
const HOT: f64 = 0.02;

/// Maximum modelled loss of a fusion or merge that is tried, as a share of a step. Buffers that
/// cost 0.3 to 1.9 us more by the model gained up to 1.0 us of 64 (docs/experiments/121).
const LIKELY: f64 = 0.02;

/// Number of candidates of a decision kind that are tried, the cheapest by the cost model: nearly
/// all GPU launches, which have similar costs, and none of kinds without a textual plan.
fn tried(kind: &str) -> usize {
    match kind {
        "workgroup" | "nest" | "stages" | LAYOUT | "product" | "scatter" => 2,
        "attention" => 4,
        "launch" => 8,
        kind if Pair::ALL.iter().any(|pair| pair.kind == kind) => 1,
        _ => 0,
    }
}

/// Decisions on one kernel, with their weight in a step.
struct Weighed {
    /// The first decision, then others that depend on it.
    decisions: Vec<Decision>,
    /// Modelled seconds per step.
    seconds: f64,
    /// Modelled seconds that the alternative loses; 0 if the cost model cannot compare.
    loss: f64,
}

/// Returns questions about the hot decisions of these steps, the most expensive first.
pub fn questions(about: About, steps: &[Plan], target: &Target) -> Vec<Question<Answer>> {
    let mut hot: Vec<Weighed> = steps
        .iter()
        .flat_map(|plan| of_step(plan, target))
        .collect();
    hot.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    // A layout is shared by all steps.
    let mut seen = HashSet::new();
    let decisions = hot
        .iter()
        .flat_map(|w| &w.decisions)
        .filter(|d| About::for_decision(d) == about && seen.insert(d.key()));
    together(decisions.map(|d| (alike(d), others(d))))
}

/// Returns the stored plans that do not belong to functions of these steps: plans of other models
/// or context depths, and weight layouts.
pub fn of_others(stored: Plans, steps: &[Plan]) -> Plans {
    let own: BTreeSet<String> = steps
        .iter()
        .flat_map(Plan::functions)
        .map(|function| function.full_name())
        .collect();
    let is_other = |key: &str| !own.iter().any(|name| Decision::is_of(key, name));
    stored
        .into_iter()
        .filter(|(key, _)| is_other(key))
        .collect()
}

impl About {
    fn for_decision(decision: &Decision) -> About {
        match decision.kind {
            LAYOUT => About::Layouts,
            "workgroup" | "nest" | "stages" | "launch" => About::Kernels,
            _ => About::Functions,
        }
    }
}

/// Splits a decision key into kind, full function name (`None` for a layout) and site.
fn parts(key: &str) -> (&str, Option<&str>, &str) {
    let (kind, site) = key.split_once(' ').unwrap_or((key, ""));
    match site.split_once(' ') {
        Some((function, place)) if kind != LAYOUT => (kind, Some(function), place),
        None if kind != LAYOUT => (kind, Some(site), ""),
        _ => (kind, None, site),
    }
}

/// The key of a decision without its function, equal for similar functions.
fn alike(decision: &Decision) -> String {
    let key = decision.key();
    let (kind, _, place) = parts(&key);
    format!("{kind} {place}")
}

/// Formats an answer: `place Reduce [1, 64] in glm.dense.one, glm.moe.one: fuse`.
pub fn shown(answer: &Answer) -> String {
    let functions = answer
        .keys()
        .filter_map(|key| parts(key).1)
        .map(|of| of.split('~').next().unwrap_or(of));
    let functions = functions.collect::<Vec<_>>().join(", ");
    let Some((key, plan)) = answer.first_key_value() else {
        return String::new();
    };
    let (kind, _, place) = parts(key);
    let place = [place, &functions]
        .into_iter()
        .filter(|words| !words.is_empty())
        .collect::<Vec<_>>()
        .join(" in ");
    // The plan need not repeat its kind.
    let plan = plan
        .strip_prefix(kind)
        .and_then(|plan| plan.strip_prefix(": "))
        .unwrap_or(plan);
    format!("{kind} {place}: {plan}")
}

/// Merges questions of equal names and answers into one about all their decisions; drops empty
/// ones.
fn together(all: impl Iterator<Item = (String, Vec<(String, String)>)>) -> Vec<Question<Answer>> {
    let (mut questions, mut known): (Vec<Question<Answer>>, HashMap<_, usize>) = Default::default();
    for (name, answers) in all.filter(|(_, answers)| !answers.is_empty()) {
        let plans: Vec<String> = answers.iter().map(|a| a.1.clone()).collect();
        let at = *known.entry((name, plans)).or_insert(questions.len());
        match questions.get_mut(at) {
            Some(question) => question
                .iter_mut()
                .zip(answers)
                .for_each(|(answer, more)| answer.extend([more])),
            None => questions.push(
                answers
                    .into_iter()
                    .map(|answer| Answer::from([answer]))
                    .collect(),
            ),
        }
    }
    questions
}

/// Every decision of a step's functions, with all options.
pub fn decisions(plan: &Plan, target: &Target) -> Vec<Decision> {
    let compiled = |function| compile(function, target, None, &mut Listed);
    plan.functions()
        .into_iter()
        .flat_map(|function| compiled(function).decisions)
        .collect()
}

/// Decisions of a step above [`HOT`] and below [`LIKELY`], with seconds as shares of the step.
fn of_step(plan: &Plan, target: &Target) -> Vec<Weighed> {
    let (mut all, mut layouts, mut step) = (Vec::new(), BTreeMap::new(), 0.0);
    for function in plan.functions() {
        let calls = plan
            .calls
            .iter()
            .filter(|c| Arc::ptr_eq(&c.function, function))
            .count() as f64;
        let compiled = compile(function, target, None, &mut Listed);
        step += compiled.seconds * calls;
        for layout in compiled.decisions.iter().filter(|d| d.kind == LAYOUT) {
            let (of, seconds) = layouts.entry(layout.key()).or_insert((layout.clone(), 0.0));
            *seconds += of.options[of.chosen].seconds * calls;
        }
        all.extend(of_function(&compiled, calls));
    }
    all.extend(layouts.into_values().map(|(layout, seconds)| Weighed {
        decisions: vec![layout],
        seconds,
        loss: 0.0,
    }));
    all.retain(|w| w.seconds >= HOT * step && w.loss <= LIKELY * step);
    all.into_iter()
        .map(|w| Weighed {
            seconds: w.seconds / step,
            ..w
        })
        .collect()
}

/// Decisions of a function that a step calls `calls` times, by kernel, and those on its variants.
fn of_function(compiled: &Compiled, calls: f64) -> Vec<Weighed> {
    let of = |kind: &'static str| compiled.decisions.iter().filter(move |d| d.kind == kind);
    let kernel = |shape: &Decision| {
        // Sites of nests and launches lack the kernel's dims; a launch also names merged kernels.
        let kernel = shape.site.rsplit_once(" [").map_or("", |site| site.0);
        let nest = of("nest").rfind(|d| {
            d.site
                .rsplit_once(" nest ")
                .is_some_and(|site| site.0 == kernel)
        });
        let stages = of("stages").find(|d| d.site == shape.site);
        let launch = of("launch").find(|d| d.site.split(" beside ").next() == Some(kernel));
        let decisions = [Some(shape), nest, stages, launch]
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        Weighed {
            seconds: shape.options[shape.chosen].seconds * calls,
            decisions,
            loss: 0.0,
        }
    };
    let alone = |d: &Decision, loss: f64| Weighed {
        seconds: d.options[d.chosen].seconds * calls,
        decisions: vec![d.clone()],
        loss: loss * calls,
    };
    let forms = ["product", "attention", "scatter"]
        .into_iter()
        .flat_map(of)
        .map(|d| alone(d, 0.0));
    let pairs = Pair::ALL
        .iter()
        .flat_map(|pair| of(pair.kind))
        .filter(|d| d.asked);
    let of_pair = |d: &Decision| {
        let pair = alone(
            d,
            d.options[1 - d.chosen].seconds - d.options[d.chosen].seconds,
        );
        // The cost of this decision is not that of a kernel.
        let seconds = if d.kind == DEFER_NORM_SCALE.kind {
            compiled.seconds * calls
        } else {
            pair.seconds
        };
        Weighed { seconds, ..pair }
    };
    let pairs = pairs.map(of_pair);
    of("workgroup")
        .map(kernel)
        .chain(forms)
        .chain(pairs)
        .collect()
}

/// The cheapest plans other than the chosen one, with the decision's key.
fn others(decision: &Decision) -> Vec<(String, String)> {
    let chosen = &decision.options[decision.chosen].plan;
    let mut options: Vec<_> = decision
        .options
        .iter()
        .filter(|o| o.plan != *chosen && keeps_bits(&o.plan, chosen))
        .collect();
    options.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    options
        .into_iter()
        .take(tried(decision.kind))
        .map(|o| (decision.key(), o.plan.clone()))
        .collect()
}

/// Whether a plan is at least as precise as the chosen one; only matmul variants differ in
/// precision.
fn keeps_bits(plan: &str, chosen: &str) -> bool {
    let bits = |plan: &str| plan.parse().map(MatmulVariant::bits).ok();
    bits(plan)
        .zip(bits(chosen))
        .is_none_or(|(plan, chosen)| plan >= chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use gristmill_llm::arch::{CacheType, Pools};
    use gristmill_llm::arch::{Functions, Logits};
    use gristmill_llm::engine::{CacheShape, GraphKey, plan_options};

    /// Plans of a decode step and of a prefill chunk of `prompt` tokens, for a model of real shape.
    fn steps(target: &Target, prompt: usize) -> Vec<Plan> {
        let Ok(model) = Model::open(Some("synth:youtu-llm-2b:q4_0")) else {
            panic!("no model")
        };
        let Ok(model) = model.describe() else {
            panic!("no description")
        };
        let cache = CacheShape {
            rows: 2048,
            pools: Pools::from_pages(32),
            cache_type: CacheType::F16,
        };
        let graph = |tokens| GraphKey {
            tokens,
            batch: false,
            others: 0,
            logits: Logits::Last,
            depth: 2048,
            contiguous: true,
            draft: None,
        };
        let options = [1, prompt]
            .into_iter()
            .filter(|&n| n > 0)
            .map(|n| plan_options(graph(n), cache, target));
        let mut functions = Functions::new();
        options.map(|of| model.plan(&of, &mut functions)).collect()
    }
    fn asked(about: About, target: &Target, prompt: usize) -> Vec<Question<Answer>> {
        questions(about, &steps(target, prompt), target)
    }

    /// Whether all keys of an answer have this kind.
    fn is_of(answer: &Answer, kind: &str) -> bool {
        answer.keys().all(|key| key.split(' ').next() == Some(kind))
    }

    #[test]
    fn every_kind_of_plan_is_tried() {
        for (target, is_gpu) in [
            (Target::named("h200"), true),
            (Target::cpu("avx512vnni", 16, 2), false),
        ] {
            let abouts = [About::Functions, About::Kernels, About::Layouts];
            let [functions, kernels, layouts] = abouts.map(|about| asked(about, &target, 0));
            let count = |asked: &[Question<Answer>], kind: &str| {
                asked.iter().filter(|q| is_of(&q[0], kind)).count()
            };
            let of_functions = ["attention", "product", "place", DEFER_NORM_SCALE.kind]
                .map(|kind| count(&functions, kind));
            let of_kernels = ["workgroup", "nest", "stages"].map(|kind| count(&kernels, kind));
            assert!(
                !layouts.is_empty() && layouts.iter().all(|q| is_of(&q[0], LAYOUT)),
                "{layouts:?}"
            );
            assert!(
                of_functions.iter().chain(&of_kernels).all(|&n| n > 0),
                "{of_functions:?} {of_kernels:?}"
            );
            assert_eq!(
                (
                    count(&functions, "shapes") > 0,
                    count(&kernels, "launch") > 0
                ),
                (is_gpu, is_gpu)
            );
            for question in functions.iter().chain(&kernels).chain(&layouts) {
                let most = question[0]
                    .keys()
                    .next()
                    .and_then(|key| key.split(' ').next())
                    .map_or(0, tried);
                assert!(
                    question.len() <= most
                        && question.iter().all(|a| a.keys().eq(question[0].keys())),
                    "{question:?}"
                );
            }
            for (key, plan) in functions
                .iter()
                .chain(&kernels)
                .chain(&layouts)
                .flatten()
                .flatten()
            {
                assert_eq!(
                    gristmill_compiler::check_plan(plan),
                    Ok(()),
                    "{key}: {plan}"
                );
            }
        }
    }

    #[test]
    fn a_model_that_is_tuned_forgets_no_other_models_plans() {
        let target = Target::named("h200");
        let own = asked(About::Functions, &target, 0);
        let own = own
            .iter()
            .flatten()
            .flatten()
            .map(|(key, plan)| (key.clone(), plan.clone()));
        let other = (
            "place deepseek2.moe.one~0badc0de Reduce [1, 64]".to_owned(),
            "place: fuse".to_owned(),
        );
        let kept = of_others(own.chain([other.clone()]).collect(), &steps(&target, 0));
        assert_eq!(kept, Plans::from([other]));
    }

    #[test]
    fn functions_that_are_alike_are_asked_about_together() {
        let of = |function: &str, plan: &str| {
            let decision = Decision::new("place", format!("{function} Reduce [1, 64] #2"), vec![]);
            (alike(&decision), vec![(decision.key(), plan.to_owned())])
        };
        let all = [
            of("f.one", "place: fuse"),
            of("f.window.one", "place: fuse"),
            of("f.head", "place: buffer"),
        ];
        let questions = together(all.into_iter());
        let keys: Vec<Vec<&str>> = questions
            .iter()
            .map(|q| q[0].keys().map(String::as_str).collect())
            .collect();
        let both = vec![
            "place f.one Reduce [1, 64] #2",
            "place f.window.one Reduce [1, 64] #2",
        ];
        assert_eq!(keys, [both, vec!["place f.head Reduce [1, 64] #2"]]);
        assert_eq!(
            shown(&questions[0][0]),
            "place Reduce [1, 64] #2 in f.one, f.window.one: fuse"
        );
    }

    #[test]
    fn answers_are_shown_without_what_tells_models_apart() {
        for (key, plan, text) in [
            (
                "place f.one~0badc0de Reduce [1, 64]",
                "place: fuse",
                "place Reduce [1, 64] in f.one: fuse",
            ),
            (
                "shapes f.one~0badc0de",
                "shapes: smaller",
                "shapes f.one: smaller",
            ),
            (
                "layout q4_0 [8, 32]",
                "layout: rows 32",
                "layout q4_0 [8, 32]: rows 32",
            ),
            (
                "nest f.one~0badc0de x nest 1",
                "serial:",
                "nest x nest 1 in f.one: serial:",
            ),
        ] {
            assert_eq!(
                shown(&Answer::from([(key.to_owned(), plan.to_owned())])),
                text
            );
        }
    }

    #[test]
    fn no_form_rounds_more_than_the_one_in_its_place() {
        // Long prefill chunks use f16 MMA on an H200: int8 is less precise, f32 is not.
        let asked = asked(About::Functions, &Target::named("h200"), 64);
        let products: Vec<&str> = asked
            .iter()
            .flatten()
            .filter(|a| is_of(a, "product"))
            .flatten()
            .map(|a| a.1.as_str())
            .collect();
        assert!(
            !products.is_empty() && !products.contains(&"product: integers"),
            "{products:?}"
        );
        for (plan, chosen, keeps) in [
            ("product: integers", "product: fragments", false),
            ("product: tiles", "product: staged", false),
            ("product: floats", "product: integers", true),
            ("product: unpacked", "product: fragments", true),
            ("launch: workgroups 2", "launch: workgroups 1", true),
        ] {
            assert_eq!(keeps_bits(plan, chosen), keeps, "{plan} for {chosen}");
        }
    }

    /// Hot decisions include the output head, a seventh of the weights that a token reads, and the
    /// layers, but not the embedding lookup.
    #[test]
    fn questions_are_about_what_is_hot() {
        let asked = asked(About::Kernels, &Target::cpu("avx512vnni", 16, 2), 0);
        let starts = |answer: &Answer, words: &str| answer.keys().all(|key| key.starts_with(words));
        let count = |words: &str| asked.iter().filter(|q| starts(&q[0], words)).count();
        let [head, embedding, layers] =
            ["head", "embed", "dense"].map(|of| count(&format!("workgroup deepseek2.{of}")));
        assert!(
            head == 1 && embedding == 0 && layers > 2,
            "{head} {embedding} {layers}"
        );
    }
}
