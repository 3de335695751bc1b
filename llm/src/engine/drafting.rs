//! Steps of the block that drafts tokens.

use super::executor::Engine;
use super::graph_key::draft_options;
use super::step::{Chunk, Step, StepOutput};
use crate::arch::{DraftSource, Logits};
use crate::error::Error;

impl Engine {
    /// Returns whether the model has a draft block that is used.
    pub fn has_draft_block(&self) -> bool {
        self.settings.draft_block
    }
    /// Runs rows of the draft block and waits for them: for each token of `step` the row of hidden
    /// rows that comes before it, `from`, or none, which counts as 0. The tokens must be known.
    /// Decode rows choose the most probable token behind theirs; a chunk fills the block's cache
    /// alone.
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
        self.finish()?;
        let [of_model, of_block] =
            draft_options(&self.settings, self.limit.limits).expect("the model has a draft block");
        let options = match source {
            DraftSource::Model => of_model,
            DraftSource::Block => of_block,
        };
        let (key, variables) = self.prepare_step(step, Some(options))?;
        let inputs = &self.main().inputs[key.set];
        inputs.write_draft_rows(&**self.device(), from.iter().copied())?;
        self.replay(step, key, &variables)?;
        self.wait()
    }
    /// Fills the cache of the draft block with the tokens of a chunk that has just run, if that is
    /// wanted. The first token counts as if none came before it.
    pub(super) fn fill_draft_cache(&mut self, step: &Step) -> Result<(), Error> {
        let chunk = step.chunk.filter(|chunk| chunk.fills_drafts);
        let Some(chunk) = chunk.filter(|_| self.has_draft_block()) else {
            return Ok(());
        };
        let from: Vec<_> = (0..chunk.tokens.len())
            .map(|row| row.checked_sub(1))
            .collect();
        let chunk = Chunk {
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
