//! What rings still have of a sequence: rows of the last positions, so that it can be cut, or gone on with, where those that the next token sees are there.

use super::class::CacheShape;
use super::error::Error;
use super::executor::Engine;
use super::rows::Part;
use crate::arch::Plane;
use std::ops::Range;

/// Which positions rings have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    /// Positions that a token sees of the widest window, and rows of the shortest ring; none where there are no windows.
    ring: Option<[usize; 2]>,
    /// The first position whose row is there.
    first: usize,
}

impl Seen {
    /// Of a cache of these planes in which nothing is yet.
    pub fn new<'p>(cache: &CacheShape, planes: impl Iterator<Item = &'p Plane>) -> Seen {
        let both = planes.filter_map(|plane| Some([plane.window()?, cache.plane_rows(plane)]));
        Seen { ring: both.reduce(|a, b| [a[0].max(b[0]), a[1].min(b[1])]), first: 0 }
    }
    /// A step is about to write rows of these positions. One at the first position begins a sequence.
    pub fn step(&mut self, positions: Range<usize>) {
        let Some([_, rows]) = self.ring else { return };
        let first = if positions.start == 0 { 0 } else { self.first };
        self.first = first.max(positions.end.saturating_sub(rows));
    }
    /// Is all there that the token at that position sees before it?
    fn reaches(&self, position: usize) -> bool {
        self.ring.is_none_or(|[window, _]| position == 0 || position.saturating_sub(window - 1) >= self.first)
    }
}

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
        self.seen.ring.map(|[window, _]| window - 1)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sequence_goes_on_where_its_window_is_there() {
        let mut seen = Seen { ring: Some([8, 64]), first: 0 };
        seen.step(0..60);
        assert!((0..=60).all(|at| seen.reaches(at)), "nothing was overwritten");
        seen.step(60..100);
        // Positions from 36 on are there, of which the token at 43 sees all of its window.
        assert_eq!(seen.first, 36);
        assert!(seen.reaches(0) && !seen.reaches(1) && !seen.reaches(42) && seen.reaches(43) && seen.reaches(100));
        // Cut back, and on: what is gone stays gone, until a sequence begins anew.
        seen.step(50..51);
        assert!(!seen.reaches(42) && seen.reaches(51));
        seen.step(0..1);
        assert!(seen.reaches(1));
        let none = Seen { ring: None, first: 0 };
        assert!(none.reaches(1 << 20));
    }
}
