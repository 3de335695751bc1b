//! Steps of the block that drafts tokens.

use super::executor::Engine;
use super::graph_key::{GraphKey, draft_options};
use super::graphs::{CaptureKey, StepKey, Variables};
use super::step::{Chunk, DecodeRow, Step, StepOutput};
use crate::arch::{DraftOptions, DraftSource, Logits};
use crate::error::Error;
use gristmill_runtime::StepTrace;
use gristmill_tensor::jit::Ready;
use std::sync::Arc;

impl Engine {
    /// Returns whether the model has a draft block that is used.
    pub fn has_draft_block(&self) -> bool {
        self.settings.draft_block
    }
    /// Returns whether there is one that reads the model's KV cache in place of its own.
    pub fn shares_draft_cache(&self) -> bool {
        self.has_draft_block() && !self.model.draft_layers().is_empty()
    }
    /// Runs rows of the draft block and waits for them: for each token of `step` the row of hidden
    /// rows that comes before it, `from`, or none, which counts as 0. The tokens must be known.
    /// Decode rows choose the most probable token behind theirs; a chunk fills the block's cache
    /// alone. A block that shares the model's KV cache has no chunks, and all its drafts after a
    /// token are at the position of that token.
    ///
    /// # Errors
    /// As for [`Engine::run`].
    ///
    /// # Panics
    /// If the model has no draft block.
    pub fn run_drafts(
        &mut self,
        step: &Step,
        source: DraftSource,
        from: &[Option<usize>],
    ) -> Result<StepOutput, Error> {
        let rows = self.rows_of_drafts(step);
        let step = &Step {
            rows: &rows,
            ..*step
        };
        let (key, variables) = self.prepare_drafts(step, source, from)?;
        self.replay(step, key, &variables)?;
        self.wait()
    }
    /// Runs rows as [`Engine::run_drafts`] does, behind hidden rows of the model's last step, and
    /// returns the time span of each launch.
    ///
    /// # Errors
    /// As for [`Engine::run`].
    ///
    /// # Panics
    /// If the model has no draft block.
    pub fn run_drafts_traced(
        &mut self,
        step: &Step,
        from: &[Option<usize>],
    ) -> Result<StepTrace, Error> {
        let rows = self.rows_of_drafts(step);
        let step = &Step {
            rows: &rows,
            ..*step
        };
        let (key, variables) = self.prepare_drafts(step, DraftSource::Model, from)?;
        let captured = self.graphs.prepared(&CaptureKey::Step(key));
        Ok(captured.replay.replay_traced(&variables)?)
    }
    /// Returns the function and program of every launch of a captured step of the draft block with
    /// so many rows, behind hidden rows of the model.
    pub fn draft_launches(&self, rows: usize, position: usize) -> &[(Arc<Ready>, usize)] {
        let [draft, _] = self.draft_sources();
        let position = position.saturating_sub(usize::from(self.shares_draft_cache()));
        let graph = GraphKey {
            draft: Some(draft),
            ..self.rows_key(rows, position)
        };
        self.launches_of(&graph, true)
    }
    /// Returns the hidden rows that steps of the draft block read, of the model and of the block.
    fn draft_sources(&self) -> [DraftOptions; 2] {
        draft_options(&self.settings, self.limit.limits).expect("the model has a draft block")
    }
    /// Returns the rows of a draft block's step. Where it reads the model's KV cache, they are at
    /// the last position that has a row there.
    fn rows_of_drafts<'p>(&self, step: &Step<'p>) -> Vec<DecodeRow<'p>> {
        let before = usize::from(self.shares_draft_cache());
        let row = |row: &DecodeRow<'p>| DecodeRow {
            position: row.position.saturating_sub(before),
            ..*row
        };
        step.rows.iter().map(row).collect()
    }
    fn prepare_drafts(
        &mut self,
        step: &Step,
        source: DraftSource,
        from: &[Option<usize>],
    ) -> Result<(StepKey, Variables), Error> {
        self.finish()?;
        let [of_model, of_block] = self.draft_sources();
        let options = match source {
            DraftSource::Model => of_model,
            DraftSource::Block => of_block,
        };
        let (key, variables) = self.prepare_step(step, Some(options))?;
        let inputs = &self.main().inputs[key.set];
        inputs.write_draft_rows(&**self.device(), from.iter().copied())?;
        Ok((key, variables))
    }
    /// Fills the cache of the draft block with the tokens of a chunk that has just run, if that is
    /// wanted. The first token counts as if none came before it.
    pub(super) fn fill_draft_cache(&mut self, step: &Step) -> Result<(), Error> {
        let chunk = step.chunk.filter(|chunk| chunk.fills_drafts);
        let fills = self.has_draft_block() && !self.shares_draft_cache();
        let Some(chunk) = chunk.filter(|_| fills) else {
            return Ok(());
        };
        let from: Vec<_> = (0..chunk.tokens.len())
            .map(|row| row.checked_sub(1))
            .collect();
        // Drafts are guesses: their rows may depend on where a prompt is cut.
        let chunk = Chunk {
            exact: false,
            logits: Logits::None,
            ..chunk
        };
        let fill = Step {
            chunk: Some(chunk),
            rows: &[],
            ..*step
        };
        self.run_drafts(&fill, DraftSource::Model, &from)?;
        Ok(())
    }
}
