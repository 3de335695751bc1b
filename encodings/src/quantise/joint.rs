//! Codes that several elements share: points of a grid, signs with a parity, digits of a byte.

use super::group::Weighted;
use super::levels::{LANES, Lanes};
use super::points::{Points, SCRATCH, Scratch};

/// Largest number that is compared with points, far beyond all levels: squares stay finite.
const LIMIT: f32 = 1024.0;
/// Most parts of a cell.
pub(super) const MAX_PARTS: usize = 2;

/// The signs of a cell's elements, apart from the points of magnitudes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Signs {
    /// The points have signs of their own.
    None,
    /// A bit for each element.
    Each,
    /// A bit for each element but the last: an even number of elements is negative.
    Even,
}

/// Elements of a cell that share a code, and the values of each code.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// First of the elements in the cell.
    pub first: usize,
    pub len: usize,
    /// Number of bits of its code, those that cells share not counted.
    pub bits: usize,
    /// Values `[shared bits, code, element]`.
    pub values: Vec<f32>,
    /// Points to choose from, for each setting of the shared bits.
    pub points: Vec<Points>,
}

/// The meaning of a cell's bits.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    pub len: usize,
    pub signs: Signs,
    pub parts: Vec<Part>,
}

/// Elements with values that depend on the same bits.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub kind: usize,
    /// Elements of the block, ascending.
    pub elements: Vec<usize>,
    /// Bits of the block: of the signs, of each part, then those that other cells share.
    pub bits: Vec<usize>,
}

/// Cells of a block, in the order of their first elements.
#[derive(Clone, Debug)]
pub(super) struct Joint {
    pub cells: Vec<Cell>,
    pub kinds: Vec<Kind>,
    /// Settings of the bits that the cells of a group share.
    pub variants: usize,
    /// Whether elements have every combination of levels.
    pub is_free: bool,
}

/// The nearest point of a cell.
#[derive(Clone, Copy, Default)]
struct Rounded {
    signs: usize,
    codes: [usize; MAX_PARTS],
    cost: f32,
}

impl Signs {
    /// Number of sign bits of `len` elements.
    pub fn bits(self, len: usize) -> usize {
        match self {
            Signs::None => 0,
            Signs::Each => len,
            Signs::Even => len - 1,
        }
    }
    /// Sign of element `i` of `len`.
    fn factor(self, signs: usize, i: usize, len: usize) -> f32 {
        let is_negative = match self {
            Signs::None => false,
            Signs::Even if i + 1 == len => signs.count_ones() % 2 == 1,
            Signs::Each | Signs::Even => signs >> i & 1 == 1,
        };
        if is_negative { -1.0 } else { 1.0 }
    }
    /// Chooses the signs of numbers and divides these by them.
    fn split(self, x: &mut [f32], weights: &[f32]) -> usize {
        if self == Signs::None {
            return 0;
        }
        let mut signs = 0;
        for (i, x) in x.iter_mut().enumerate() {
            signs |= usize::from(*x < 0.0) << i;
            *x = x.abs();
        }
        if self == Signs::Even && signs.count_ones() % 2 == 1 {
            // The sign of the number that matters least is wrong.
            let cost = |i: &usize| weights[*i] * x[*i] * x[*i];
            let least = (0..x.len()).min_by(|a, b| cost(a).total_cmp(&cost(b)));
            if let Some(least) = least {
                signs ^= 1 << least;
                x[least] = -x[least];
            }
        }
        signs & ((1 << self.bits(x.len())) - 1)
    }
}

impl Part {
    /// Values of a code.
    fn values(&self, variant: usize, code: usize) -> &[f32] {
        &self.values[((variant << self.bits) + code) * self.len..][..self.len]
    }
}

impl Kind {
    /// Finds the nearest point of numbers, and replaces them by its values.
    fn round(
        &self,
        variant: usize,
        x: &mut [f32],
        weights: &[f32],
        scratch: &mut Scratch,
    ) -> Rounded {
        x.iter_mut().for_each(|x| *x = x.clamp(-LIMIT, LIMIT));
        let mut rounded = Rounded {
            signs: self.signs.split(x, weights),
            ..Rounded::default()
        };
        for (part, code) in self.parts.iter().zip(&mut rounded.codes) {
            let range = part.first..part.first + part.len;
            let (numbers, weights) = (&x[range.clone()], &weights[range.clone()]);
            let (cost, nearest) = part.points[variant].nearest(numbers, weights, scratch);
            rounded.cost += cost;
            *code = nearest;
            let values = part.values(variant, nearest).iter().zip(range);
            for (value, i) in values {
                x[i] = self.signs.factor(rounded.signs, i, self.len) * value;
            }
        }
        rounded
    }
    /// Rounds the cells of a chunk; returns the weighted squared distance.
    fn round_lanes(
        &self,
        variant: usize,
        x: &mut Lanes,
        weights: &Lanes,
        scratch: &mut Scratch,
    ) -> f32 {
        let cells = x.chunks_mut(self.len).zip(weights.chunks(self.len));
        cells
            .map(|(x, weights)| self.round(variant, x, weights, scratch).cost)
            .sum()
    }
}

