//! Measured times of kernels under alternative plans, as JSON lines.
//!
//! `tune --timings` writes them; `cargo xtask fit` fits the cost model's coefficients to them, and
//! a test compares the order in which the model and the measurements put the plans.

use crate::ab_bench::{KernelTiming, StepTimings};
use crate::plans::{self, Answer};
use gristmill_compiler::Decision;
use gristmill_llm::arch::Plan;
use gristmill_uop::features::{Amounts, Feature, Features};
use gristmill_uop::machine::Machine;
use gristmill_uop::target::Target;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Two plans of one decision, or of the same decision of similar functions.
#[derive(Serialize, Deserialize, Debug)]
pub struct Timing {
    /// Name of the machine description, such as `h200`.
    pub machine: String,
    /// Coefficients that follow from its description, in seconds per unit.
    pub facts: BTreeMap<String, f64>,
    pub model: String,
    /// Tokens of the step: 1 for decode.
    pub tokens: usize,
    /// Context depth of the step.
    pub depth: usize,
    /// Kind of the decision.
    pub kind: String,
    /// Decision keys that the plan answers.
    pub keys: Vec<String>,
    /// The plan that the cost model chose, and the other one.
    pub plans: [String; 2],
    /// Modelled seconds of both at the decision.
    pub modelled: [f64; 2],
    /// Measured seconds of the whole step, and the relative standard error of their ratio.
    pub seconds: [f64; 2],
    pub error: f64,
    /// Seconds of the chosen step that no kernel accounts for, per launch.
    pub gap: f64,
    /// The kernels that differ, under both plans.
    pub kernels: [Vec<KernelLine>; 2],
}

/// All launches of one kernel in a step.
#[derive(Serialize, Deserialize, Debug)]
pub struct KernelLine {
    pub title: String,
    pub seconds: f64,
    /// Amounts above 0 by feature.
    pub fixed: BTreeMap<String, f64>,
    pub memory: BTreeMap<String, f64>,
    pub compute: BTreeMap<String, f64>,
}

impl KernelLine {
    fn new(of: &KernelTiming) -> KernelLine {
        let Features {
            fixed,
            memory,
            compute,
        } = of.features;
        KernelLine {
            title: of.title.clone(),
            seconds: of.seconds,
            fixed: named(fixed),
            memory: named(memory),
            compute: named(compute),
        }
    }
}

/// Amounts above 0 by the names of their features.
fn named(amounts: Amounts) -> BTreeMap<String, f64> {
    let all = Feature::ALL.map(|of| (of.name().to_owned(), amounts.get(of)));
    all.into_iter().filter(|of| of.1 > 0.0).collect()
}

/// The step that was measured.
pub struct Measured<'a> {
    pub machine: &'a Machine,
    pub model: &'a str,
    pub tokens: usize,
    pub depth: usize,
}

impl Timing {
    /// Puts together what was measured of an answer; `None` if its decision is not among these.
    pub fn new(
        of: &Measured,
        answer: &Answer,
        decisions: &BTreeMap<String, Decision>,
        times: StepTimings,
    ) -> Option<Timing> {
        let keys: Vec<String> = answer.keys().cloned().collect();
        let asked: Vec<&Decision> = keys
            .iter()
            .map(|key| decisions.get(key))
            .collect::<Option<_>>()?;
        let (first, plan) = (asked.first()?, answer.values().next()?);
        let mut modelled = [0.0; 2];
        for decision in &asked {
            let other = decision
                .options
                .iter()
                .find(|option| option.plan == *plan)?;
            modelled[0] += decision.options[decision.chosen].seconds;
            modelled[1] += other.seconds;
        }
        let gap = gap(times.seconds[0], &times.kernels[0]);
        let kernels = differing(times.kernels);
        Some(Timing {
            machine: of.machine.name.to_string(),
            facts: named(Amounts(of.machine.coefficients().0)),
            model: of.model.to_owned(),
            tokens: of.tokens,
            depth: of.depth,
            kind: first.kind.to_owned(),
            plans: [first.options[first.chosen].plan.clone(), plan.clone()],
            keys,
            modelled,
            seconds: times.seconds,
            error: times.error,
            gap,
            kernels: [0, 1].map(|i| kernels[i].iter().map(KernelLine::new).collect()),
        })
    }
}

/// Seconds of a step besides those of its kernels, per launch.
fn gap(step: f64, kernels: &[KernelTiming]) -> f64 {
    let all: f64 = kernels.iter().map(|k| k.seconds).sum();
    let launches: f64 = kernels
        .iter()
        .map(|k| k.features.fixed.get(Feature::Launch))
        .sum();
    (step - all) / launches.max(1.0)
}

