//! Plans of kernels that a tuner tries.

use crate::beam::Question;
use crate::failure::Result;
use crate::flags::Common;
use crate::measure::Work;
use crate::model::Model;
use gristmill_compiler::decompose::product::Form;
use gristmill_compiler::{Decision, Listed, compile};
use gristmill_llm::arch::{Functions, Logits, Plan};
use gristmill_llm::engine::{CacheShape, Class, Most, cache_rows, classes, depths, plan_options};
use gristmill_uop::target::Target;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

/// A plan, and the decision that it answers.
pub type Answer = (String, String);

/// The part of a step, by the model of costs, that is worth a question: what takes less can gain no more.
const HOT: f64 = 0.02;

/// How many answers to a decision of that kind are tried, the cheapest by price. Of a GPU's launches nearly all, since the price tells few of them apart; none of what has no text to keep.
fn tried(kind: &str) -> usize {
    match kind {
        "workgroup" | "nest" | "stages" | "layout" | "product" | "scatter" => 2,
        "attention" => 4,
        "launch" => 8,
        _ => 0,
    }
}

/// A decision, the others on the same kernel behind it, and what it weighs in a step.
struct Weighed {
    decisions: Vec<Decision>,
    seconds: f64,
}

/// Questions about what is hot in the steps that are measured, the heaviest first: the decisions on kernels, on forms of products, attentions and sums that are scattered, on layouts of weights.
pub fn questions(
    model: &Model,
    common: &Common,
    target: &Target,
    context: usize,
    work: Work,
) -> Result<Vec<Question<Answer>>> {
    let described = model.describe()?;
    let settings = common.settings(Some(context));
    let most = Most::of(&settings, context, described.as_ref(), target);
    let rows = cache_rows(context, most.long);
    let cache = CacheShape { rows, pages: None, chunk: most.long, scalar: settings.cache };
    let (mut functions, mut hot) = (Functions::new(), Vec::new());
    for class in measured(&classes(most, &depths(&settings, rows, target), None), most, work) {
        hot.extend(of_step(&described.plan(&plan_options(class, cache, target), &mut functions), target));
    }
    hot.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    // A layout serves steps of every kind.
    let mut seen = HashSet::new();
    let decisions = hot.iter().flat_map(|w| &w.decisions).filter(|d| seen.insert(d.key()));
    Ok(decisions.map(others).filter(|answers| !answers.is_empty()).collect())
}

/// The classes of the steps that are measured: of one token at the beginning, and of a prompt as it is cut.
fn measured(classes: &[Class], most: Most, work: Work) -> BTreeSet<Class> {
    let steps = [work.tokens.min(1), work.prompt.min(most.long), work.prompt % most.long];
    let class = |n: usize| classes.iter().find(|c| c.logits == Logits::Last && c.tokens >= n).copied();
    steps.into_iter().filter(|&n| n > 0).filter_map(class).collect()
}

/// What is decided in a step of what takes a part of it that counts, each with that part.
fn of_step(plan: &Plan, target: &Target) -> Vec<Weighed> {
    let (mut all, mut layouts, mut step) = (Vec::new(), BTreeMap::new(), 0.0);
    for function in plan.functions() {
        let calls = plan.calls.iter().filter(|c| Arc::ptr_eq(&c.function, function)).count() as f64;
        let compiled = compile(function, target, None, &mut Listed);
        step += compiled.seconds * calls;
        for layout in compiled.decisions.iter().filter(|d| d.kind == "layout") {
            let (of, seconds) = layouts.entry(layout.key()).or_insert((layout.clone(), 0.0));
            *seconds += of.options[of.chosen].seconds * calls;
        }
        all.extend(of_function(&compiled.decisions, calls));
    }
    all.extend(layouts.into_values().map(|(layout, seconds)| Weighed { decisions: vec![layout], seconds }));
    let part = |w: Weighed| Weighed { seconds: w.seconds / step, ..w };
    all.into_iter().map(part).filter(|w| w.seconds >= HOT).collect()
}

