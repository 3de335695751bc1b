//! What a cache holds in the eyes of attention: a step's tokens may see it in two ways.

/// A value for each way in which a cache is seen.
#[derive(Clone, Copy)]
pub(in super::super) struct Views<T> {
    /// Of one sequence, whose positions are rows one behind the other.
    pub(super) piece: Option<T>,
    /// Of several: all of a pool.
    pub(super) pool: Option<T>,
}

impl<T> Views<T> {
    /// The same of what `of` makes of each.
    pub fn map<U>(self, mut of: impl FnMut(T) -> U) -> Views<U> {
        let Views { piece, pool } = self;
        Views { piece: piece.map(&mut of), pool: pool.map(of) }
    }
    /// Both of each.
    pub(super) fn zip<U>(self, other: Views<U>) -> Views<(T, U)> {
        Views { piece: self.piece.zip(other.piece), pool: self.pool.zip(other.pool) }
    }
}