/// Drops kernels that both plans have.
fn differing(kernels: [Vec<KernelTiming>; 2]) -> [Vec<KernelTiming>; 2] {
    let ids = [0, 1].map(|i| kernels[i].iter().map(|k| k.id.clone()).collect::<Vec<_>>());
    let [base, other] = kernels;
    let without = |mut all: Vec<KernelTiming>, ids: &[_]| {
        all.retain(|k| !ids.contains(&k.id));
        all
    };
    [without(base, &ids[1]), without(other, &ids[0])]
}

/// Orders candidates so that a search that ends early has some of each kind: one of each kind, then
/// another one of each. Candidates of one kind keep their order, one of each decision first.
pub fn in_turns(questions: &[Vec<Answer>]) -> Vec<Answer> {
    let mut kinds: BTreeMap<String, Vec<(usize, usize, &Answer)>> = BTreeMap::new();
    for (number, answers) in questions.iter().enumerate() {
        for (nth, answer) in answers.iter().enumerate() {
            let key = answer.keys().next().map_or("", String::as_str);
            let kind = key.split(' ').next().unwrap_or_default().to_owned();
            kinds.entry(kind).or_default().push((nth, number, answer));
        }
    }
    let mut all = Vec::new();
    for (place, mut answers) in kinds.into_values().enumerate() {
        answers.sort_by_key(|&(nth, number, _)| (nth, number));
        all.extend(
            answers
                .iter()
                .enumerate()
                .map(|(turn, of)| (turn, place, of.2.clone())),
        );
    }
    all.sort_by_key(|&(turn, place, _)| (turn, place));
    all.into_iter().map(|of| of.2).collect()
}