impl Joint {
    /// Calls `each` with the numbers, the weights and the nearest values of every chunk of a group.
    pub fn visit(
        &self,
        group: Weighted<'_>,
        scaled: impl Fn(&Lanes) -> Lanes,
        mut each: impl FnMut(&Lanes, &Lanes, Lanes),
    ) {
        let kind = &self.kinds[0];
        let scratch = &mut SCRATCH.clone();
        let variant = self.best_variant(group, &scaled, scratch);
        for (x, weights) in group.lanes() {
            let mut level = scaled(x);
            kind.round_lanes(variant, &mut level, weights, scratch);
            each(x, weights, level);
        }
    }
    /// Setting of the shared bits with the least error of a group.
    fn best_variant(
        &self,
        group: Weighted<'_>,
        scaled: &impl Fn(&Lanes) -> Lanes,
        scratch: &mut Scratch,
    ) -> usize {
        if self.variants == 1 {
            return 0;
        }
        let mut cost = |variant: usize| -> f32 {
            let chunks = group.lanes();
            let cost = |(x, weights): (&Lanes, &Lanes)| {
                self.kinds[0].round_lanes(variant, &mut scaled(x), weights, scratch)
            };
            chunks.map(cost).sum()
        };
        let costs = (0..self.variants).map(|variant| (cost(variant), variant));
        let best = costs.min_by(|a, b| a.0.total_cmp(&b.0));
        best.map_or(0, |(_, variant)| variant)
    }
    /// Writes the codes of a group, which begins at element `first`, into zero bits.
    pub fn write(
        &self,
        first: usize,
        group: Weighted<'_>,
        scaled: impl Fn(&Lanes) -> Lanes,
        block: &mut [u8],
    ) {
        let scratch = &mut SCRATCH.clone();
        let variant = self.best_variant(group, &scaled, scratch);
        let mut levels = Vec::with_capacity(group.x.len());
        group.lanes().for_each(|(x, _)| levels.extend(scaled(x)));
        let from = self.cells.partition_point(|cell| cell.elements[0] < first);
        let cells = self.cells[from..].iter();
        for cell in cells.take_while(|cell| cell.elements[0] < first + levels.len()) {
            let kind = &self.kinds[cell.kind];
            let (mut x, mut weights) = ([0.0; LANES], [0.0; LANES]);
            for (i, element) in cell.elements.iter().enumerate() {
                (x[i], weights[i]) = (levels[element - first], group.weights[element - first]);
            }
            let (x, weights) = (&mut x[..kind.len], &weights[..kind.len]);
            let rounded = kind.round(variant, x, weights, scratch);
            let mut bits = cell.bits.iter();
            let mut put = |code: usize, count: usize| {
                for (i, bit) in bits.by_ref().take(count).enumerate() {
                    block[bit / 8] |= ((code >> i & 1) as u8) << (bit % 8);
                }
            };
            put(rounded.signs, kind.signs.bits(kind.len));
            for (part, code) in kind.parts.iter().zip(rounded.codes) {
                put(code, part.bits);
            }
            put(variant, usize::MAX);
        }
    }
    /// Values that elements may have.
    pub fn values(&self) -> impl Iterator<Item = f32> {
        let kinds = self.kinds.iter();
        kinds.flat_map(|kind| {
            let values = kind.parts.iter().flat_map(|part| &part.values);
            let negated = kind.signs != Signs::None;
            values.flat_map(move |&v| [v, if negated { -v } else { v }])
        })
    }
    /// Reads the levels of a block's elements.
    pub fn levels(&self, block: &[u8], out: &mut [f32]) {
        for cell in &self.cells {
            let kind = &self.kinds[cell.kind];
            let mut rest = &cell.bits[..];
            let mut take = |count: usize| {
                let (now, later) = rest.split_at(count.min(rest.len()));
                rest = later;
                let bit = |bit: &usize| usize::from(block[bit / 8] >> (bit % 8) & 1);
                let bits = now.iter().enumerate();
                bits.fold(0, |code, (i, of)| code | bit(of) << i)
            };
            let signs = take(kind.signs.bits(kind.len));
            let mut codes = [0; MAX_PARTS];
            for (part, code) in kind.parts.iter().zip(&mut codes) {
                *code = take(part.bits);
            }
            let variant = take(usize::MAX);
            for (part, code) in kind.parts.iter().zip(codes) {
                for (i, value) in part.values(variant, code).iter().enumerate() {
                    let i = part.first + i;
                    out[cell.elements[i]] = kind.signs.factor(signs, i, kind.len) * value;
                }
            }
        }
    }
}
