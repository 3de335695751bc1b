//! Tokens grouped by expert, for chunks: every expert's rows become tiles of equal height, so that one contraction over
//! tiles serves all experts with one weight address a tile.
//!
//! No sort: places come from counting, by blocks of slots once these are many: how many of its expert lie in the blocks before a slot, and how many before it
//! in its own. For 2,048 tokens with 4 of 64 experts each that is 4 M comparisons a layer, where all pairs would be 150 M; the experts take 50 G multiply-adds.

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

/// Slots of a block: of 8,192 slots there are as many blocks, 128, as a row's search for its own block, and then for its slot there, takes comparisons together.
const BLOCK: i64 = 64;
/// Up to so many slots are one block: a kernel that compares all pairs of them takes no longer than the two more that blocks would need (H100, 5 us for 2,048 slots,
/// 44 for 8,192).
const ONE_BLOCK: usize = 1024;

/// Groups the choices `index [tokens, k]` (i32, below `experts`) into tiles of `height` rows. `tokens` is the number of
/// tokens, a scalar, at most `max_tokens`.
pub fn tiles<'g>(index: Tensor<'g>, tokens: Tensor<'g>, max_tokens: usize, experts: usize, height: usize) -> Tiles<'g> {
    let c = index.capture();
    let k = c.graph.borrow().max_of(index.dims()[1]) as usize;
    let (max_slots, h) = (max_tokens * k, height as i64);
    // Each expert wastes at most height - 1 rows, and a tile holds at least one slot.
    let max_tiles = max_slots.min((max_slots + experts * (height - 1)) / height);
    let count = tokens * k as i64;
    let slots = Slots::new(index.reshape(dims![count]), count, max_slots, experts);

    let used = (slots.of_experts() + (h - 1)) / h;
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
    Tiles { count, expert, token, row: row.reshape(dims![tokens, k]) }
}

/// The slots of a few tokens in the order of their experts, so that those who read the same come one after the other.
#[derive(Clone, Copy)]
pub struct Sorted<'g> {
    /// The expert of each: `[tokens·k]` i32.
    pub expert: Tensor<'g>,
    /// The token of each: `[tokens·k]` i32.
    pub token: Tensor<'g>,
    /// The place of each slot in that order: `[tokens, k]` i32.
    pub place: Tensor<'g>,
}

/// Sorts the choices `index [tokens, k]` (i32) by comparing all pairs: of up to a few hundred slots two small kernels.
pub fn sorted<'g>(index: Tensor<'g>, tokens: Tensor<'g>) -> Sorted<'g> {
    let k = index.capture().graph.borrow().max_of(index.dims()[1]);
    let count = tokens * k;
    let expert = index.reshape(dims![count]);
    let lower = expert.unsqueeze(0).lt(expert.unsqueeze(1));
    let last = count.cast(Scalar::I32) - 1;
    let place = one(lower | same_before(expert, count)).sum(&[1]).minimum(last);
    let slot = slot_of_each(place, count, count).maximum(0).minimum(last);
    Sorted { expert: expert.gather(slot), token: slot / k, place: place.reshape(dims![tokens, k as usize]) }
}

/// Of each slot which others come before it and have its expert: `[count, count]` bool.
fn same_before<'g>(expert: Tensor<'g>, count: Tensor<'g>) -> Tensor<'g> {
    let (c, pairs) = (expert.capture(), dims![count, count]);
    expert.unsqueeze(1).equals(expert.unsqueeze(0)) & c.iota(pairs, 1).lt(c.iota(pairs, 0))
}

/// The slot of each of so many rows, `[rows]` i32, where `row [count]` are the rows of all slots; −1 of a row that none has.
fn slot_of_each<'g>(row: Tensor<'g>, rows: Tensor<'g>, count: Tensor<'g>) -> Tensor<'g> {
    let (c, of_row) = (row.capture(), dims![rows, count]);
    let here = row.unsqueeze(0).equals(c.iota(of_row, 0));
    (one(here) * (c.iota(of_row, 1) + 1)).sum(&[1]) - 1
}