/// Returns every decision of these steps with all its options, by key.
pub fn decisions(steps: &[Plan], target: &Target) -> BTreeMap<String, Decision> {
    let all = steps.iter().flat_map(|plan| plans::decisions(plan, target));
    all.map(|decision| (decision.key(), decision)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Model;
    use gristmill_backend::{Options, open};
    use gristmill_llm::arch::{CacheType, Functions, Logits, Pools};
    use gristmill_llm::engine::{CacheShape, GraphKey, plan_options};
    use std::path::{Path, PathBuf};

    /// Standard errors by which two plans must differ, and the least difference as a part of the
    /// step.
    const ERRORS: f64 = 2.0;
    const NOISE: f64 = 0.002;
    /// How far an agreement may fall below the recorded one.
    const SLACK: f64 = 0.05;
    /// Part of the recorded decisions that must still be there.
    const KNOWN: f64 = 0.7;

    /// A decision key without the hashes of functions, which change with every change of a model.
    fn without_hashes(key: &str) -> String {
        let words = key
            .split(' ')
            .map(|word| word.split('~').next().unwrap_or(word));
        words.collect::<Vec<_>>().join(" ")
    }

    fn target(machine: &str) -> Target {
        let (device, isa) = match gristmill_backend::cpu::ISAS
            .iter()
            .any(|row| row.name == machine)
        {
            true => ("null".to_owned(), machine),
            false => (format!("null:{machine}"), "auto"),
        };
        let options = Options {
            isa: isa.into(),
            threads: Some(2),
            ..Options::default()
        };
        open(&device, &options).expect("a null device").target
    }

    fn step_of(timing: &Timing) -> (Target, Plan) {
        let target = target(&timing.machine);
        let Ok(model) = Model::open(Some(&timing.model)) else {
            panic!("no model {}", timing.model)
        };
        let Ok(model) = model.describe() else {
            panic!("no description")
        };
        // A decode step has a graph for its depth, a prompt one for the whole context.
        let depth = (timing.depth + timing.tokens).next_power_of_two().max(2048);
        let rows = 2 * depth;
        let cache = CacheShape {
            rows,
            pools: Pools::from_pages(rows / 64),
            cache_type: CacheType::F16,
        };
        let graph = GraphKey {
            tokens: timing.tokens,
            batch: false,
            others: 0,
            logits: Logits::Last,
            depth: if timing.tokens == 1 { depth } else { rows },
            contiguous: true,
            draft: None,
        };
        let plan = model.plan(&plan_options(graph, cache, &target), &mut Functions::new());
        (target, plan)
    }

    /// Decisions of the step that was measured, by key without hashes.
    fn decisions_of(timing: &Timing) -> BTreeMap<String, Decision> {
        let (target, plan) = step_of(timing);
        let all = decisions(&[plan], &target);
        all.into_iter()
            .map(|(key, of)| (without_hashes(&key), of))
            .collect()
    }

    /// Modelled difference of two plans by the cost model of this tree; `None` if it has no such
    /// decision any more.
    fn modelled(timing: &Timing, now: &BTreeMap<String, Decision>) -> Option<f64> {
        let mut difference = 0.0;
        for key in &timing.keys {
            let decision = now.get(&without_hashes(key))?;
            let seconds = |plan: &String| {
                let option = decision.options.iter().find(|option| option.plan == *plan);
                option.map(|option| option.seconds)
            };
            difference += seconds(&timing.plans[1])? - seconds(&timing.plans[0])?;
        }
        Some(difference)
    }

    /// Differences of a decision's plans from the chosen one, measured and modelled, with the least
    /// difference that counts, by the decision's keys.
    type Groups = BTreeMap<Vec<String>, (Vec<[f64; 2]>, f64)>;

    /// Kendall's tau of differences, measured and modelled, of the plans of one decision each.
    fn agreement(groups: &Groups) -> (usize, f64) {
        let (mut pairs, mut sum) = (0, 0);
        for (plans, noise) in groups.values() {
            for (i, a) in plans.iter().enumerate() {
                for b in plans[i + 1..]
                    .iter()
                    .filter(|b| (a[0] - b[0]).abs() > *noise)
                {
                    pairs += 1;
                    sum += match (a[0] - b[0], a[1] - b[1]) {
                        (_, 0.0) => 0,
                        (measured, modelled) if (measured > 0.0) == (modelled > 0.0) => 1,
                        _ => -1,
                    };
                }
            }
        }
        (pairs, f64::from(sum) / pairs.max(1) as f64)
    }

    /// The recorded times, by file.
    fn recorded() -> Vec<(PathBuf, Vec<Timing>)> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/timings");
        let files = std::fs::read_dir(folder)
            .expect("docs/timings")
            .map(|file| file.unwrap().path());
        let mut files: Vec<PathBuf> = files
            .filter(|file| file.extension().is_some_and(|e| e == "jsonl"))
            .collect();
        files.sort();
        let read = |file: PathBuf| {
            let text = std::fs::read_to_string(&file).unwrap();
            let lines = text
                .lines()
                .map(|line| serde_json::from_str(line).expect("a timing"));
            let timings = lines.collect();
            (file, timings)
        };
        files.into_iter().map(read).collect()
    }

    /// The cost model puts the plans of each kind of decision into the measured order as well as it
    /// did when the times were recorded. `GRISTMILL_BLESS=1` writes how well it does now.
    #[test]
    fn modelled_times_have_the_order_of_measured_ones() {
        let (mut lines, mut fallen) = (Vec::new(), Vec::new());
        let at = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/timings/orders.txt");
        let before = std::fs::read_to_string(&at).unwrap_or_default();
        for (file, timings) in recorded() {
            let mut steps: BTreeMap<_, BTreeMap<String, Decision>> = BTreeMap::new();
            let mut kinds: BTreeMap<&str, Groups> = BTreeMap::new();
            let mut known = 0;
            for timing in &timings {
                let step = (&timing.model, timing.tokens, timing.depth);
                let now = steps.entry(step).or_insert_with(|| decisions_of(timing));
                let Some(modelled) = modelled(timing, now) else {
                    continue;
                };
                known += 1;
                let measured = timing.seconds[1] - timing.seconds[0];
                let group = kinds
                    .entry(&timing.kind)
                    .or_default()
                    .entry(timing.keys.clone());
                let group = group.or_insert((vec![[0.0; 2]], 0.0));
                group.0.push([measured, modelled]);
                let noise = (ERRORS * timing.error).max(NOISE);
                group.1 = group.1.max(noise * timing.seconds[0]);
            }
            let name = file.file_stem().unwrap().to_string_lossy().into_owned();
            assert!(
                known as f64 >= KNOWN * timings.len() as f64,
                "{name}: {known} of {} recorded decisions are left: measure again",
                timings.len()
            );
            for (kind, groups) in &kinds {
                let (pairs, tau) = agreement(groups);
                let key = format!("{name} {kind}");
                let was = before.lines().find_map(|line| {
                    let rest = line.strip_prefix(&key)?;
                    rest.split_whitespace().nth(1)?.parse::<f64>().ok()
                });
                if was.is_none_or(|was| tau < was - SLACK) {
                    fallen.push(format!("{key}: {tau:.2}, recorded {was:?}"));
                }
                lines.push(format!("{key} {pairs} {tau:.2}"));
            }
        }
        if std::env::var_os("GRISTMILL_BLESS").is_some() {
            std::fs::write(&at, lines.join("\n") + "\n").unwrap();
            return;
        }
        assert!(!lines.is_empty());
        assert!(fallen.is_empty(), "{}", fallen.join("\n"));
    }
}
