//! Rows of several sequences, whose positions lie in pages of one pool: which row of the pool is read for a position. One that is behind a row's own is read from its
//! own row, one before its window from the window's first, and both count as nothing: no row reads what it does not see, whatever lies there.

use super::plan;
use super::tiled::AttentionShape;
use gristmill_uop::shape::PagedSources;
use gristmill_uop::{Graph, Id};

/// The pages of every row.
pub(super) struct Pages {
    /// `[rows, blocks]`.
    table: Id,
    /// Pages of the pool, and positions of each.
    size: [i64; 2],
    /// The last position that the table has.
    last: i64,
    /// Positions that a row sees, its own included, unless it sees all before it.
    window: Option<i64>,
}

/// The sources of an attention over the rows of a pool, with its pages: queries, keys and values `[rows of the pool, heads, d]`, the position of each row of
/// queries, what all of them are below, and window and sinks.
pub(super) fn in_rows(g: &mut Graph, of: &PagedSources) -> (Vec<Id>, Option<Pages>) {
    let (keys, blocks) = (g.shape(of.keys), g.shape(of.table)[1]);
    let size = [g.max_of(keys[0]), g.max_of(keys[1])];
    let rows = |g: &mut Graph, x: Id| {
        let dims = g.shape(x);
        let rows = g.mul(dims[0], dims[1]);
        g.reshape(x, &[rows, dims[2], dims[3]])
    };
    let (keys, values) = (rows(g, of.keys), rows(g, of.values));
    let mut src = vec![of.queries, keys, values, of.positions, of.length, g.int(of.window)];
    src.extend(of.sinks);
    let last = g.max_of(blocks) * size[1] - 1;
    let window = plan::window(g, &src);
    (src, Some(Pages { table: of.table, size, last, window }))
}

impl Pages {
    /// The position of each row, i64.
    pub fn positions(&self, g: &mut Graph, positions: Id) -> Id {
        g.within_positions(positions, self.last)
    }
    /// The rows of the pool, `[chunks, tokens, chunk]`, that are read for positions `real`, as many, of the sequences of rows at `positions`.
    pub fn rows(&self, g: &mut Graph, real: Id, positions: Id, shape: &AttentionShape) -> Id {
        let &AttentionShape { chunks, tokens, chunk, .. } = shape;
        let (dims, one) = ([chunks, tokens, chunk], g.int(1));
        let own = self.positions(g, positions);
        let own = g.reshape(own, &[one, tokens, one]);
        let own = g.expand(own, &dims);
        let (row, mut position) = (g.iota(&dims, 1), g.min(real, own));
        if let Some(window) = self.window {
            let back = g.int(1 - window);
            let begin = g.add(own, back);
            position = g.max(position, begin);
        }
        g.slots(row, position, self.table, self.size)
    }
}
