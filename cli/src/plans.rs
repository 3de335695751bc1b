//! Plans of kernels that a tuner tries.

use crate::beam::Question;
use gristmill_backend::tuning::Plans;
use gristmill_compiler::decision::{DEFER_NORM_SCALE, LAYOUT, Pair};
use gristmill_compiler::decompose::matmul_variant::MatmulVariant;
use gristmill_compiler::{Compiled, Decision, Listed, compile};
use gristmill_llm::arch::Plan;
use gristmill_uop::target::Target;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

/// Plans, by the decisions that they answer: one, or the same one of functions that are alike.
pub type Answer = Plans;

/// What questions are about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum About {
    /// What is computed where, and in which form: kernels follow from that.
    Functions,
    /// How each kernel computes it.
    Kernels,
    /// How weights lie, which are loaded again for each answer.
    Layouts,
}

/// The part of a step, by the model of costs, that is worth a question: what takes less can gain no more.
const HOT: f64 = 0.02;

/// The part of a step, by the model of costs, that what is fused or merged otherwise may lose and still be tried. Of gpt-oss's layers, 64 us on an H100, buffers that the price refuses by 0.3 to 1.9 us gained 0.4 to 1.0 (experiments, 121); what seems to lose more was not tried.
const LIKELY: f64 = 0.02;

/// How many answers to a decision of that kind are tried, the cheapest by price. Of a GPU's launches nearly all, since the price tells few of them apart; none of what has no text to keep.
fn tried(kind: &str) -> usize {
    match kind {
        "workgroup" | "nest" | "stages" | LAYOUT | "product" | "scatter" => 2,
        "attention" => 4,
        "launch" => 8,
        kind if Pair::ALL.iter().any(|pair| pair.kind == kind) => 1,
        _ => 0,
    }
}

/// A decision, the others on the same kernel behind it, the seconds of a step that it is about, and those that another answer loses by the model of costs: none where the price cannot tell.
struct Weighed {
    decisions: Vec<Decision>,
    seconds: f64,
    loss: f64,
}

/// Questions about what is hot in the steps of these plans, the heaviest first.
pub fn questions(about: About, steps: &[Plan], target: &Target) -> Vec<Question<Answer>> {
    let mut hot: Vec<Weighed> = steps.iter().flat_map(|plan| of_step(plan, target)).collect();
    hot.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    // A layout serves steps of every kind.
    let mut seen = HashSet::new();
    let decisions =
        hot.iter().flat_map(|w| &w.decisions).filter(|d| About::from_decision(d) == about && seen.insert(d.key()));
    together(decisions.map(|d| (alike(d), others(d))))
}

/// Of plans that were stored for a machine those of other functions than these steps': of other models, and of steps at other depths. How weights lie is no function's own.
pub fn of_others(stored: Plans, steps: &[Plan]) -> Plans {
    let own: BTreeSet<String> = steps.iter().flat_map(Plan::functions).map(|function| function.full_name()).collect();
    let is_other = |key: &str| !own.iter().any(|name| Decision::is_of(key, name));
    stored.into_iter().filter(|(key, _)| is_other(key)).collect()
}

impl About {
    fn from_decision(decision: &Decision) -> About {
        match decision.kind {
            LAYOUT => About::Layouts,
            "workgroup" | "nest" | "stages" | "launch" => About::Kernels,
            _ => About::Functions,
        }
    }
}

/// What a decision's key says: its kind, the full name of its function, which a layout has not, and where in it.
fn parts(key: &str) -> (&str, Option<&str>, &str) {
    let (kind, site) = key.split_once(' ').unwrap_or((key, ""));
    match site.split_once(' ') {
        Some((function, place)) if kind != LAYOUT => (kind, Some(function), place),
        None if kind != LAYOUT => (kind, Some(site), ""),
        _ => (kind, None, site),
    }
}

/// What decisions of functions that are alike have in common: all but the function.
fn alike(decision: &Decision) -> String {
    let key = decision.key();
    let (kind, _, place) = parts(&key);
    format!("{kind} {place}")
}

