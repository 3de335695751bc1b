//! Hidden rows and logits of whole texts, on the model's thread.

use crate::error::{Failure, Result};
use gristmill_llm::arch::{AdapterScales, Logits};
use gristmill_llm::engine::{Engine, TokenRun};
use gristmill_llm::pooling::{PooledRows, Pooling};
use gristmill_llm::sched::{self, Batcher};
use std::ops::ControlFlow;

/// Runs a part of a text.
type RunPart<'a> = dyn FnMut(&mut Engine, TokenRun) -> Result<ControlFlow<()>, sched::Error> + 'a;

/// Maximum rows of logits per step, which bounds memory.
const LOGITS_ROWS: usize = 128;

/// Returns the pooled values of each text: a vector, or a score.
pub fn pooled(batcher: &mut Batcher, pooling: &Pooling, texts: &[Vec<u32>]) -> Result<Vec<f32>> {
    let mut values = Vec::new();
    if pooling.is_of_encoder() {
        let width = batcher.engine().model().width();
        let each = &mut |_, rows: &[f32]| values.extend(pooling.values(rows, width));
        batcher.encode(texts, each)?;
    } else {
        for tokens in texts {
            values.extend(pooled_text(batcher, pooling, tokens)?);
        }
    }
    match values.iter().all(|value| value.is_finite()) {
        true => Ok(values),
        false => Err(sched::Error::HiddenRow.into()),
    }
}

fn pooled_text(batcher: &mut Batcher, pooling: &Pooling, tokens: &[u32]) -> Result<Vec<f32>> {
    let width = batcher.engine().model().width();
    let most = batcher.engine().chunk();
    let mut text = pooling.start(width);
    let mut first = true;
    let mut last = Vec::new();
    let mut add = |rows: &[f32]| match pooling.rows() {
        PooledRows::All => text.add(rows),
        PooledRows::First if std::mem::take(&mut first) => text.add(&rows[..width]),
        PooledRows::First => (),
        PooledRows::Last => last = rows[rows.len() - width..].to_vec(),
    };
    run_uncached(batcher, tokens, most, &mut |engine, run| {
        engine.hidden_rows(run, &mut add)?;
        Ok(ControlFlow::Continue(()))
    })?;
    text.add(&last);
    Ok(text.values())
}

/// Returns the logits after each token, row-major `[tokens, vocabulary]`.
pub fn logits(batcher: &mut Batcher, tokens: &[u32]) -> Result<Vec<f32>> {
    let most = LOGITS_ROWS.min(batcher.engine().chunk());
    let mut all = Vec::with_capacity(tokens.len() * batcher.engine().model().vocabulary());
    run_uncached(
        batcher,
        tokens,
        most,
        &mut |engine: &mut Engine, run: TokenRun| {
            all.extend(engine.logits(run, Logits::All)?);
            Ok(ControlFlow::Continue(()))
        },
    )?;
    Ok(all)
}

fn run_uncached(
    batcher: &mut Batcher,
    tokens: &[u32],
    most: usize,
    run: &mut RunPart,
) -> Result<()> {
    if tokens.is_empty() {
        return Err(Failure::usage("there are no tokens", "give at least one"));
    }
    let ran = batcher.run_uncached((tokens, AdapterScales::default()), most, run)?;
    ran.map(drop).ok_or_else(|| {
        Failure::new(
            "the KV cache has too few free pages",
            "shorten the text, or give Model a larger context",
        )
    })
}
