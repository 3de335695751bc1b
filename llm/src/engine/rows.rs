//! Rows of the cache, and states, on their way to the host and back: what a prefix that is kept is made of.

use super::error::Error;
use super::executor::Engine;
use crate::arch::{Holds, Plane};
use std::ops::Range;

/// Bytes of zeros written at a time: a few hundred rows of a plane, so that there is little to allocate.
const CLEARED_AT_ONCE: usize = 256 << 10;

/// Which of a layer's rows: what a prefix is made of comes in two parts, as those of a window may be gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// Of layers that keep a row of every position.
    All,
    /// Of layers that keep those of a window.
    Window,
}

impl Part {
    fn has(self, plane: &Plane) -> bool {
        match plane.holds {
            Holds::All => self == Part::All,
            Holds::Window(_) => self == Part::Window,
            Holds::State => false,
        }
    }
}

impl Engine {
    /// What the cache holds of the tokens at these positions: of each layer, of each of its planes of that part, the rows.
    ///
    /// # Errors
    /// When positions lie outside the context, or the device fails.
    pub fn read_rows(&self, part: Part, positions: Range<usize>) -> Result<Vec<u8>, Error> {
        let mut out = vec![0; positions.len() * self.row_bytes(part)];
        let mut at = 0;
        self.each_plane(&[part], positions, |buffer, offset, len| {
            self.device().read(buffer, offset, &mut out[at..at + len])?;
            at += len;
            Ok(())
        })?;
        Ok(out)
    }
    /// Puts back what [`Engine::read_rows`] gave, at the position it came from: rows know where they stand.
    ///
    /// # Errors
    /// When they do not fit there, or the device fails.
    pub fn write_rows(&mut self, part: Part, position: usize, rows: &[u8]) -> Result<(), Error> {
        self.finish()?;
        let tokens = rows.len() / self.row_bytes(part).max(1);
        let mut at = 0;
        self.each_plane(&[part], position..position + tokens, |buffer, offset, len| {
            self.device().write(buffer, offset, &rows[at..at + len])?;
            at += len;
            Ok(())
        })
    }
    /// Makes these rows zeros, as all are at first. Attention reads whole chunks of rows, those behind the last token with weight 0, and 0 · NaN is
    /// NaN: rows that a failed step may have left are cleared before anything runs in front of them, as `Session` does.
    ///
    /// # Errors
    /// When positions lie outside the context, or the device fails.
    pub fn clear_rows(&mut self, positions: Range<usize>) -> Result<(), Error> {
        self.finish()?;
        self.seen.step(positions.clone());
        let zeros = vec![0; CLEARED_AT_ONCE];
        self.each_plane(&[Part::All, Part::Window], positions, |buffer, offset, len| {
            for at in (0..len).step_by(zeros.len()) {
                self.device().write(buffer, offset + at, &zeros[..zeros.len().min(len - at)])?;
            }
            Ok(())
        })
    }
    /// Bytes that a token takes in that part of the cache.
    pub fn row_bytes(&self, part: Part) -> usize {
        self.planes.iter().flatten().filter(|plane| part.has(plane)).map(Plane::row_bytes).sum()
    }
    /// Bytes that a sequence of so many tokens takes in a cache of its own.
    pub fn cache_bytes(&self, tokens: usize) -> usize {
        let rows = |plane: &Plane| if plane.is_state() { 1 } else { tokens.min(self.cache.plane_rows(plane)) };
        self.planes.iter().flatten().map(|plane| plane.bytes(rows(plane))).sum()
    }
    /// The states of all layers, one after the other: what they are after the last token that was run. Empty where a model has none.
    ///
    /// # Errors
    /// When the device fails.
    pub fn read_states(&self) -> Result<Vec<u8>, Error> {
        let mut out = vec![0; self.model.state_bytes()];
        let mut at = 0;
        for (buffer, len) in self.states().map(|(buffer, plane)| (buffer, plane.bytes(1))) {
            self.device().read(buffer, 0, &mut out[at..at + len])?;
            at += len;
        }
        Ok(out)
    }
    /// Puts back what [`Engine::read_states`] gave. The next step must be of the position that it was read at.
    ///
    /// # Errors
    /// When the device fails.
    pub fn write_states(&mut self, states: &[u8]) -> Result<(), Error> {
        self.finish()?;
        let mut at = 0;
        for (buffer, len) in self.states().map(|(buffer, plane)| (buffer, plane.bytes(1))) {
            self.device().write(buffer, 0, &states[at..at + len])?;
            at += len;
        }
        Ok(())
    }
    /// The planes that are states, and where they lie.
    pub(super) fn states(&self) -> impl Iterator<Item = (&gristmill_runtime::Buffer, &Plane)> {
        self.all_planes().filter(|(_, plane)| plane.is_state())
    }
    /// All planes, and where they lie.
    pub(super) fn all_planes(&self) -> impl Iterator<Item = (&gristmill_runtime::Buffer, &Plane)> {
        self.states.iter().flatten().zip(self.planes.iter().flatten())
    }
    /// Of a cache of one sequence, calls `visit` with every plane of these parts of every layer, and where rows of these positions begin and how many bytes they take
    /// there: of a ring, those of the last that it has room for, in one or two pieces.
    fn each_plane(
        &self,
        parts: &[Part],
        positions: Range<usize>,
        mut visit: impl FnMut(&gristmill_runtime::Buffer, usize, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if positions.end > self.context {
            return Err(Error::Full(self.context));
        }
        if self.pool.is_some() {
            return Err(Error::Pages);
        }
        for (buffer, plane) in self.all_planes().filter(|(_, plane)| parts.iter().any(|part| part.has(plane))) {
            let (rows, bytes) = (self.cache.plane_rows(plane), plane.row_bytes());
            let mut at = positions.start.max(positions.end.saturating_sub(rows));
            while at < positions.end {
                let (begin, n) = (at % rows, (positions.end - at).min(rows - at % rows));
                visit(buffer, begin * bytes, n * bytes)?;
                at += n;
            }
        }
        Ok(())
    }
}