/// An answer for people: `place Reduce [1, 64] in glm.dense.one, glm.moe.one: fuse`.
pub fn shown(answer: &Answer) -> String {
    let functions = answer.keys().filter_map(|key| parts(key).1).map(|of| of.split('~').next().unwrap_or(of));
    let functions = functions.collect::<Vec<_>>().join(", ");
    let Some((key, plan)) = answer.first_key_value() else { return String::new() };
    let (kind, _, place) = parts(key);
    let place = [place, &functions].into_iter().filter(|words| !words.is_empty()).collect::<Vec<_>>().join(" in ");
    // Most plans begin with their kind.
    let plan = plan.strip_prefix(kind).and_then(|plan| plan.strip_prefix(": ")).unwrap_or(plan);
    format!("{kind} {place}: {plan}")
}

/// The questions that have answers; those of equal names with equal answers are one, about all of these decisions.
fn together(all: impl Iterator<Item = (String, Vec<(String, String)>)>) -> Vec<Question<Answer>> {
    let (mut questions, mut known): (Vec<Question<Answer>>, HashMap<_, usize>) = Default::default();
    for (name, answers) in all.filter(|(_, answers)| !answers.is_empty()) {
        let plans: Vec<String> = answers.iter().map(|a| a.1.clone()).collect();
        let at = *known.entry((name, plans)).or_insert(questions.len());
        match questions.get_mut(at) {
            Some(question) => question.iter_mut().zip(answers).for_each(|(answer, more)| answer.extend([more])),
            None => questions.push(answers.into_iter().map(|answer| Answer::from([answer])).collect()),
        }
    }
    questions
}

/// What is decided in a step of what takes a part of it that counts, each with that part.
fn of_step(plan: &Plan, target: &Target) -> Vec<Weighed> {
    let (mut all, mut layouts, mut step) = (Vec::new(), BTreeMap::new(), 0.0);
    for function in plan.functions() {
        let calls = plan.calls.iter().filter(|c| Arc::ptr_eq(&c.function, function)).count() as f64;
        let compiled = compile(function, target, None, &mut Listed);
        step += compiled.seconds * calls;
        for layout in compiled.decisions.iter().filter(|d| d.kind == LAYOUT) {
            let (of, seconds) = layouts.entry(layout.key()).or_insert((layout.clone(), 0.0));
            *seconds += of.options[of.chosen].seconds * calls;
        }
        all.extend(of_function(&compiled, calls));
    }
    all.extend(layouts.into_values().map(|(layout, seconds)| Weighed { decisions: vec![layout], seconds, loss: 0.0 }));
    all.retain(|w| w.seconds >= HOT * step && w.loss <= LIKELY * step);
    all.into_iter().map(|w| Weighed { seconds: w.seconds / step, ..w }).collect()
}

/// What is decided in a function that is called so many times a step, kernel by kernel, and of the forms that kernels are made of.
fn of_function(compiled: &Compiled, calls: f64) -> Vec<Weighed> {
    let of = |kind: &'static str| compiled.decisions.iter().filter(move |d| d.kind == kind);
    let kernel = |shape: &Decision| {
        // Sites of nests and launches are the kernel's without its dims, and a launch has the kernels that run beside it too.
        let kernel = shape.site.rsplit_once(" [").map_or("", |site| site.0);
        let nest = of("nest").rfind(|d| d.site.rsplit_once(" nest ").is_some_and(|site| site.0 == kernel));
        let stages = of("stages").find(|d| d.site == shape.site);
        let launch = of("launch").find(|d| d.site.split(" beside ").next() == Some(kernel));
        let decisions = [Some(shape), nest, stages, launch].into_iter().flatten().cloned().collect();
        Weighed { seconds: shape.options[shape.chosen].seconds * calls, decisions, loss: 0.0 }
    };
    let alone = |d: &Decision, loss: f64| Weighed {
        seconds: d.options[d.chosen].seconds * calls,
        decisions: vec![d.clone()],
        loss: loss * calls,
    };
    let forms = ["product", "attention", "scatter"].into_iter().flat_map(of).map(|d| alone(d, 0.0));
    let pairs = Pair::ALL.iter().flat_map(|pair| of(pair.kind)).filter(|d| d.asked);
    let of_pair = |d: &Decision| {
        let pair = alone(d, d.options[1 - d.chosen].seconds - d.options[d.chosen].seconds);
        // Its price is what products wait for, where others' are those of kernels.
        let seconds = if d.kind == DEFER_NORM_SCALE.kind { compiled.seconds * calls } else { pair.seconds };
        Weighed { seconds, ..pair }
    };
    let pairs = pairs.map(of_pair);
    of("workgroup").map(kernel).chain(forms).chain(pairs).collect()
}

