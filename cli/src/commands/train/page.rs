//! The page of a run: `--html`.

use super::args::TrainArgs;
use super::data::Data;
use super::files::History;
use super::replies::{self, Prompt};
use super::setup::Start;
use crate::failure::{Result, printable};
use crate::model::Model;
use crate::output;
use crate::size::size;
use gristmill_backend::Opened;
use gristmill_llm::arch::TrainingShape;
use gristmill_llm::train::{Adapter, Run, TrainingMemory};
use gristmill_profile::training::{ReplySample, TrainingRecord, html};
use std::path::PathBuf;

pub struct Page {
    path: PathBuf,
    opened: Opened,
    prompts: Vec<Prompt>,
    record: TrainingRecord,
    /// Tokens of a step, and steps of the run.
    tokens: usize,
    steps: u64,
}

impl Page {
    /// Generates the replies before training, while nothing else is loaded; `None` without --html.
    pub fn begin(
        options: &TrainArgs,
        model: &Model,
        opened: &Opened,
        data: &Data,
        start: &Start,
    ) -> Result<Option<Page>> {
        let Some(path) = options.html.clone() else {
            return Ok(None);
        };
        let tokenizer = model.tokenizer()?;
        let context = model.describe()?.context();
        let (examples, source) = match data.evaluation.is_empty() {
            true => (&data.examples, "the data"),
            false => (&data.evaluation, "--eval, which are not trained on"),
        };
        let prompts = replies::prompts(&tokenizer, examples, context);
        let before = match (start, &options.init) {
            (Start::Adapter(adapter), Some(_)) => {
                let adapted = Model::open(options.model.name())?.with_adapter(adapter)?;
                replies::replies(&adapted, opened, &options.common, &prompts)?
            }
            _ => replies::replies(model, opened, &options.common, &prompts)?,
        };
        let sample = |(p, before): (&Prompt, String)| ReplySample {
            prompt: p.text.clone(),
            wanted: p.wanted.clone(),
            before,
            after: None,
        };
        let record = TrainingRecord {
            model: printable(&model.name),
            replies: prompts.iter().zip(before).map(sample).collect(),
            about_replies: format!(
                "to the first lines of {source}; greedy, at most {} tokens",
                replies::LONGEST
            ),
            ..TrainingRecord::default()
        };
        Ok(Some(Page {
            path,
            opened: opened.clone(),
            prompts,
            record,
            tokens: 0,
            steps: 0,
        }))
    }
    /// Adds the settings of the run, which is about to begin.
    pub fn describe(
        &mut self,
        options: &TrainArgs,
        data: &Data,
        start: &Start,
        run: &Run,
        (memory, shape, steps): (TrainingMemory, TrainingShape, u64),
    ) {
        let accumulate = usize::from(options.accumulate);
        self.tokens = shape.tokens() * accumulate;
        self.steps = steps;
        let (trainer, lines) = (run.trainer(), data.lines);
        let evaluation = match (&options.eval, data.evaluation_lines) {
            (None, _) => "none".into(),
            (Some(from), lines) => format!("{from}: {lines} lines, every {} steps", options.save_every),
        };
        let trained = match start {
            Start::Full => vec![["Trained".into(), "all weights".into()]],
            Start::DraftBlock(_) => vec![["Trained".into(), "the block for draft tokens".into()]],
            Start::Adapter(adapter) => of_adapter(options, adapter),
        };
        let own = [
            ["Model", &printable(&model_line(options, trainer.model().architecture()))],
            ["Device", &format!("{} ({})", self.opened.device.name(), self.opened.target.name)],
            ["Data", &printable(&format!("{}: {lines} lines", options.data.display()))],
            ["Evaluation", &printable(&evaluation)],
            ["Loss on", &options.loss_on.name()],
            ["Parameters", &grouped(trainer.places().count())],
            ["Steps", &format!("{steps} of {} tokens: {} rows of {}, passes: {accumulate}", self.tokens, shape.sequences, shape.length)],
            ["Rows", if shape.packed { "short lines share rows" } else { "one line each" }],
            ["Learning rate", &format!("{:e}, {}, warm-up {}", options.lr, options.schedule.name(), options.warmup)],
            ["Optimiser", &format!("AdamW, weight decay {}, gradients clipped at {}", options.weight_decay, options.clip)],
            ["Seed", &format!("{}{}", options.seed, if options.no_shuffle { ", lines in order" } else { "" })],
            ["Memory", &memory_line(&memory)],
            ["Program", &format!("gristmill {}", env!("CARGO_PKG_VERSION"))],
        ];
        let mut settings: Vec<[String; 2]> = own.map(|row| row.map(str::to_owned)).into();
        settings.splice(5..5, trained);
        self.record.settings = settings;
        self.record.facts.push(["memory".into(), size(memory.total())]);
    }
    /// Writes the page of a run without a model to load.
    pub fn stopped(mut self, history: &History) -> Result {
        self.write(history)
    }
    /// Writes the page, then adds the replies of the trained model: of an adapter, or of the model
    /// at -o.
    pub fn finish(
        mut self,
        options: &TrainArgs,
        history: &History,
        adapter: Option<&Adapter>,
    ) -> Result {
        self.write(history)?;
        if self.prompts.is_empty() {
            return Ok(());
        }
        let model = match adapter {
            Some(adapter) => Model::open(options.model.name())?.with_adapter(adapter)?,
            None => Model::at(options.output.clone())?,
        };
        let after = replies::replies(&model, &self.opened, &options.common, &self.prompts)?;
        for (sample, after) in self.record.replies.iter_mut().zip(after) {
            sample.after = Some(after);
        }
        output::write(&self.path, &html(&self.record))
    }
    fn write(&mut self, history: &History) -> Result {
        let record = &mut self.record;
        record.steps = history.steps.clone();
        record.evaluations = history.evaluations.clone();
        let taken = history.steps.last().map_or(0, |s| s.step);
        let end = if taken < self.steps { ": stopped" } else { "" };
        record.what = format!("{taken} of {} steps of training{end}", self.steps);
        let mut facts = vec![];
        let range = |losses: [Option<f64>; 2]| match losses {
            [Some(first), Some(last)] => format!("{first:.3} → {last:.3}"),
            _ => "none".into(),
        };
        let losses = [history.steps.first(), history.steps.last()];
        facts.push(["loss, first and last step".into(), range(losses.map(|s| Some(s?.loss)))]);
        if let [.., last] = &history.evaluations[..] {
            let first = history.evaluations.first().map(|e| e.1);
            facts.push(["evaluation loss, first and last".into(), range([first, Some(last.1)])]);
        }
        // The first step of a process may still wait for memory.
        let later = &history.speeds[usize::from(history.speeds.len() > 1)..];
        let sum = |speeds: &[(usize, f64)]| {
            let both = speeds.iter().fold((0, 0.0), |(n, s), of| (n + of.0, s + of.1));
            (both.0 as f64, both.1)
        };
        let (tokens, seconds) = sum(later);
        if seconds > 0.0 {
            facts.push(["tokens a second".into(), grouped((tokens / seconds) as usize)]);
        }
        facts.push(["time of steps".into(), time(sum(&history.speeds).1)]);
        facts.append(&mut record.facts);
        record.facts = facts;
        // Standard output gets one page, the last.
        match self.path.as_os_str() == "-" && !self.prompts.is_empty() {
            true => Ok(()),
            false => output::write(&self.path, &html(record)),
        }
    }
}

