//! Models that draft tokens: the block of a model, or another model.

use super::stats::DraftOrigin;
use crate::arch::{DraftSource, Logits};
use crate::engine::{Chunk, DecodeRow, Engine, PageCopy, Step};
use crate::error::Error;
use std::fmt;

/// A model that drafts the most probable next tokens of sequences. Its KV cache has rows in the
/// pages of the model that verifies them.
pub enum Drafter {
    /// The block of the model itself: see [`Engine::run_drafts`].
    Block,
    /// Another model with the same vocabulary.
    Model(Box<Engine>),
}

impl fmt::Debug for Drafter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.origin().name())
    }
}

impl Drafter {
    /// Creates one from another model.
    ///
    /// # Errors
    /// What keeps the models from working together: a vocabulary of another size, caches that are
    /// not pages of all positions, or fewer pages or rows.
    pub fn from_model(draft: Engine, engine: &Engine) -> Result<Drafter, String> {
        let vocabularies = [&draft, engine].map(|of| of.model().vocabulary());
        if vocabularies[0] != vocabularies[1] {
            let [own, of_model] = vocabularies;
            return Err(format!(
                "its vocabulary has {own} tokens, and the model's {of_model}"
            ));
        }
        let has_windows = |of: &Engine| of.cache().window_pages().is_some();
        if draft.cache().state_rows() > 0 || has_windows(&draft) || has_windows(engine) {
            let what = "recurrent states of the model that drafts, and pages of sliding windows";
            return Err(format!("{what}, have no drafts"));
        }
        let (own, pages) = (draft.cache().pages(), engine.cache().pages());
        let is_short = draft.context() < engine.context();
        if own < pages || is_short || draft.step_rows() < engine.step_rows() {
            return Err(format!(
                "its KV cache has {own} pages and {} positions a sequence, of {pages} and {}",
                draft.context(),
                engine.context()
            ));
        }
        Ok(Drafter::Model(Box::new(draft)))
    }
    /// Returns where its drafts come from.
    pub fn origin(&self) -> DraftOrigin {
        match self {
            Drafter::Block => DraftOrigin::Block,
            Drafter::Model(_) => DraftOrigin::Model,
        }
    }
    /// Returns whether it reads the hidden rows of the model's last step.
    pub(super) fn reads_hidden(&self) -> bool {
        matches!(self, Drafter::Block)
    }
    /// Returns whether it has no KV cache of its own and reads that of the model.
    pub(super) fn shares_cache(&self, engine: &Engine) -> bool {
        matches!(self, Drafter::Block) && engine.shares_draft_cache()
    }
    /// Fills its KV cache with consecutive tokens of a sequence. Hidden rows before them count
    /// as 0.
    pub(super) fn fill(&mut self, engine: &mut Engine, chunk: Chunk) -> Result<(), Error> {
        let most = match self {
            Drafter::Block => engine.chunk(),
            Drafter::Model(model) => model.longest_run(),
        };
        let from = vec![None; most.min(chunk.tokens.len())];
        for (nth, tokens) in chunk.tokens.chunks(most).enumerate() {
            let part = Chunk {
                tokens,
                position: chunk.position + nth * most,
                logits: Logits::None,
                ..chunk
            };
            let step = Step {
                chunk: Some(part),
                ..Step::default()
            };
            match self {
                Drafter::Block => {
                    engine.run_drafts(&step, DraftSource::Model, &from[..tokens.len()])?
                }
                Drafter::Model(model) => model.run(&step)?,
            };
        }
        Ok(())
    }
    /// Runs rows and returns the most probable token behind each. `from` has the hidden rows before
    /// them: of the model if they are the first of a draft, else of the rows that this ran last.
    pub(super) fn run(
        &mut self,
        engine: &mut Engine,
        rows: &[DecodeRow],
        (from, is_first): (&[Option<usize>], bool),
    ) -> Result<Vec<Option<u32>>, Error> {
        let step = Step {
            rows,
            ..Step::default()
        };
        let source = if is_first {
            DraftSource::Model
        } else {
            DraftSource::Block
        };
        let output = match self {
            Drafter::Block => engine.run_drafts(&step, source, from)?,
            Drafter::Model(model) => model.run(&step)?,
        };
        Ok(output.chosen)
    }
    /// Returns the number of steps that were captured for it so far.
    pub(super) fn captures(&self, engine: &Engine) -> u64 {
        match self {
            Drafter::Block => engine.captures(),
            Drafter::Model(model) => model.captures(),
        }
    }
    /// Copies a page of its KV cache as the model's was. The block's rows are part of that.
    pub(in crate::sched) fn copy_page(&mut self, copy: &PageCopy) -> Result<(), Error> {
        match self {
            Drafter::Block => Ok(()),
            Drafter::Model(model) => model.copy_page(copy),
        }
    }
}
