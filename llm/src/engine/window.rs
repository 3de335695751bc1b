//! Layers with windows of one sequence: whether it can be cut or gone on with, and rows that are put back.

use super::error::Error;
use super::executor::Engine;
use super::rows::Part;

impl Engine {
    /// Can the token at that position be run next, in the eyes of layers with windows?
    pub fn reaches(&self, position: usize) -> bool {
        self.seen.reaches(position)
    }
    /// The first position that all layers have a row of.
    pub fn first_position(&self) -> usize {
        self.seen.first
    }
    /// The positions before a token that it sees in layers with windows; none where there are no such layers.
    pub fn window(&self) -> Option<usize> {
        self.seen.before()
    }
    /// Puts rows of layers with windows back, one block after the other from that position on, as [`Engine::write_rows`] does; those before are gone.
    ///
    /// # Errors
    /// As for [`Engine::write_rows`].
    pub fn write_window<'r>(&mut self, position: usize, blocks: impl Iterator<Item = &'r [u8]>) -> Result<(), Error> {
        // An error on the way leaves nothing that is of use.
        self.seen.first = usize::MAX;
        let (mut at, bytes) = (position, self.row_bytes(Part::Window).max(1));
        for block in blocks {
            self.write_rows(Part::Window, at, block)?;
            at += block.len() / bytes;
        }
        self.seen.first = position;
        self.seen.step(position..at);
        Ok(())
    }
}
