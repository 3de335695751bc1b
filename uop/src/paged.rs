//! Block table lookup: position `p` of a sequence is row `p mod page` of the page in entry `p /
//! page` of its block table.

use crate::dtype::Scalar;
use crate::graph::Graph;
use crate::id::Id;

impl Graph {
    /// Converts integers to i64 positions clamped to `0..=last`.
    pub fn within_positions(&mut self, x: Id, last: i64) -> Id {
        let (x, zero, last) = (self.cast(x, Scalar::I64), self.int(0), self.int(last));
        let x = self.min(x, last);
        self.max(x, zero)
    }
    /// Maps positions to rows of a pool of `pages` pages with `page` rows each,
    /// through a block table.
    ///
    /// `table [rows, blocks]` has one row per sequence and a constant number of blocks; `row`
    /// selects the sequence. `row`, `positions` and the result (i64) have the same dims. No
    /// position may exceed the last block. Invalid page numbers are clamped to the nearest page.
    pub fn slots(&mut self, row: Id, positions: Id, table: Id, [pages, page]: [i64; 2]) -> Id {
        let dims = self.shape(table);
        let entries = self.mul(dims[0], dims[1]);
        let entries = self.reshape(table, &[entries]);
        let of_row = self.mul(row, dims[1]);
        self.slots_from(Some(of_row), positions, entries, [pages, page])
    }
    /// Like [`Graph::slots`] for a single sequence with block table `table [blocks]`.
    pub fn slots_of_one(&mut self, positions: Id, table: Id, size: [i64; 2]) -> Id {
        self.slots_from(None, positions, table, size)
    }
    /// Maps positions of a sequence with a block table that starts at `first` in `entries`.
    fn slots_from(
        &mut self,
        first: Option<Id>,
        positions: Id,
        entries: Id,
        [pages, page]: [i64; 2],
    ) -> Id {
        let page = self.int(page);
        let mut at = self.idiv(positions, page);
        if let Some(first) = first {
            at = self.add(first, at);
        }
        let number = self.gather(entries, at);
        let number = self.within_positions(number, pages - 1);
        let (begin, within) = (self.mul(number, page), self.modulo(positions, page));
        self.add(begin, within)
    }
}
