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

impl<'a> TokenRun<'a> {
    /// Returns a step of these tokens of the run.
    fn step(&self, tokens: &'a [u32], position: usize, logits: Logits) -> Step<'a> {
        Step {
            chunk: Some(Chunk {
                tokens,
                position,
                pages: self.pages,
                exact: false,
                logits,
                fills_drafts: false,
            }),
            contiguous: self.contiguous,
            ..Step::default()
        }
    }
}

impl Engine {
    /// Runs tokens and returns the logits of the last or of all, row-major `[n, vocabulary]`.
    ///
    /// # Errors
    /// As for [`Engine::run`].
    pub fn logits(&mut self, run: TokenRun, logits: Logits) -> Result<Vec<f32>, Error> {
        let mut out = Vec::new();
        if logits != Logits::All {
            self.check_run(&run)?;
            self.run(&run.step(run.tokens, run.position, logits))?;
            self.read_logits(usize::from(logits == Logits::Last), &mut out)?;
            return Ok(out);
        }
        self.run_steps(run, logits, &mut |engine, tokens| {
            engine.read_logits(tokens, &mut out)
        })?;
        Ok(out)
    }
    /// Appends the first `rows` rows of the last step's logits.
    fn read_logits(&self, rows: usize, out: &mut Vec<f32>) -> Result<(), Error> {
        let begin = out.len();
        out.resize(begin + rows * self.model.vocabulary(), 0.0);
        let bytes = bytemuck::cast_slice_mut(&mut out[begin..]);
        if !bytes.is_empty() {
            let logits = &self.main().activations.logits;
            self.device().read(logits, 0, bytes)?;
        }
        Ok(())
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
        self.run_steps(run, Logits::None, &mut |engine, tokens| {
            rows.resize(tokens * engine.model.width(), 0f32);
            engine.read_hidden(0, bytemuck::cast_slice_mut(&mut rows))?;
            each(&rows);
            Ok(())
        })
    }
    /// Reads the hidden row of the last token of the last step's prefill chunk, `[width]`: the last
    /// layer's output before the final norm.
    ///
    /// # Errors
    /// When the device fails.
    pub fn last_hidden_row(&self) -> Result<Vec<f32>, Error> {
        let mut row = vec![0f32; self.model.width()];
        let at = self.chunk_tokens.saturating_sub(1) * size_of_val(&row[..]);
        self.read_hidden(at, bytemuck::cast_slice_mut(&mut row))?;
        Ok(row)
    }
    /// Reads bytes of the hidden rows after the last layer, from byte `at`.
    pub(super) fn read_hidden(&self, at: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let layers = self.model.layers();
        let placement = &self.placement.chosen.placement;
        let home = placement.layer(layers.saturating_sub(1)).layer;
        let last = self.on[home].activations.hidden(layers);
        Ok(self.graphs.on(home).read(last, at, bytes)?)
    }
    fn check_run(&self, run: &TokenRun) -> Result<(), Error> {
        self.check_tokens(run.tokens)?;
        let end = run.position.checked_add(run.tokens.len());
        match end.is_none_or(|end| end > self.context) {
            true => Err(Error::Full(self.context)),
            false => Ok(()),
        }
    }
    /// Runs tokens in steps; `each` gets the number of tokens of every step.
    fn run_steps(
        &mut self,
        run: TokenRun,
        logits: Logits,
        each: &mut dyn FnMut(&mut Engine, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.check_run(&run)?;
        let (mut rest, mut position) = (run.tokens, run.position);
        while !rest.is_empty() {
            let most = self.limit.tokens(position, false, self.device().target());
            let most = if logits == Logits::All {
                most.min(self.chunk())
            } else {
                most
            };
            let (now, behind) = rest.split_at(rest.len().min(most));
            self.run(&run.step(now, position, logits))?;
            each(self, now.len())?;
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