/// The cheapest plans besides the chosen one, the first of equals, each with the decision's name.
fn others(decision: &Decision) -> Vec<(String, String)> {
    let chosen = &decision.options[decision.chosen].plan;
    let mut options: Vec<_> =
        decision.options.iter().filter(|o| o.plan != *chosen && keeps_bits(&o.plan, chosen)).collect();
    options.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    options.into_iter().take(tried(decision.kind)).map(|o| (decision.key(), o.plan.clone())).collect()
}

/// Does a plan round no more than the one in its place? Only forms of products differ in that: the others proposed add in another order, or are more exact than the first.
fn keeps_bits(plan: &str, chosen: &str) -> bool {
    let bits = |plan: &str| plan.parse().map(MatmulVariant::bits).ok();
    bits(plan).zip(bits(chosen)).is_none_or(|(plan, chosen)| plan >= chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use gristmill_llm::arch::Pools;
    use gristmill_llm::arch::{Functions, Logits};
    use gristmill_llm::engine::{CacheShape, GraphKey, plan_options};
    use gristmill_uop::Scalar;

    /// Plans of a token of a model of real shape, and of a prompt of so many.
    fn steps(target: &Target, prompt: usize) -> Vec<Plan> {
        let Ok(model) = Model::open(Some("synth:youtu-llm-2b:q4_0")) else { panic!("no model") };
        let Ok(model) = model.describe() else { panic!("no description") };
        let cache = CacheShape { rows: 2048, pools: Pools::from_pages(32), scalar: Scalar::F16 };
        let graph =
            |tokens| GraphKey { tokens, batch: false, others: 0, logits: Logits::Last, depth: 2048, contiguous: true };
        let options = [1, prompt].into_iter().filter(|&n| n > 0).map(|n| plan_options(graph(n), cache, target));
        let mut functions = Functions::new();
        options.map(|of| model.plan(&of, &mut functions)).collect()
    }
    fn asked(about: About, target: &Target, prompt: usize) -> Vec<Question<Answer>> {
        questions(about, &steps(target, prompt), target)
    }

    /// Is that answer to a decision of this kind?
    fn is_of(answer: &Answer, kind: &str) -> bool {
        answer.keys().all(|key| key.split(' ').next() == Some(kind))
    }

    #[test]
    fn every_kind_of_plan_is_tried() {
        for (target, is_gpu) in [(Target::named("h200"), true), (Target::cpu("avx512vnni", 16, 2), false)] {
            let abouts = [About::Functions, About::Kernels, About::Layouts];
            let [functions, kernels, layouts] = abouts.map(|about| asked(about, &target, 0));
            let count = |asked: &[Question<Answer>], kind: &str| asked.iter().filter(|q| is_of(&q[0], kind)).count();
            let of_functions =
                ["attention", "product", "place", DEFER_NORM_SCALE.kind].map(|kind| count(&functions, kind));
            let of_kernels = ["workgroup", "nest", "stages"].map(|kind| count(&kernels, kind));
            assert!(!layouts.is_empty() && layouts.iter().all(|q| is_of(&q[0], LAYOUT)), "{layouts:?}");
            assert!(of_functions.iter().chain(&of_kernels).all(|&n| n > 0), "{of_functions:?} {of_kernels:?}");
            assert_eq!((count(&functions, "shapes") > 0, count(&kernels, "launch") > 0), (is_gpu, is_gpu));
            for question in functions.iter().chain(&kernels).chain(&layouts) {
                let most = question[0].keys().next().and_then(|key| key.split(' ').next()).map_or(0, tried);
                assert!(
                    question.len() <= most && question.iter().all(|a| a.keys().eq(question[0].keys())),
                    "{question:?}"
                );
            }
            for (key, plan) in functions.iter().chain(&kernels).chain(&layouts).flatten().flatten() {
                assert_eq!(gristmill_compiler::check_plan(plan), Ok(()), "{key}: {plan}");
            }
        }
    }

    #[test]
    fn a_model_that_is_tuned_forgets_no_other_models_plans() {
        let target = Target::named("h200");
        let own = asked(About::Functions, &target, 0);
        let own = own.iter().flatten().flatten().map(|(key, plan)| (key.clone(), plan.clone()));
        let other = ("place deepseek2.moe.one~0badc0de Reduce [1, 64]".to_owned(), "place: fuse".to_owned());
        let kept = of_others(own.chain([other.clone()]).collect(), &steps(&target, 0));
        assert_eq!(kept, Plans::from([other]));
    }

    #[test]
    fn functions_that_are_alike_are_asked_about_together() {
        let of = |function: &str, plan: &str| {
            let decision = Decision::new("place", format!("{function} Reduce [1, 64] #2"), vec![]);
            (alike(&decision), vec![(decision.key(), plan.to_owned())])
        };
        let all = [of("f.one", "place: fuse"), of("f.window.one", "place: fuse"), of("f.head", "place: buffer")];
        let questions = together(all.into_iter());
        let keys: Vec<Vec<&str>> = questions.iter().map(|q| q[0].keys().map(String::as_str).collect()).collect();
        let both = vec!["place f.one Reduce [1, 64] #2", "place f.window.one Reduce [1, 64] #2"];
        assert_eq!(keys, [both, vec!["place f.head Reduce [1, 64] #2"]]);
        assert_eq!(shown(&questions[0][0]), "place Reduce [1, 64] #2 in f.one, f.window.one: fuse");
    }

    #[test]
    fn answers_are_shown_without_what_tells_models_apart() {
        for (key, plan, text) in [
            ("place f.one~0badc0de Reduce [1, 64]", "place: fuse", "place Reduce [1, 64] in f.one: fuse"),
            ("shapes f.one~0badc0de", "shapes: smaller", "shapes f.one: smaller"),
            ("layout q4_0 [8, 32]", "layout: rows 32", "layout q4_0 [8, 32]: rows 32"),
            ("nest f.one~0badc0de x nest 1", "serial:", "nest x nest 1 in f.one: serial:"),
        ] {
            assert_eq!(shown(&Answer::from([(key.to_owned(), plan.to_owned())])), text);
        }
    }

    #[test]
    fn no_form_rounds_more_than_the_one_in_its_place() {
        // Long prompts' kernels of an H200 multiply halves: whole numbers, which keep less, are no answer; floats are.
        let asked = asked(About::Functions, &Target::named("h200"), 64);
        let products: Vec<&str> =
            asked.iter().flatten().filter(|a| is_of(a, "product")).flatten().map(|a| a.1.as_str()).collect();
        assert!(!products.is_empty() && !products.contains(&"product: integers"), "{products:?}");
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

    /// What is asked about weighs enough that a gain could show: the matrix of the vocabulary, a seventh of what a token reads, and what layers have of it, but not a row of an embedding.
    #[test]
    fn questions_are_about_what_is_hot() {
        let asked = asked(About::Kernels, &Target::cpu("avx512vnni", 16, 2), 0);
        let starts = |answer: &Answer, words: &str| answer.keys().all(|key| key.starts_with(words));
        let count = |words: &str| asked.iter().filter(|q| starts(&q[0], words)).count();
        let [head, embedding, layers] =
            ["head", "embed", "dense"].map(|of| count(&format!("workgroup deepseek2.{of}")));
        assert!(head == 1 && embedding == 0 && layers > 2, "{head} {embedding} {layers}");
    }
}
