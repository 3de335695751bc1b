//! Groups tokens by expert for prefill chunks: every expert's rows become tiles of equal height.
//!
//! One contraction over all tiles then serves all experts, with one weight address per tile.
//!
//! There is no sort. A slot's position within its expert is a count: slots of the same expert in
//! earlier blocks, plus those before it in its own block. For 2,048 tokens with 4 of 64 experts
//! each, that is 4 M comparisons a layer, against 150 M for all pairs; the experts take 50 G
//! multiply-adds.

use crate::dims;
use crate::tensor::Tensor;
use gristmill_uop::dtype::Scalar;

/// Tiles of a chunk's slots. Slot `token·k + choice` is one choice of one token.
#[derive(Clone, Copy)]
pub struct Tiles<'g> {
    /// Number of tiles in use: scalar i64, computed on the device, with a static upper bound.
    pub count: Tensor<'g>,
    /// The expert of each tile: `[count]` i32.
    pub expert: Tensor<'g>,
    /// The token of each row of the tiles: `[count·height]` i32. Padding rows have token 0.
    pub token: Tensor<'g>,
    /// The tile row of each slot: `[tokens, k]` i32.
    pub row: Tensor<'g>,
}

/// Slots in a block. With 8,192 slots there are 128 blocks: finding a row's block and then its slot
/// costs about as many comparisons each (128 and 64).
const BLOCK: i64 = 64;
/// Up to this number, all slots are one block: comparing all pairs is then no slower than the two
/// extra kernels of blocks (H100: all pairs take 5 us for 2,048 slots, 44 us for 8,192).
const ONE_BLOCK: usize = 1024;

/// Groups the choices `index [tokens, k]` (i32, below `experts`) into tiles of `height` rows.
///
/// `tokens` is the number of tokens, a scalar of at most `max_tokens`.
pub fn tiles<'g>(
    index: Tensor<'g>,
    tokens: Tensor<'g>,
    max_tokens: usize,
    experts: usize,
    height: usize,
) -> Tiles<'g> {
    let c = index.capture();
    let k = c.graph.borrow().max_of(index.dims()[1]) as usize;
    let (max_slots, h) = (max_tokens * k, height as i64);
    // Each expert pads at most height - 1 rows, and a tile holds at least one slot.
    let max_tiles = max_slots.min((max_slots + experts * (height - 1)) / height);
    let count = tokens * k as i64;
    let slots = Slots::new(index.reshape(dims![count]), count, max_slots, experts);

    let used = (slots.expert_counts() + (h - 1)) / h;
    let pairs = dims![experts, experts];
    let earlier = one(c.iota(pairs, 1).lt(c.iota(pairs, 0)));
    let start = (earlier * used.unsqueeze(0)).sum(&[1]);
    let count = used.sum(&[0]).clamp_index(max_tiles).cast(Scalar::I64);

    let row = start.gather(slots.expert) * h + slots.places();
    let row = row.clamp_index(max_tiles * height - 1);

    let of_tile = dims![count, experts];
    let ended = (start + used).unsqueeze(0).lt(c.iota(of_tile, 0) + 1);
    let expert = one(ended).sum(&[1]).clamp_index(experts - 1);

    let slot = slots.of_rows(row, expert, start, count, height);
    let token = slot.clamp_index(max_slots - 1) / k as i64;
    let row = row.reshape(dims![tokens, k]);
    c.set_inverse(token.id, row.id);
    c.set_inverse(row.id, slot.unsqueeze(1).id);
    Tiles {
        count,
        expert,
        token,
        row,
    }
}

/// Slots of a few tokens sorted by expert, so that slots of one expert are adjacent.
#[derive(Clone, Copy)]
pub struct Sorted<'g> {
    /// The expert of each sorted slot: `[tokens·k]` i32.
    pub expert: Tensor<'g>,
    /// The token of each sorted slot: `[tokens·k]` i32.
    pub token: Tensor<'g>,
    /// The sorted position of each slot: `[tokens, k]` i32.
    pub place: Tensor<'g>,
}

/// Sorts the choices `index [tokens, k]` (i32) by expert; stable.
///
/// Compares all pairs, which is two small kernels for up to a few hundred slots.
pub fn sorted<'g>(index: Tensor<'g>, tokens: Tensor<'g>) -> Sorted<'g> {
    let k = index.capture().graph.borrow().max_of(index.dims()[1]);
    let count = tokens * k;
    let expert = index.reshape(dims![count]);
    let lower = expert.unsqueeze(0).lt(expert.unsqueeze(1));
    let last = count.cast(Scalar::I32) - 1;
    let place = one(lower | same_before(expert, count))
        .sum(&[1])
        .minimum(last);
    let slot = slot_of_each(place, count, count).maximum(0).minimum(last);
    let (token, place) = (slot / k, place.reshape(dims![tokens, k as usize]));
    let c = index.capture();
    c.set_inverse(token.id, place.id);
    c.set_inverse(place.id, slot.unsqueeze(1).id);
    Sorted {
        expert: expert.gather(slot),
        token,
        place,
    }
}

/// Marks the earlier slots (`j < i`) of the same expert at `[i, j]`: `[count, count]` bool.
fn same_before<'g>(expert: Tensor<'g>, count: Tensor<'g>) -> Tensor<'g> {
    let (c, pairs) = (expert.capture(), dims![count, count]);
    expert.unsqueeze(1).equals(expert.unsqueeze(0)) & c.iota(pairs, 1).lt(c.iota(pairs, 0))
}

