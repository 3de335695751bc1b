//! Rows of the cache, and states, on their way to the host and back: what a prefix that is kept is made of.

use super::error::Error;
use super::executor::Engine;
use std::ops::Range;

/// Bytes of zeros written at a time: a few hundred rows of a plane, so that there is little to allocate.
const CLEARED_AT_ONCE: usize = 256 << 10;

impl Engine {
    /// What the cache holds of the tokens at these positions: of each layer, of each of its planes, the rows.
    ///
    /// # Errors
    /// When positions lie outside the context, or the device fails.
    pub fn read_rows(&self, positions: Range<usize>) -> Result<Vec<u8>, Error> {
        let mut out = vec![0; positions.len() * self.cache_bytes_per_token()];
        let mut at = 0;
        self.each_plane(positions, |buffer, offset, len| {
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
    pub fn write_rows(&mut self, position: usize, rows: &[u8]) -> Result<(), Error> {
        self.finish()?;
        let tokens = rows.len() / self.cache_bytes_per_token().max(1);
        let mut at = 0;
        self.each_plane(position..position + tokens, |buffer, offset, len| {
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
        let zeros = vec![0; CLEARED_AT_ONCE];
        self.each_plane(positions, |buffer, offset, len| {
            for at in (0..len).step_by(zeros.len()) {
                self.device().write(buffer, offset + at, &zeros[..zeros.len().min(len - at)])?;
            }
            Ok(())
        })
    }
    /// The states of all layers, one after the other: what they are after the last token that was run. Empty where a model has none.
    ///
    /// # Errors
    /// When the device fails.
    pub fn read_states(&self) -> Result<Vec<u8>, Error> {
        let mut out = vec![0; self.model.state_bytes()];
        let mut at = 0;
        for (buffer, len) in self.states() {
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
        for (buffer, len) in self.states() {
            self.device().write(buffer, 0, &states[at..at + len])?;
            at += len;
        }
        Ok(())
    }
    /// The buffer of every state, and its bytes.
    fn states(&self) -> impl Iterator<Item = (&gristmill_runtime::Buffer, usize)> {
        let all = self.states.iter().flatten().zip(self.planes.iter().flatten());
        all.filter(|(_, plane)| plane.fixed).map(|(buffer, plane)| (buffer, plane.fixed_bytes()))
    }
    /// Of a cache of one sequence, calls `visit` with every plane of rows of every layer, and where these positions begin and how many bytes they take there.
    fn each_plane(
        &self,
        positions: Range<usize>,
        mut visit: impl FnMut(&gristmill_runtime::Buffer, usize, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if positions.end > self.context {
            return Err(Error::Full(self.context));
        }
        if self.pool.is_some() {
            return Err(Error::Pages);
        }
        let planes = self.states.iter().flatten().zip(self.planes.iter().flatten());
        for (buffer, plane) in planes.filter(|(_, plane)| !plane.fixed) {
            visit(buffer, positions.start * plane.row_bytes(), positions.len() * plane.row_bytes())?;
        }
        Ok(())
    }
}
