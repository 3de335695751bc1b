//! Many sequences in one step, timed: `bench --batch`.

use crate::failure::{Failure, Result, printable};
use crate::flags::Common;
use crate::measure::{Ids, decode};
use crate::model::Model;
use crate::progress;
use gristmill_backend::Opened;
use gristmill_llm::arch;
use gristmill_llm::engine::{Engine, Settings, WholePool};
use serde_json::json;
use std::io::{self, Write};
use std::time::Instant;

/// What is measured.
pub struct Batches<'a> {
    /// Numbers of sequences.
    pub sequences: &'a [usize],
    /// Tokens that each has before.
    pub prompt: usize,
    /// Tokens that each is given.
    pub tokens: usize,
    /// Repetitions.
    pub times: usize,
    /// All steps in the class of the most sequences.
    pub invariant: bool,
    /// One JSON object a line instead of a table.
    pub json: bool,
}

/// Positions of a page.
const PAGE: usize = arch::Options::PAGE;

/// Measures them turn by turn, so that what else the machine does hits all of them, and tells the medians.
pub fn run(of: &Batches, model: &Model, opened: Opened, common: &Common) -> Result {
    let most = of.sequences.iter().copied().max().unwrap_or(1);
    let settings = Settings { parallel: most, contexts: most, ..common.settings(Some(of.prompt + of.tokens)) };
    let mut engine = model.load_with(opened, settings)?;
    let each = (of.prompt + of.tokens).div_ceil(PAGE);
    let (pages, taken) = (engine.cache().pages(), engine.max_sequences());
    if taken < most || pages < most * each {
        let fits = (pages / each).min(taken);
        let message =
            format!("{most} sequences of {} tokens take {} pages, and {pages} fit", of.prompt + of.tokens, most * each);
        return Err(Failure::new(message, format!("--batch {fits} would fit, or fewer tokens of -p and -n")));
    }
    engine.fill_cache_for_bench(pages * PAGE)?;
    let mut seconds: Vec<Vec<f64>> = vec![Vec::new(); of.sequences.len()];
    let bar = progress::count("tokens", (of.times * of.sequences.len()) as u64);
    for turn in 0..=of.times {
        for (&n, seconds) in of.sequences.iter().zip(&mut seconds) {
            // The first turn is for what is only done once.
            let steps = if turn == 0 { of.tokens.min(2) } else { of.tokens };
            let time = timed(&mut engine, n, of, steps)?;
            if turn > 0 {
                seconds.push(time / steps as f64);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    tell(of, model, &engine, seconds)
}

/// Seconds of so many steps of `n` sequences that continue with the most probable tokens.
fn timed(engine: &mut Engine, n: usize, of: &Batches, steps: usize) -> Result<f64> {
    let tokens = Ids::for_engine(engine).some(n);
    let (blocks, shares) = ((of.prompt + steps).div_ceil(PAGE), engine.max_sequences());
    let pools: Vec<WholePool> = (0..n).map(|nth| WholePool::share(engine, [nth, shares], blocks)).collect();
    let start = Instant::now();
    decode(engine, &pools, &tokens, of.prompt..of.prompt + steps, of.invariant)?;
    Ok(start.elapsed().as_secs_f64().max(1e-9))
}

fn tell(of: &Batches, model: &Model, engine: &Engine, seconds: Vec<Vec<f64>>) -> Result {
    let mut out = io::stdout().lock();
    if !of.json {
        let (name, prompt) = (printable(&model.name), of.prompt);
        writeln!(
            out,
            "{name}: steps of several sequences, each behind {prompt} tokens, medians of {} turns",
            of.times
        )?;
        writeln!(
            out,
            "{:>9} {:>12} {:>12} {:>10} {:>9} {:>10}",
            "sequences", "tok/s", "each tok/s", "ms/step", "times", "launches"
        )?;
    }
    let median = |mut v: Vec<f64>| {
        v.sort_by(f64::total_cmp);
        v[v.len() / 2]
    };
    let rates: Vec<f64> = of.sequences.iter().zip(seconds).map(|(&n, s)| n as f64 / median(s)).collect();
    for (&n, &rate) in of.sequences.iter().zip(&rates) {
        let class = if of.invariant { engine.max_sequences() } else { n };
        let (times, launches) = (rate / rates[0], engine.batch_launches(class).len());
        if of.json {
            let line = json!({
                "batch_invariant": of.invariant,
                "model": model.name,
                "device": engine.device().name(),
                "test": format!("batch{n}"),
                "sequences": n,
                "depth": of.prompt,
                "tokens_per_second": rate,
                "ms_per_step": 1e3 * n as f64 / rate,
                "times_the_first": times,
                "launches_per_step": launches,
            });
            writeln!(out, "{line}")?;
        } else {
            let (each, step) = (rate / n as f64, 1e3 * n as f64 / rate);
            writeln!(out, "{n:>9} {rate:>12.2} {each:>12.2} {step:>10.3} {times:>9.2} {launches:>10}")?;
        }
    }
    Ok(())
}
