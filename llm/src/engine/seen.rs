//! What rings still have of a sequence: rows of the last positions, so that it can be cut, or gone on with, where those that the next token sees are there.

use super::class::CacheShape;
use crate::arch::Plane;
use std::ops::Range;

/// Which positions rings have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    /// Positions that a token sees of the widest window, and rows of the shortest ring; none where there are no windows.
    ring: Option<[usize; 2]>,
    /// The first position whose row is there.
    pub first: usize,
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
    /// The positions before a token that it sees in layers with windows; none where there are no such layers.
    pub fn before(&self) -> Option<usize> {
        self.ring.map(|[window, _]| window - 1)
    }
    /// Is all there that the token at that position sees before it?
    pub fn reaches(&self, position: usize) -> bool {
        self.ring.is_none_or(|[window, _]| position == 0 || position.saturating_sub(window - 1) >= self.first)
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