/// 1 where it holds, else 0.
fn one(holds: Tensor<'_>) -> Tensor<'_> {
    holds.cast(Scalar::I32)
}

/// Slots and their experts.
struct Slots<'g> {
    /// The expert of each: `[count]` i32.
    expert: Tensor<'g>,
    /// Their number: scalar i64.
    count: Tensor<'g>,
    /// Number of experts.
    experts: usize,
    /// Their blocks, where they are many.
    blocks: Option<Blocks<'g>>,
}

/// What blocks of [`BLOCK`] neighbouring slots have of each expert.
struct Blocks<'g> {
    /// Their number: scalar i64.
    count: Tensor<'g>,
    /// Slots of each expert in each block: `[blocks, experts]` i32.
    within: Tensor<'g>,
    /// Slots of each expert in all blocks before: `[blocks, experts]` i32.
    before: Tensor<'g>,
}

impl<'g> Slots<'g> {
    /// Slots with these experts, `[count]`, at most `most`.
    fn new(expert: Tensor<'g>, count: Tensor<'g>, most: usize, experts: usize) -> Slots<'g> {
        let mut slots = Slots { expert, count, experts, blocks: None };
        slots.blocks = (most > ONE_BLOCK).then(|| slots.in_blocks());
        slots
    }
    fn in_blocks(&self) -> Blocks<'g> {
        let c = self.expert.capture();
        let count = (self.count + (BLOCK - 1)) / BLOCK;
        let of_expert = dims![count, self.experts, BLOCK as usize];
        let slot = c.iota(of_expert, 0) * BLOCK + c.iota(of_expert, 2);
        let chosen = self.expert.gather(self.held(slot)).equals(c.iota(of_expert, 1));
        let within = one(chosen & slot.lt(self.count.cast(Scalar::I32))).sum(&[2]);
        let pairs = dims![count, count, self.experts];
        let earlier = one(c.iota(pairs, 1).lt(c.iota(pairs, 0)));
        Blocks { count, within, before: (earlier * within.unsqueeze(0)).sum(&[1]) }
    }
    /// Numbers of slots, the last for those behind it.
    fn held(&self, slots: Tensor<'g>) -> Tensor<'g> {
        slots.minimum(self.count.cast(Scalar::I32) - 1)
    }
    /// How many each expert has: `[experts]` i32.
    fn of_experts(&self) -> Tensor<'g> {
        let Some(blocks) = &self.blocks else {
            let of_expert = dims![self.experts, self.count];
            return one(self.expert.unsqueeze(0).equals(self.expert.capture().iota(of_expert, 0))).sum(&[1]);
        };
        blocks.within.sum(&[0])
    }
    /// How many of its expert come before each: `[count]` i32.
    fn places(&self) -> Tensor<'g> {
        let (c, e) = (self.expert.capture(), self.expert);
        let Some(blocks) = &self.blocks else {
            return one(same_before(e, self.count)).sum(&[1]);
        };
        let block = c.iota(dims![self.count], 0) / BLOCK;
        let pairs = dims![self.count, BLOCK as usize];
        let other = block.unsqueeze(1) * BLOCK + c.iota(pairs, 1);
        let same = e.gather(self.held(other)).equals(e.unsqueeze(1)) & other.lt(c.iota(pairs, 0));
        let before = blocks.before.reshape(dims![blocks.count * self.experts as i64]);
        before.gather(block * self.experts as i64 + e) + one(same).sum(&[1])
    }
    /// The slot of each row of tiles of `height` rows, `[tiles·height]` i32, where `row [count]` are the rows of all slots, and tiles are of `expert [tiles]`, whose
    /// first is `start [experts]`. Of a row that pads a tile −1, or any slot.
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
        let place = (c.iota(of_tile, 0) - start.gather(expert).unsqueeze(1)) * h + c.iota(of_tile, 1);
        let ended =
            (blocks.before + blocks.within).permute(&[1, 0]).gather(expert).unsqueeze(1).lt(place.unsqueeze(2) + 1);
        let block = one(ended).sum(&[2]).unsqueeze(2);
        let of_block = dims![tiles, height, BLOCK as usize];
        let slot = self.held(block * BLOCK + c.iota(of_block, 2));
        let here = row.gather(slot).equals(c.iota(of_block, 0) * h + c.iota(of_block, 1));
        here.select(slot, 0).max(&[2]).reshape(dims![rows])
    }
}
