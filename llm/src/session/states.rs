//! States of a model that keeps some: where in the sequence the device's stand, and copies of earlier ones, since a state cannot be cut to a shorter
//! beginning.

use super::{Error, Session};
use crate::arch::Logits;

/// Copies on the host: of two to three places of each of the last turns.
const MOST: usize = 16;
/// Bytes of copies, as long as there are more than two: those of Qwen3.5 35B are 66 MB each.
const MOST_BYTES: usize = 512 << 20;

/// What the states were after the first `len` tokens of a sequence.
#[derive(Clone, Debug)]
struct Copied {
    len: usize,
    states: Vec<u8>,
}

/// The states of a session.
#[derive(Clone, Default, Debug)]
pub(super) struct States {
    /// How many tokens the device's states have seen, of the sequence; none if they are of another one, or unknown.
    at: Option<usize>,
    /// By length, ascending.
    copies: Vec<Copied>,
}

impl States {
    /// The sequence is cut to so many tokens.
    pub fn cut(&mut self, len: usize) {
        self.at = self.at.filter(|&at| at <= len);
        self.copies.retain(|c| c.len <= len);
    }
    /// The device's states have seen so many tokens of the sequence.
    pub fn reached(&mut self, len: usize) {
        self.at = Some(len);
    }
    /// The device's states are of no use.
    pub fn lost(&mut self) {
        self.at = None;
    }
    /// The longest beginning of at most `len` tokens from which a step can go on.
    pub fn longest(&self, len: usize) -> usize {
        let copies = self.copies.iter().map(|c| c.len);
        copies.chain(self.at).filter(|&at| at <= len).max().unwrap_or(0)
    }
    /// The copies that there are: their lengths and bytes.
    pub fn copies(&self) -> impl Iterator<Item = (usize, &[u8])> {
        self.copies.iter().map(|c| (c.len, &c.states[..]))
    }
    /// A copy of what they are now, after so many tokens.
    pub fn copy(&mut self, len: usize, states: Vec<u8>) {
        if let Err(place) = self.copies.binary_search_by_key(&len, |c| c.len) {
            self.copies.insert(place, Copied { len, states });
        }
        let bytes = |copies: &[Copied]| copies.iter().map(|c| c.states.len()).sum::<usize>();
        while self.copies.len() > MOST || self.copies.len() > 2 && bytes(&self.copies) > MOST_BYTES {
            self.copies.remove(0);
        }
    }
}

impl Session {
    /// Makes the device's states those after the sequence: as they are, from a copy, or by running what follows the longest copy again.
    pub(super) fn settle_states(&mut self) -> Result<(), Error> {
        let len = self.tokens.len();
        let Some(states) = &mut self.states else { return Ok(()) };
        let from = states.longest(len);
        if states.at == Some(len) || len == 0 {
            // A step at the first position begins with zeros.
            states.reached(len);
            return Ok(());
        }
        if let Some(copied) = states.copies.iter().find(|c| c.len == from).filter(|_| states.at != Some(from)) {
            states.at = None;
            self.engine.write_states(&copied.states)?;
        }
        states.lost();
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
            && states.copies.iter().all(|c| c.len != len)
        {
            states.copy(len, self.engine.read_states()?);
        }
        Ok(())
    }
}