/// What is decided in a function that is called so many times a step, kernel by kernel, and of the forms that kernels are made of.
fn of_function(decisions: &[Decision], calls: f64) -> Vec<Weighed> {
    let of = |kind: &'static str| decisions.iter().filter(move |d| d.kind == kind);
    let kernel = |shape: &Decision| {
        // Sites of nests and launches are the kernel's without its dims, and a launch has the kernels that run beside it too.
        let kernel = shape.site.rsplit_once(" [").map_or("", |site| site.0);
        let nest = of("nest").rfind(|d| d.site.rsplit_once(" nest ").is_some_and(|site| site.0 == kernel));
        let stages = of("stages").find(|d| d.site == shape.site);
        let launch = of("launch").find(|d| d.site.split(" beside ").next() == Some(kernel));
        let decisions = [Some(shape), nest, stages, launch].into_iter().flatten().cloned().collect();
        Weighed { seconds: shape.options[shape.chosen].seconds * calls, decisions }
    };
    let form = |d: &Decision| Weighed { seconds: d.options[d.chosen].seconds * calls, decisions: vec![d.clone()] };
    let forms = ["product", "attention", "scatter"].into_iter().flat_map(of);
    of("workgroup").map(kernel).chain(forms.map(form)).collect()
}

/// The cheapest plans besides the chosen one, the first of equals.
fn others(decision: &Decision) -> Question<Answer> {
    let chosen = &decision.options[decision.chosen].plan;
    let mut options: Vec<_> =
        decision.options.iter().filter(|o| o.plan != *chosen && keeps_bits(&o.plan, chosen)).collect();
    options.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    options.into_iter().take(tried(decision.kind)).map(|o| (decision.key(), o.plan.clone())).collect()
}

/// Does a plan round no more than the one in its place? Only forms of products differ in that: the others proposed add in another order, or are more exact than the first.
fn keeps_bits(plan: &str, chosen: &str) -> bool {
    let bits = |plan: &str| plan.parse().map(Form::bits).ok();
    bits(plan).zip(bits(chosen)).is_none_or(|(plan, chosen)| plan >= chosen)
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

    /// Questions about a token of a model of real shape, and a prompt of so many.
    fn asked(target: &Target, prompt: usize) -> Vec<Question<Answer>> {
        let Flags { common } = Flags::parse_from(["tune"]);
        let Ok(model) = Model::open(Some("synth:youtu-llm-2b:q4_0")) else { panic!("no model") };
        let work = Work { prompt, tokens: 2, times: 1 };
        let Ok(asked) = questions(&model, &common, target, 64, work) else { panic!("no plans") };
        asked
    }

    /// Is that answer to a decision of this kind?
    fn is_of(answer: &Answer, kind: &str) -> bool {
        answer.0.split(' ').next() == Some(kind)
    }

    #[test]
    fn every_kind_of_plan_is_tried() {
        for (target, launches) in [(Target::named("h200"), true), (Target::cpu("avx512vnni", 16, 2), false)] {
            let asked = asked(&target, 0);
            let count = |kind: &str| asked.iter().filter(|q| is_of(&q[0], kind)).count();
            let counts = ["workgroup", "nest", "layout", "stages", "attention", "product"].map(count);
            assert!(counts.iter().all(|&n| n > 0), "{counts:?}");
            assert_eq!(count("launch") > 0, launches);
            for question in &asked {
                let most = question[0].0.split(' ').next().map_or(0, tried);
                assert!(question.len() <= most && question.iter().all(|a| a.0 == question[0].0), "{question:?}");
            }
            for (key, plan) in asked.iter().flatten() {
                assert_eq!(gristmill_compiler::check_plan(plan), Ok(()), "{key}: {plan}");
            }
        }
    }

    #[test]
    fn no_form_rounds_more_than_the_one_in_its_place() {
        // Long prompts' kernels of an H200 multiply halves: whole numbers, which keep less, are no answer; floats are.
        let asked = asked(&Target::named("h200"), 64);
        let products: Vec<&str> =
            asked.iter().flatten().filter(|a| is_of(a, "product")).map(|a| a.1.as_str()).collect();
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
        let asked = asked(&Target::cpu("avx512vnni", 16, 2), 0);
        let count = |words: &str| asked.iter().filter(|q| q[0].0.starts_with(words)).count();
        let [head, embedding, layers] =
            ["head", "embed", "dense"].map(|of| count(&format!("workgroup deepseek2.{of}")));
        assert!(head == 1 && embedding == 0 && layers > 2, "{head} {embedding} {layers}");
    }
}
