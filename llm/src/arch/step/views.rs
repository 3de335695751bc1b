//! Views of the KV cache for attention: one sequence, or the whole pool.

/// One value per view of the cache; a mixed batch has both.
#[derive(Clone, Copy)]
pub(in super::super) struct Views<T> {
    /// View of one sequence, with rows in order of position.
    pub(super) piece: Option<T>,
    /// View of the whole page pool, for several sequences.
    pub(super) pool: Option<T>,
}

impl<T> Views<T> {
    /// Applies `of` to each view.
    pub fn map<U>(self, mut of: impl FnMut(T) -> U) -> Views<U> {
        let Views { piece, pool } = self;
        Views {
            piece: piece.map(&mut of),
            pool: pool.map(of),
        }
    }
    /// Pairs the values of each view that both have.
    pub(super) fn zip<U>(self, other: Views<U>) -> Views<(T, U)> {
        Views {
            piece: self.piece.zip(other.piece),
            pool: self.pool.zip(other.pool),
        }
    }
}