fn model_line(options: &TrainArgs, architecture: &str) -> String {
    let name = options.model.name().unwrap_or(crate::model::DEMO_NAME);
    format!("{name} ({architecture})")
}

fn of_adapter(options: &TrainArgs, adapter: &Adapter) -> Vec<[String; 2]> {
    let shapes = adapter.low_rank().shapes;
    let rank = shapes.values().map(|s| s.rank).max().unwrap_or_default();
    let targets = match &options.init {
        Some(path) => format!("those of {}", path.display()),
        None => options.targets.clone(),
    };
    vec![
        ["Adapter".into(), format!("rank {rank}, alpha {}", adapter.alpha)],
        ["Targets".into(), printable(&format!("{targets}: {} weights", shapes.len()))],
    ]
}

fn memory_line(memory: &TrainingMemory) -> String {
    format!(
        "{}: {} of weights, {} of parameters and moments, {} of activations",
        size(memory.total()),
        size(memory.weights),
        size(memory.parameters),
        size(memory.activations)
    )
}

/// A whole number with commas between thousands.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Seconds in the two largest units.
fn time(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        ..10 => format!("{seconds:.1} s"),
        10..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_for_people() {
        assert_eq!([0, 999, 1000, 1234567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        let times = [0.25, 42.4, 61.0, 7325.0].map(time);
        assert_eq!(times, ["0.2 s", "42 s", "1 min 1 s", "2 h 2 min"]);
    }
}
