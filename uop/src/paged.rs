//! Rows of a pool that sequences share by pages: position `p` of a sequence lies in row `p mod page` of the page that its table has for block `p / page`.

use crate::dtype::Scalar;
use crate::graph::Graph;
use crate::id::Id;

impl Graph {
    /// Whole numbers as positions, i64, held within `0..=last`.
    pub fn within_positions(&mut self, x: Id, last: i64) -> Id {
        let (x, zero, last) = (self.cast(x, Scalar::I64), self.int(0), self.int(last));
        let x = self.min(x, last);
        self.max(x, zero)
    }
    /// The rows of a pool of `pages` pages of `page` rows where positions lie: those of the sequences in rows `row` of `table [rows, blocks]`, a constant number
    /// of blocks, of which no position is behind the last. What is no page counts as the nearest one. `row` and `positions` have the same dims, and so has the
    /// result: i64.
    pub fn slots(&mut self, row: Id, positions: Id, table: Id, [pages, page]: [i64; 2]) -> Id {
        let dims = self.shape(table);
        let entries = self.mul(dims[0], dims[1]);
        let entries = self.reshape(table, &[entries]);
        let of_row = self.mul(row, dims[1]);
        self.slots_from(Some(of_row), positions, entries, [pages, page])
    }
    /// The same of one sequence, whose pages are `table [blocks]`.
    pub fn slots_of_one(&mut self, positions: Id, table: Id, size: [i64; 2]) -> Id {
        self.slots_from(None, positions, table, size)
    }
    /// Those of positions whose sequence's pages stand from `first` on among `entries`.
    fn slots_from(&mut self, first: Option<Id>, positions: Id, entries: Id, [pages, page]: [i64; 2]) -> Id {
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
