//! Runs of texts whose hidden rows are pooled: embeddings, and scores of rerankers.
//!
//! Where the last row suffices, a text is a sequence of the scheduler: it reuses pages of the
//! prefix cache, and its prefill chunks share steps with decode rows of other requests. Where all
//! rows are needed, it runs in steps and pages of its own.
//! A text encoder runs several texts of a request in a step, without pages.

use crate::core::batch_worker::{Aborted, BatchWorker, Started};
use crate::core::engine_request::EngineRequest;
use crate::core::event::{Event, Usage};
use gristmill_llm::engine::{Engine, TokenRun};
use gristmill_llm::pooling::PooledRows;
use gristmill_llm::sched::{Error, ReadySequence, SequenceId};
use std::time::Instant;

impl BatchWorker {
    /// Starts the current prompt, or runs it whole.
    pub(super) fn start_pooled(&mut self, request: &EngineRequest) -> Result<Started, Aborted> {
        match request.served.pooling.rows() {
            _ if request.served.pooling.is_of_encoder() => self.run_encoder(request),
            PooledRows::Last => {
                let id = self.batcher.add(request.prompt(), request.options)?;
                Ok(Started::Pooled(id))
            }
            of @ (PooledRows::All | PooledRows::First) => {
                self.run_pooled(request, of).map(Started::Done)
            }
        }
    }
    /// Runs a whole prompt and pools its rows.
    fn run_pooled(&mut self, request: &EngineRequest, of: PooledRows) -> Result<Usage, Aborted> {
        let width = self.batcher.engine().model().width();
        let most = self.batcher.engine().chunk();
        let mut text = Some(request.served.pooling.start(width));
        let mut pooled = Vec::new();
        let mut add = |rows: &[f32]| match of {
            PooledRows::First => {
                if let Some(mut text) = text.take() {
                    text.add(&rows[..width]);
                    pooled = text.values();
                }
            }
            _ => text.iter_mut().for_each(|text| text.add(rows)),
        };
        let mut run = |engine: &mut Engine, run: TokenRun| Ok(engine.hidden_rows(run, &mut add)?);
        let usage = self.prefill_uncached(request, most, &mut run)?;
        let values = text.map_or(pooled, |text| text.values());
        send(request, request.answered, values)?;
        self.count_pooled(&usage);
        Ok(usage)
    }
    /// Runs the next texts of a request, as many as a step of a text encoder takes.
    fn run_encoder(&mut self, request: &EngineRequest) -> Result<Started, Aborted> {
        let begun = Instant::now();
        let (rest, pooling) = (request.rest(), &request.served.pooling);
        let engine = self.batcher.engine();
        let width = engine.model().width();
        let count = match request.options.batch_invariant {
            true => 1,
            false => engine.texts_of_step(rest),
        };
        let (texts, mut pooled) = (&rest[..count], Vec::new());
        let each = &mut |_, rows: &[f32]| pooled.push(pooling.values(rows, width));
        self.batcher.encode(texts, each)?;
        for (number, values) in (request.answered..).zip(pooled) {
            send(request, number, values)?;
        }
        let usage = Usage {
            prompt: texts.iter().map(Vec::len).sum(),
            prompt_time: begun.elapsed(),
            ..Usage::default()
        };
        self.count_pooled(&usage);
        Ok(Started::Encoded(usage, count))
    }
    /// Counts the prompt tokens of a text that ran alone.
    fn count_pooled(&self, usage: &Usage) {
        let tokens = usage.prompt as u64;
        self.model.metrics.prompt_tokens.inc_by(tokens);
        self.metrics().prompt_tokens.inc_by(tokens);
    }
    /// Returns whether a sequence is a text whose last row is pooled.
    pub(super) fn is_pooled(&self, id: SequenceId) -> bool {
        self.pooled.contains_key(&id)
    }
    /// Pools the last row of a text and sends the result.
    pub(super) fn take_pooled(&mut self, of: ReadySequence) -> Result<(), Error> {
        let running = self.pooled.get(&of.sequence);
        let running = running.and_then(|number| self.requests.get(number));
        if let (Some(running), Some(row)) = (running, self.batcher.hidden_row(of)) {
            let request = &running.request;
            let mut text = request.served.pooling.start(row.len());
            text.add(row);
            send(request, request.answered, text.values())?;
        }
        Ok(())
    }
}

/// Sends the pooled values of a prompt.
///
/// # Errors
/// When one of them is not finite.
fn send(request: &EngineRequest, prompt: usize, values: Vec<f32>) -> Result<(), Error> {
    if !values.iter().all(|value| value.is_finite()) {
        return Err(Error::HiddenRow);
    }
    let _ = request.events.send(Event::Pooled { prompt, values });
    Ok(())
}
