//! Decode with drafts and without, timed: `bench --speculate`.

use crate::ab_bench::Ids;
use crate::failure::{Failure, Result, printable};
use crate::flags::Common;
use crate::model::Model;
use crate::progress;
use crate::speculation::Speculation;
use crate::table::{Column, Format, Table};
use gristmill_backend::Opened;
use gristmill_llm::engine::Settings;
use gristmill_llm::sampling::RowSampling;
use gristmill_llm::sched::{Batcher, ReadySequence, SequenceId, SequenceOptions, SpeculationStats};
use indicatif::ProgressBar;
use serde_json::json;
use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

/// Numbers of sequences to measure, and the work at each.
pub struct Drafts<'a> {
    pub sequences: &'a [usize],
    /// Tokens of each prompt.
    pub prompt: usize,
    /// Tokens of each answer.
    pub tokens: usize,
    /// Repetitions, of which the median counts.
    pub times: usize,
    /// Share of drafts that are kept whatever the model chooses; `None` for those that it chooses.
    pub accept: Option<f64>,
    pub format: Format,
}

/// Columns of the table.
const COLUMNS: &[Column] = &[
    Column::number("sequences", 9),
    Column::number("tok/s without", 13),
    Column::number("with drafts", 12),
    Column::number("speedup", 8),
    Column::number("kept", 8),
    Column::number("drafts/step", 11),
    Column::number("first token, ms", 15),
    Column::number("with drafts", 12),
];

/// What a repetition measured.
#[derive(Clone, Copy, Default)]
struct Measured {
    rate: f64,
    first_token: f64,
}

/// A generator of numbers that decide which drafts are kept.
struct Coins(u64);