/// Inverts `row [count]`, the row of each slot: `[rows]` i32, the slot of each row or −1.
fn slot_of_each<'g>(row: Tensor<'g>, rows: Tensor<'g>, count: Tensor<'g>) -> Tensor<'g> {
    let (c, of_row) = (row.capture(), dims![rows, count]);
    let here = row.unsqueeze(0).equals(c.iota(of_row, 0));
    (one(here) * (c.iota(of_row, 1) + 1)).sum(&[1]) - 1
}

/// 1 where the condition holds, else 0, as i32.
fn one(holds: Tensor<'_>) -> Tensor<'_> {
    holds.cast(Scalar::I32)
}

/// The slots of a chunk with their experts.
struct Slots<'g> {
    /// The expert of each slot: `[count]` i32.
    expert: Tensor<'g>,
    /// Number of slots: scalar i64.
    count: Tensor<'g>,
    experts: usize,
    /// Counts per block, if there may be more than [`ONE_BLOCK`] slots.
    blocks: Option<Blocks<'g>>,
}

/// Per-expert counts of blocks of [`BLOCK`] neighbouring slots.
struct Blocks<'g> {
    /// Number of blocks: scalar i64.
    count: Tensor<'g>,
    /// Slots of each expert in each block: `[blocks, experts]` i32.
    within: Tensor<'g>,
    /// Slots of each expert in all earlier blocks: `[blocks, experts]` i32.
    before: Tensor<'g>,
}

impl<'g> Slots<'g> {
    /// Slots with experts `expert [count]`, at most `most` of them.
    fn new(expert: Tensor<'g>, count: Tensor<'g>, most: usize, experts: usize) -> Slots<'g> {
        let mut slots = Slots {
            expert,
            count,
            experts,
            blocks: None,
        };
        slots.blocks = (most > ONE_BLOCK).then(|| slots.in_blocks());
        slots
    }
    fn in_blocks(&self) -> Blocks<'g> {
        let c = self.expert.capture();
        let count = (self.count + (BLOCK - 1)) / BLOCK;
        let of_expert = dims![count, self.experts, BLOCK as usize];
        let slot = c.iota(of_expert, 0) * BLOCK + c.iota(of_expert, 2);
        let chosen = self
            .expert
            .gather(self.clamp_slots(slot))
            .equals(c.iota(of_expert, 1));
        let within = one(chosen & slot.lt(self.count.cast(Scalar::I32))).sum(&[2]);
        let pairs = dims![count, count, self.experts];
        let earlier = one(c.iota(pairs, 1).lt(c.iota(pairs, 0)));
        Blocks {
            count,
            within,
            before: (earlier * within.unsqueeze(0)).sum(&[1]),
        }
    }
    /// Clamps slot numbers to the last slot.
    fn clamp_slots(&self, slots: Tensor<'g>) -> Tensor<'g> {
        slots.minimum(self.count.cast(Scalar::I32) - 1)
    }
    /// Number of slots of each expert: `[experts]` i32.
    fn expert_counts(&self) -> Tensor<'g> {
        let Some(blocks) = &self.blocks else {
            let of_expert = dims![self.experts, self.count];
            return one(self
                .expert
                .unsqueeze(0)
                .equals(self.expert.capture().iota(of_expert, 0)))
            .sum(&[1]);
        };
        blocks.within.sum(&[0])
    }
    /// Number of earlier slots of the same expert, for each slot: `[count]` i32.
    fn places(&self) -> Tensor<'g> {
        let (c, e) = (self.expert.capture(), self.expert);
        let Some(blocks) = &self.blocks else {
            return one(same_before(e, self.count)).sum(&[1]);
        };
        let block = c.iota(dims![self.count], 0) / BLOCK;
        let pairs = dims![self.count, BLOCK as usize];
        let other = block.unsqueeze(1) * BLOCK + c.iota(pairs, 1);
        let same =
            e.gather(self.clamp_slots(other)).equals(e.unsqueeze(1)) & other.lt(c.iota(pairs, 0));
        let before = blocks
            .before
            .reshape(dims![blocks.count * self.experts as i64]);
        before.gather(block * self.experts as i64 + e) + one(same).sum(&[1])
    }
    /// The slot of each tile row, `[tiles·height]` i32; padding rows get −1 (one block) or 0.
    ///
    /// `row [count]` is the tile row of each slot, `expert [tiles]` the expert of each tile, and
    /// `start [experts]` the first tile of each expert.
    fn of_rows(
        &self,
        row: Tensor<'g>,
        expert: Tensor<'g>,
        start: Tensor<'g>,
        tiles: Tensor<'g>,
        height: usize,
    ) -> Tensor<'g> {
        let (c, h) = (row.capture(), height as i64);
        let rows = tiles * h;
        let Some(blocks) = &self.blocks else {
            return slot_of_each(row, rows, self.count);
        };
        let of_tile = dims![tiles, height];
        let place =
            (c.iota(of_tile, 0) - start.gather(expert).unsqueeze(1)) * h + c.iota(of_tile, 1);
        let ended = (blocks.before + blocks.within)
            .permute(&[1, 0])
            .gather(expert)
            .unsqueeze(1)
            .lt(place.unsqueeze(2) + 1);
        let block = one(ended).sum(&[2]).unsqueeze(2);
        let of_block = dims![tiles, height, BLOCK as usize];
        let slot = self.clamp_slots(block * BLOCK + c.iota(of_block, 2));
        let here = row
            .gather(slot)
            .equals(c.iota(of_block, 0) * h + c.iota(of_block, 1));
        here.select(slot, 0).max(&[2]).reshape(dims![rows])
    }
}
