//! What a session does about its windows and states before a step and after it.

use super::{Error, Session};
use crate::arch::Logits;

impl Session {
    /// Makes layers with a window have those after the sequence: where they are gone, as behind a long answer that is taken back, all of it runs again, as it did.
    pub(super) fn settle_window(&mut self) -> Result<(), Error> {
        let len = self.tokens.len();
        if self.engine.reaches(len) {
            return Ok(());
        }
        self.doubt(0..len);
        self.lost();
        let (exact, rest) = self.tokens.split_at(self.exact);
        if !exact.is_empty() {
            self.engine.forward_chunks(exact, 0, Logits::None)?;
        }
        if !rest.is_empty() {
            self.engine.forward_with(rest, self.exact, Logits::None)?;
        }
        self.reached();
        Ok(())
    }
    /// Makes the device's states those after the sequence: as they are, from a copy, or by running what follows the longest copy again.
    pub(super) fn settle_states(&mut self) -> Result<(), Error> {
        let len = self.tokens.len();
        let Some(states) = &mut self.states else { return Ok(()) };
        let from = states.longest(len);
        if states.are_at(len) || len == 0 {
            // A step at the first position begins with zeros.
            states.reached(len);
            return Ok(());
        }
        let here = states.are_at(from);
        states.lost();
        if let Some(copied) = states.copied(from).filter(|_| !here) {
            self.engine.write_states(copied)?;
        }
        if from < len {
            self.exact = self.exact.min(from);
            self.doubt(from..len);
            self.engine.forward_with(&self.tokens[from..], from, Logits::None)?;
        }
        self.reached();
        Ok(())
    }
    /// The device's states have seen the whole sequence.
    pub(super) fn reached(&mut self) {
        if let Some(states) = &mut self.states {
            states.reached(self.tokens.len());
        }
    }
    /// Keeps a copy of the states after the sequence, which they have seen.
    pub(super) fn copy_states(&mut self) -> Result<(), Error> {
        let len = self.tokens.len();
        if let Some(states) = &mut self.states
            && len > 0
            && states.copied(len).is_none()
        {
            states.copy(len, self.engine.read_states()?);
        }
        Ok(())
    }
}