impl Coins {
    /// Returns a number from 0 to 1 (xorshift).
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Measures each number of sequences with drafts and without, alternately, and prints the medians.
pub fn run(
    of: &Drafts,
    speculation: &Speculation,
    model: &Model,
    opened: Opened,
    common: &Common,
) -> Result {
    let most = of.sequences.iter().copied().max().unwrap_or(1);
    // Steps with drafts end behind the last token that is counted.
    let context = of.prompt + of.tokens + 64;
    let settings = Settings {
        parallel: most,
        contexts: most,
        ..speculation.over(common.settings(Some(context)))
    };
    let engine = model.load_with(opened.clone(), settings)?;
    if engine.max_sequences() < most || engine.cache().pages() * PAGE < most * context {
        let hint = "fewer sequences with --batch, or lower -p and -n";
        return Err(Failure::new(
            format_args!("{most} sequences of {context} tokens do not fit"),
            hint,
        ));
    }
    let mut ids = Ids::new(&engine);
    let mut batcher = speculation.batcher(engine, &opened, common)?;
    let mut out = io::stdout().lock();
    let mut table = Table::new(&mut out, of.format, COLUMNS);
    if of.format == Format::Md {
        let forced = of.accept.map_or(String::new(), |share| {
            format!(", {:.0} % of drafts kept by force", 100.0 * share)
        });
        let (name, prompt, times) = (printable(&model.name), of.prompt, of.times);
        table.about(&format!("{name}: decode behind prompts of {prompt} tokens{forced}, medians of {times} repetitions"))?;
    }
    let bar = progress::count("decode", (2 * of.times * of.sequences.len()) as u64);
    for &n in of.sequences {
        let compared = compared(&mut batcher, &mut ids, n, of, &bar)?;
        table.row(&compared.json(n, &model.name), &compared.cells(n))?;
    }
    bar.finish_and_clear();
    table.finish()?;
    let [steps, drafting] = batcher.step_times().map(|times| {
        let each = times
            .iter()
            .map(|(rows, seconds)| format!("{rows}: {:.3}", seconds * 1e3));
        each.collect::<Vec<_>>().join(", ")
    });
    say!("note: ms of a step by its rows: {steps}");
    if !drafting.is_empty() {
        say!("note: ms of a draft step by its rows: {drafting}");
    }
    Ok(())
}

/// Medians without drafts and with them, and the drafts that were made.
struct Compared {
    plain: Measured,
    drafted: Measured,
    counted: SpeculationStats,
    steps: f64,
}

/// Measures `n` sequences at a time without drafts and with them, alternately.
fn compared(
    batcher: &mut Batcher,
    ids: &mut Ids,
    n: usize,
    of: &Drafts,
    bar: &ProgressBar,
) -> Result<Compared> {
    let mut all = [Vec::new(), Vec::new()];
    let (mut counted, mut steps) = (batcher.speculation(), batcher.steps().all);
    for turn in 0..=of.times {
        for (speculates, measured) in [false, true].into_iter().zip(&mut all) {
            let one = once(batcher, ids, n, speculates, of)?;
            if turn > 0 {
                measured.push(one);
                bar.inc(1);
            }
        }
        if turn == 0 {
            (counted, steps) = (batcher.speculation(), batcher.steps().all);
        }
    }
    let counted = batcher.speculation().since(&counted);
    let steps = (batcher.steps().all - steps) as f64;
    let [plain, drafted] = all.map(median);
    Ok(Compared {
        plain,
        drafted,
        counted,
        steps,
    })
}

impl Compared {
    fn kept(&self) -> f64 {
        self.counted.accepted() as f64 / self.counted.drafted().max(1) as f64
    }
    fn per_step(&self) -> f64 {
        self.counted.drafted() as f64 / self.counted.steps.max(1) as f64
    }
    fn speedup(&self) -> f64 {
        self.drafted.rate / self.plain.rate
    }
    fn json(&self, n: usize, model: &str) -> serde_json::Value {
        json!({
            "model": model,
            "sequences": n,
            "tokens_per_second": self.plain.rate,
            "tokens_per_second_with_drafts": self.drafted.rate,
            "speedup": self.speedup(),
            "kept": self.kept(),
            "drafts_per_step": self.per_step(),
            "share_of_steps_with_drafts": self.counted.steps as f64 / self.steps.max(1.0),
            "first_token_ms": self.plain.first_token * 1e3,
            "first_token_ms_with_drafts": self.drafted.first_token * 1e3,
        })
    }
    fn cells(&self, n: usize) -> [String; 8] {
        [
            n.to_string(),
            format!("{:.1}", self.plain.rate),
            format!("{:.1}", self.drafted.rate),
            format!("{:.3}", self.speedup()),
            format!("{:.1} %", 100.0 * self.kept()),
            format!("{:.2}", self.per_step()),
            format!("{:.1}", self.plain.first_token * 1e3),
            format!("{:.1}", self.drafted.first_token * 1e3),
        ]
    }
}

/// Tokens of a KV page.
const PAGE: usize = gristmill_llm::arch::Options::PAGE;

/// Returns the medians of rate and time.
fn median(of: Vec<Measured>) -> Measured {
    let middle = |part: &dyn Fn(&Measured) -> f64| {
        let mut all: Vec<f64> = of.iter().map(part).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied().unwrap_or_default()
    };
    Measured {
        rate: middle(&|of| of.rate),
        first_token: middle(&|of| of.first_token),
    }
}

/// Runs `n` sequences at a time, and returns the tokens per second from the time when all have
/// their first one.
fn once(
    batcher: &mut Batcher,
    ids: &mut Ids,
    n: usize,
    speculates: bool,
    of: &Drafts,
) -> Result<Measured> {
    let mut coins = Coins(0x9e37_79b9_7f4a_7c15);
    let options = SequenceOptions {
        speculates,
        ..SequenceOptions::default()
    };
    let begun = Instant::now();
    let mut counts: BTreeMap<SequenceId, usize> = BTreeMap::new();
    for _ in 0..n {
        counts.insert(batcher.add(&ids.some(of.prompt.max(1)), options)?, 0);
    }
    let mut first_token = None;
    let mut from: Option<(Instant, usize)> = None;
    loop {
        let ready = batcher
            .step_with(&mut |_, _| None, &mut |_| {
                Some((RowSampling::greedy(), usize::MAX))
            })
            .map_err(|failed| failed.error)?;
        for one in ready {
            let token = next_token(batcher, one, of.accept, &mut coins);
            batcher.push(one.sequence, token);
            *counts.entry(one.sequence).or_default() += 1;
        }
        let (done, total) = (
            counts.values().all(|&count| count > 0),
            counts.values().sum::<usize>(),
        );
        if counts.values().any(|&count| count > 0) {
            first_token.get_or_insert_with(|| begun.elapsed().as_secs_f64());
        }
        match from {
            None if done => from = Some((Instant::now(), total)),
            // A sequence may have the room of its context at most.
            Some((from, before))
                if total - before >= n * of.tokens.saturating_sub(1) || full(&counts, of) =>
            {
                let rate = (total - before) as f64 / from.elapsed().as_secs_f64();
                counts.keys().for_each(|&id| batcher.remove(id));
                return Ok(Measured {
                    rate,
                    first_token: first_token.unwrap_or_default(),
                });
            }
            _ => {}
        }
    }
}

/// Returns whether a sequence has reached the end of its context.
fn full(counts: &BTreeMap<SequenceId, usize>, of: &Drafts) -> bool {
    counts.values().any(|&count| count >= of.tokens + 32)
}

/// Returns the next token of a sequence: with a forced share, the drafted one or another.
fn next_token(batcher: &Batcher, of: ReadySequence, accept: Option<f64>, coins: &mut Coins) -> u32 {
    let chosen = || {
        batcher
            .drawn(of)
            .or_else(|| batcher.most_probable(of))
            .unwrap_or(0)
    };
    match (accept, batcher.next_draft(of.sequence)) {
        (Some(share), Some(draft)) if coins.next() < share => draft,
        (Some(_), Some(draft)) => (draft + 1) % batcher.engine().model().vocabulary() as u32,
        _ => chosen(),
    }
}
