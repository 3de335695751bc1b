//! Prompts of which every token counts: how probable each was, and what the model made of it.

use super::pieces::rows_at_a_time;
use super::states::States;
use super::{Error, Fed, PIECE, Session};
use crate::arch::Logits;
use crate::engine::Part;
use std::ops::ControlFlow;
use std::time::Instant;

impl Session {
    /// Makes `prompt` the sequence, all of it run. `each` gets the number of every token but the first, and the logits that it is predicted
    /// from; it may break off. The logits after the last token stay.
    ///
    /// # Errors
    /// When the prompt is empty or longer than the context, or the model fails.
    pub fn score(
        &mut self,
        prompt: &[u32],
        each: &mut dyn FnMut(usize, &[f32]) -> ControlFlow<()>,
    ) -> Result<Fed, Error> {
        let vocabulary = self.engine.model().vocabulary();
        let most = rows_at_a_time(vocabulary, self.engine.chunk());
        self.whole(prompt, most, |session, piece, at| {
            let rows = session.engine.forward_with(piece, at, Logits::All)?;
            session.logits.clear();
            session.logits.extend_from_slice(&rows[rows.len() - vocabulary..]);
            let predicted = rows.chunks(vocabulary).zip(at + 1..prompt.len());
            let broken = predicted.into_iter().any(|(row, token)| each(token, row).is_break());
            Ok(if broken { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })
    }
    /// Makes `prompt` the sequence, all of it run. `each` gets the hidden rows behind the last layer, row-major `[n, width]`, piece by piece, and
    /// may break off.
    ///
    /// # Errors
    /// As for [`Session::score`].
    pub fn hidden(&mut self, prompt: &[u32], each: &mut dyn FnMut(&[f32]) -> ControlFlow<()>) -> Result<Fed, Error> {
        self.whole(prompt, PIECE, |session, piece, at| {
            let mut flow = ControlFlow::Continue(());
            session.engine.hidden_rows(piece, at, &mut |rows| {
                if flow.is_continue() {
                    flow = each(rows);
                }
            })?;
            Ok(flow)
        })
    }
    fn whole(
        &mut self,
        prompt: &[u32],
        most: usize,
        run: impl FnMut(&mut Session, &[u32], usize) -> Result<ControlFlow<()>, Error>,
    ) -> Result<Fed, Error> {
        let context = self.engine.context();
        if prompt.len() > context {
            return Err(Error::Prompt { prompt: prompt.len(), context });
        }
        self.engine.check(prompt)?;
        let fed = self.pieces(prompt, most, run);
        self.recovered(fed)
    }
    fn pieces(
        &mut self,
        prompt: &[u32],
        most: usize,
        mut run: impl FnMut(&mut Session, &[u32], usize) -> Result<ControlFlow<()>, Error>,
    ) -> Result<Fed, Error> {
        let start = Instant::now();
        self.finish()?;
        self.put_away()?;
        self.settle()?;
        let mut fed = Fed { complete: true, ..Fed::default() };
        for piece in prompt.chunks(most) {
            let at = self.tokens.len();
            self.logits.clear();
            self.doubt(at..at + piece.len());
            self.lost();
            let flow = run(self, piece, at)?;
            self.tokens.extend_from_slice(piece);
            self.trust_numbers();
            self.reached();
            fed.run += piece.len();
            if flow.is_break() {
                fed.complete = fed.run == prompt.len();
                break;
            }
        }
        fed.time = start.elapsed();
        Ok(fed)
    }
    /// Keeps the sequence among the prefixes, if there are any, and begins an empty one.
    fn put_away(&mut self) -> Result<(), Error> {
        self.drop_spoilt();
        self.keep()?;
        self.truncate(0);
        Ok(())
    }
    /// Keeps the sequence among the prefixes, if there are any.
    pub(super) fn keep(&mut self) -> Result<(), Error> {
        let Some(prefixes) = &mut self.prefixes else { return Ok(()) };
        let (engine, tokens, exact) = (&self.engine, &self.tokens, self.exact);
        prefixes.keep(tokens, exact, &mut |positions| engine.read_rows(Part::All, positions))?;
        if engine.window().is_some() {
            let read = &mut |positions| engine.read_rows(Part::Window, positions);
            prefixes.keep_window(tokens, exact, engine.first_position(), read)?;
        }
        for (len, states) in self.states.iter().flat_map(States::copies) {
            prefixes.keep_states(&tokens[..len], exact, states);
        }
        Ok(())
    }
}
