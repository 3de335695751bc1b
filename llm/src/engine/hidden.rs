//! Hidden rows behind the last layer, on the host: what a text means to the model, token by token.

use super::error::Error;
use super::executor::{Engine, Steps};
use crate::arch::Logits;

impl Engine {
    /// Runs `tokens` at `position` and after. `each` gets the rows behind the last layer, before the last norm: row-major `[n, width]`, in pieces.
    ///
    /// # Errors
    /// When there are no tokens, they are not in the vocabulary or do not fit into the context, or the device fails.
    pub fn hidden_rows(&mut self, tokens: &[u32], position: usize, each: &mut dyn FnMut(&[f32])) -> Result<(), Error> {
        self.check(tokens)?;
        if position.checked_add(tokens.len()).is_none_or(|end| end > self.context) {
            return Err(Error::Full(self.context));
        }
        self.finish()?;
        self.fill_rope(position + tokens.len())?;
        let last = self.hidden[self.model.layers() % self.hidden.len()].clone();
        let mut rows = Vec::new();
        let mut at = 0;
        while at < tokens.len() {
            let n = (tokens.len() - at).min(self.step_limit(position + at, Steps::Fitting));
            self.step(&tokens[at..at + n], position + at, Logits::None, Steps::Fitting)?;
            rows.resize(n * self.model.width(), 0f32);
            self.device().read(&last, 0, bytemuck::cast_slice_mut(&mut rows))?;
            each(&rows);
            at += n;
        }
        Ok(())
    }
}
