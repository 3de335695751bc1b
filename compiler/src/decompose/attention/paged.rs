//! Maps positions of several sequences to rows of a paged KV cache.
//!
//! Masked positions are clamped: one after the token's reads the token's own position, and one
//! before its window reads the window's first position. No token reads cache rows that it may not
//! attend to, so their content does not matter.

use super::plan;
use super::tiled::AttentionShape;
use gristmill_uop::shape::PagedSources;
use gristmill_uop::{Graph, Id};

/// Paged KV cache: the block table of every row, and the page size.
pub(super) struct Pages {
    /// Block table, `[rows, blocks]`.
    table: Id,
    /// Pages in the pool, and positions per page.
    size: [i64; 2],
    /// Last position that the block table can map.
    last: i64,
    /// Sliding-window size in positions, the row's own included; `None` for full attention.
    window: Option<i64>,
}

/// Returns the sources of an attention over the flattened page pool, and its pages.
///
/// Sources: queries, keys and values `[rows of the pool, heads, d]`, the position of each query
/// row, the length that bounds them, window and sinks.
pub(super) fn in_rows(g: &mut Graph, of: &PagedSources) -> (Vec<Id>, Option<Pages>) {
    let (keys, blocks) = (g.shape(of.keys), g.shape(of.table)[1]);
    let size = [g.max_of(keys[0]), g.max_of(keys[1])];
    let rows = |g: &mut Graph, x: Id| {
        let dims = g.shape(x);
        let rows = g.mul(dims[0], dims[1]);
        g.reshape(x, &[rows, dims[2], dims[3]])
    };
    let (keys, values) = (rows(g, of.keys), rows(g, of.values));
    let mut src = vec![
        of.queries,
        keys,
        values,
        of.positions,
        of.length,
        g.int(of.window),
    ];
    src.extend(of.sinks);
    let last = g.max_of(blocks) * size[1] - 1;
    let window = plan::window(g, &src);
    (
        src,
        Some(Pages {
            table: of.table,
            size,
            last,
            window,
        }),
    )
}

impl Pages {
    /// Position of each row, i64, bounded by the block table.
    pub fn positions(&self, g: &mut Graph, positions: Id) -> Id {
        g.within_positions(positions, self.last)
    }
    /// Returns the pool row read for each position of `real`, `[chunks, tokens, chunk]`.
    ///
    /// `positions` holds the position of each query row.
    pub fn rows(&self, g: &mut Graph, real: Id, positions: Id, shape: &AttentionShape) -> Id {
        let &AttentionShape {
            chunks,
            tokens,
            chunk,
            ..
        } = shape;
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
