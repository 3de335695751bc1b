//! Runs of consecutive tokens of one sequence over several steps, with logits or hidden
//! rows on the host.

use super::executor::Engine;
use super::pages::Pages;
use super::step::{Chunk, Step};
use crate::arch::Logits;
use crate::error::Error;

/// Consecutive tokens of one sequence, run in one or more steps.
#[derive(Clone, Copy, Debug)]
pub struct TokenRun<'a> {
    /// Token ids, in order of position.
    pub tokens: &'a [u32],
    /// Position of the first token.
    pub position: usize,
    /// The sequence's pages up to the last token.
    pub pages: Pages<'a>,
    /// As for [`Step::contiguous`].
    pub contiguous: bool,
}

impl Engine {
    /// Runs tokens and returns the logits of the last or of all, row-major `[n, vocabulary]`.
    ///
    /// # Errors
    /// As for [`Engine::run`].
    pub fn logits(&mut self, run: TokenRun, logits: Logits) -> Result<Vec<f32>, Error> {
        let mut out = Vec::new();
        let vocabulary = self.model.vocabulary();
        self.run_steps(run, logits, &mut |engine, tokens, last| {
            let rows = match logits {
                Logits::All => tokens,
                _ => usize::from(last && logits == Logits::Last),
            };
            let begin = out.len();
            out.resize(begin + rows * vocabulary, 0.0);
            if rows > 0 {
                engine.device().read(
                    &engine.main().activations.logits,
                    0,
                    bytemuck::cast_slice_mut(&mut out[begin..]),
                )?;
            }
            Ok(())
        })?;
        Ok(out)
    }
    /// Runs tokens and passes `each` the hidden rows of every step: the last layer's output before
    /// the final norm, row-major `[n, width]`.
    ///
    /// # Errors
    /// As for [`Engine::run`].
    pub fn hidden_rows(
        &mut self,
        run: TokenRun,
        each: &mut dyn FnMut(&[f32]),
    ) -> Result<(), Error> {
        let mut rows = Vec::new();
        self.run_steps(run, Logits::None, &mut |engine, tokens, _| {
            rows.resize(tokens * engine.model.width(), 0f32);
            let last = engine.main().activations.hidden(engine.model.layers());
            engine
                .device()
                .read(last, 0, bytemuck::cast_slice_mut(&mut rows))?;
            each(&rows);
            Ok(())
        })
    }
    /// Runs tokens in steps. `each` gets the number of tokens of every step, and whether
    /// it is the last.
    fn run_steps(
        &mut self,
        run: TokenRun,
        logits: Logits,
        each: &mut dyn FnMut(&mut Engine, usize, bool) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.check_tokens(run.tokens)?;
        let end = run.position.checked_add(run.tokens.len());
        if end.is_none_or(|end| end > self.context) {
            return Err(Error::Full(self.context));
        }
        let (mut rest, mut position) = (run.tokens, run.position);
        while !rest.is_empty() {
            let most = self.limit.tokens(position, false, self.device().target());
            let most = if logits == Logits::All {
                most.min(self.chunk())
            } else {
                most
            };
            let (now, behind) = rest.split_at(rest.len().min(most));
            let last = behind.is_empty();
            let wanted = if last || logits == Logits::All {
                logits
            } else {
                Logits::None
            };
            let chunk = Chunk {
                tokens: now,
                position,
                pages: run.pages,
                exact: false,
                logits: wanted,
            };
            self.run(&Step {
                chunk: Some(chunk),
                contiguous: run.contiguous,
                ..Step::default()
            })?;
            each(self, now.len(), last)?;
            (rest, position) = (behind, position + now.len());
        }
        Ok(())
    }
    /// Reads one row of the last step's logits into `logits`: that of a decode row, or row 0
    /// of a prefill chunk.
    ///
    /// # Errors
    /// When the device fails.
    pub fn row_logits(&self, row: usize, logits: &mut Vec<f32>) -> Result<(), Error> {
        let vocabulary = self.model.vocabulary();
        logits.resize(vocabulary, 0.0);
        let at = row * vocabulary * size_of::<f32>();
        Ok(self.device().read(
            &self.main().activations.logits,
            at,
            bytemuck::cast_slice_mut(logits),
        )?)
    }
}
