//! Tokens grouped by expert, for chunks: every expert's rows become tiles of equal height, so that one contraction over
//! tiles serves all experts with one weight address a tile.
//!
//! No sort: places come from counting. For a chunk of 512 tokens with 4 experts each that is 4 M comparisons a layer,
//! against 10 G multiply-adds in the experts.

use crate::dims;
use crate::tensor::Tensor;
use gristmill_uop::dtype::Scalar;

/// Where the slots (token, choice) of a chunk go. A slot is `token·k + choice`.
#[derive(Clone, Copy)]
pub struct Tiles<'g> {
    /// Number of tiles in use: scalar i64, data of the device under a static maximum.
    pub count: Tensor<'g>,
    /// The expert of each tile: `[count]` i32.
    pub expert: Tensor<'g>,
    /// The token of each row of the tiles: `[count·height]` i32. Rows that pad a tile repeat token 0.
    pub token: Tensor<'g>,
    /// The row of each slot: `[tokens, k]` i32.
    pub row: Tensor<'g>,
}

/// Groups the choices `index [tokens, k]` (i32, below `experts`) into tiles of `height` rows. `tokens` is the number of
/// tokens, a scalar, at most `max_tokens`.
pub fn tiles<'g>(index: Tensor<'g>, tokens: Tensor<'g>, max_tokens: usize, experts: usize, height: usize) -> Tiles<'g> {
    let c = index.capture();
    let k = c.graph.borrow().max_of(index.dims()[1]) as usize;
    let (max_slots, h) = (max_tokens * k, height as i64);
    // Each expert wastes at most height - 1 rows, and a tile holds at least one slot.
    let max_tiles = max_slots.min((max_slots + experts * (height - 1)) / height);
    let slots = tokens * k as i64;
    let e = index.reshape(dims![slots]);
    let one = |hit: Tensor<'g>| hit.cast(Scalar::I32);

    let of_expert = dims![experts, slots];
    let counts = one(e.unsqueeze(0).equals(c.iota(of_expert, 0))).sum(&[1]);
    let used = (counts + (h - 1)) / h;
    let pairs = dims![experts, experts];
    let earlier = one(c.iota(pairs, 1).lt(c.iota(pairs, 0)));
    let start = (earlier * used.unsqueeze(0)).sum(&[1]);
    let count = used.sum(&[0]).clamp_index(max_tiles).cast(Scalar::I64);

    let slot_pairs = dims![slots, slots];
    let same = e.unsqueeze(1).equals(e.unsqueeze(0)) & c.iota(slot_pairs, 1).lt(c.iota(slot_pairs, 0));
    let row = start.gather(e) * h + one(same).sum(&[1]);
    let row = row.clamp_index(max_tiles * height - 1);

    let of_tile = dims![count, experts];
    let ended = (start + used).unsqueeze(0).lt(c.iota(of_tile, 0) + 1);
    let expert = one(ended).sum(&[1]).clamp_index(experts - 1);

    let of_row = dims![count * h, slots];
    let here = row.unsqueeze(0).equals(c.iota(of_row, 0));
    let slot = (one(here) * (c.iota(of_row, 1) + 1)).sum(&[1]) - 1;
    let token = slot.clamp_index(max_slots - 1) / k as i64;
    Tiles { count, expert, token, row: row.reshape(dims![tokens, k]) }
}
