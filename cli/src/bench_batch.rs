//! Batched decode of several sequences, timed: `bench --batch`.

use crate::ab_bench::{Ids, decode};
use crate::failure::{Failure, Result, printable};
use crate::flags::Common;
use crate::model::Model;
use crate::progress;
use crate::table::{Column, Format, Table};
use gristmill_backend::Opened;
use gristmill_llm::arch;
use gristmill_llm::engine::{Engine, Settings, WholePool};
use serde_json::json;
use std::io;
use std::time::Instant;

/// Batch sizes to measure, and the work at each.
pub struct Batches<'a> {
    pub sequences: &'a [usize],
    /// Context depth of each sequence, in tokens.
    pub prompt: usize,
    /// Decode steps of each repetition.
    pub tokens: usize,
    /// Repetitions, of which the median counts.
    pub times: usize,
    /// Whether all steps run the kernels of the largest batch.
    pub invariant: bool,
    pub format: Format,
}

/// Tokens of a KV page.
const PAGE: usize = arch::Options::PAGE;

/// Columns of the table.
const COLUMNS: &[Column] = &[
    Column::number("sequences", 9),
    Column::number("tok/s", 12),
    Column::number("tok/s each", 12),
    Column::number("ms/step", 10),
    Column::number("speedup", 8),
    Column::number("launches", 8),
];

/// Measures the batch sizes alternately, so that other load affects all alike, and prints the
/// medians.
pub fn run(of: &Batches, model: &Model, opened: Opened, common: &Common) -> Result {
    let most = of.sequences.iter().copied().max().unwrap_or(1);
    let settings = Settings {
        parallel: most,
        contexts: most,
        ..common.settings(Some(of.prompt + of.tokens))
    };
    let mut engine = model.load_with(opened, settings)?;
    let each = (of.prompt + of.tokens).div_ceil(PAGE);
    let (pages, taken) = (engine.cache().pages(), engine.max_sequences());
    if taken < most || pages < most * each {
        let fits = (pages / each).min(taken);
        let message = format!(
            "{most} sequences of {} tokens need {} KV pages, and {pages} fit",
            of.prompt + of.tokens,
            most * each
        );
        return Err(Failure::new(
            message,
            format!("--batch {fits} fits; or lower -p and -n"),
        ));
    }
    engine.fill_cache_for_bench(pages * PAGE)?;
    let mut seconds: Vec<Vec<f64>> = vec![Vec::new(); of.sequences.len()];
    let bar = progress::count("decode", (of.times * of.sequences.len()) as u64);
    for turn in 0..=of.times {
        for (&n, seconds) in of.sequences.iter().zip(&mut seconds) {
            // The first turn is a warm-up.
            let steps = if turn == 0 {
                of.tokens.min(2)
            } else {
                of.tokens
            };
            let time = timed(&mut engine, n, of, steps)?;
            if turn > 0 {
                seconds.push(time / steps as f64);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    print(of, model, &engine, seconds)
}

/// Returns the seconds of `steps` greedy decode steps of `n` sequences.
fn timed(engine: &mut Engine, n: usize, of: &Batches, steps: usize) -> Result<f64> {
    let tokens = Ids::new(engine).some(n);
    let (blocks, shares) = ((of.prompt + steps).div_ceil(PAGE), engine.max_sequences());
    let pools: Vec<WholePool> = (0..n)
        .map(|nth| WholePool::share(engine, [nth, shares], blocks))
        .collect();
    let start = Instant::now();
    decode(
        engine,
        &pools,
        &tokens,
        of.prompt..of.prompt + steps,
        of.invariant,
    )?;
    Ok(start.elapsed().as_secs_f64().max(1e-9))
}

fn print(of: &Batches, model: &Model, engine: &Engine, seconds: Vec<Vec<f64>>) -> Result {
    let mut out = io::stdout().lock();
    let mut table = Table::new(&mut out, of.format, COLUMNS);
    let (name, prompt) = (printable(&model.name), of.prompt);
    if of.format == Format::Md {
        table.about(&format!(
            "{name}: batched decode at a context depth of {prompt} tokens, medians of {} repetitions",
            of.times
        ))?;
    }
    let median = |mut v: Vec<f64>| {
        v.sort_by(f64::total_cmp);
        v[v.len() / 2]
    };
    let rates: Vec<f64> = of
        .sequences
        .iter()
        .zip(seconds)
        .map(|(&n, s)| n as f64 / median(s))
        .collect();
    for (&n, &rate) in of.sequences.iter().zip(&rates) {
        let class = if of.invariant {
            engine.max_sequences()
        } else {
            n
        };
        let (times, launches) = (rate / rates[0], engine.batch_launches(class).len());
        let (each, step) = (rate / n as f64, 1e3 * n as f64 / rate);
        let record = json!({
            "batch_invariant": of.invariant,
            "model": model.name,
            "device": engine.device().name(),
            "test": format!("batch{n}"),
            "sequences": n,
            "depth": of.prompt,
            "tokens_per_second": rate,
            "ms_per_step": step,
            "times_the_first": times,
            "launches_per_step": launches,
        });
        let cells = [
            n.to_string(),
            format!("{rate:.2}"),
            format!("{each:.2}"),
            format!("{step:.3}"),
            format!("{times:.2}"),
            launches.to_string(),
        ];
        table.row(&record, &cells)?;
    }
    table.finish()
}
