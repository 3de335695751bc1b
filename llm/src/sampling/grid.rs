//! What every way to choose a token computes with: the logits in rows, and what is asked of rows.

use super::weight::scale;
use gristmill_tensor::dims;
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::dtype::Scalar;

/// Logits that one row of a [`Grid`] holds.
pub(super) const COLUMNS: usize = 256;

/// What is chosen with: numbers of one request, and the random number of this position.
#[derive(Clone, Copy)]
pub(super) struct RequestParams<'g> {
    /// What a logit's distance to the largest is multiplied with, see [`weight`](super::weight).
    pub scale: Tensor<'g>,
    /// Most ids that stay.
    pub top_k: Tensor<'g>,
    /// The probability that those that stay have together, as [`probability`](super::weight::probability) has it.
    pub top_p: Tensor<'g>,
    /// The logarithm of the fraction of the greatest probability that those that stay have at least.
    pub min_p: Tensor<'g>,
    /// That of the position the token is chosen for, see [`Random`](super::Random); i32.
    pub random: Tensor<'g>,
}

/// Logits `[n, vocabulary]` as parts of [`COLUMNS`] of each row, `[n, parts, COLUMNS]`; what is behind a row's last is below all others.
pub(super) fn parts_of_rows<'g>(logits: Tensor<'g>, n: Tensor<'g>, vocabulary: usize) -> Tensor<'g> {
    let (c, columns) = (logits.capture(), COLUMNS);
    let shape = dims![n, vocabulary.div_ceil(columns), columns];
    if vocabulary.is_multiple_of(columns) {
        return logits.reshape(shape);
    }
    let id = c.iota(shape, 1) * columns as i64 + c.iota(shape, 2);
    let place = c.iota(shape, 0) * vocabulary as i64 + id.clamp_index(vocabulary - 1);
    let all = logits.reshape(dims![n * vocabulary as i64]);
    id.lt(vocabulary as i64).select(all.gather(place), f64::from(f32::MIN))
}

/// Logits as rows of equal length, so that what is asked of all of them is asked of rows, then of rows' answers: a whole GPU takes
/// part in the first.
#[derive(Clone, Copy)]
pub(super) struct Grid<'g> {
    /// How many logits.
    pub vocabulary: usize,
    /// How many rows.
    pub rows: usize,
    /// How long each is.
    pub columns: usize,
    /// The logits `[rows, columns]`; what is behind the last is below all others.
    pub x: Tensor<'g>,
    /// Their ids, i32.
    pub id: Tensor<'g>,
    /// Is there such an id? Bool.
    pub inside: Tensor<'g>,
    /// The largest of each row.
    pub row_max: Tensor<'g>,
    /// The largest: a scalar.
    pub largest: Tensor<'g>,
}

impl<'g> Grid<'g> {
    pub fn new(logits: Tensor<'g>, vocabulary: usize) -> Grid<'g> {
        let c = logits.capture();
        let (rows, columns) = (vocabulary.div_ceil(COLUMNS), COLUMNS);
        let shape = dims![rows, columns];
        let id = c.iota(shape, 0) * columns as i64 + c.iota(shape, 1);
        let inside = id.lt(vocabulary as i64);
        let x = match vocabulary % columns {
            0 => logits.reshape(shape),
            _ => inside.select(logits.gather(id.clamp_index(vocabulary - 1)), f64::from(f32::MIN)),
        };
        let row_max = x.max(&[1]);
        Grid { vocabulary, rows, columns, x, id, inside, row_max, largest: row_max.max(&[0]) }
    }
    /// The first id with this logit.
    pub fn first_of(&self, logit: Tensor<'g>) -> Tensor<'g> {
        let row = first_true(self.row_max.equals(logit), self.rows);
        let column = first_true(self.row(self.x, row).equals(logit), self.columns);
        row * self.columns as i64 + column
    }
    /// One row of a tensor of this shape.
    pub fn row(&self, values: Tensor<'g>, row: Tensor<'g>) -> Tensor<'g> {
        values.gather(row.clamp_index(self.rows - 1).reshape(dims![1])).reshape(dims![self.columns])
    }
    /// The distance of every logit to the largest: none is above 0.
    pub fn below(&self) -> Tensor<'g> {
        self.x - self.largest
    }
    /// A sum over all, of rows first.
    pub fn sum(&self, values: Tensor<'g>) -> Tensor<'g> {
        values.sum(&[1]).sum(&[0])
    }
    /// Are all numbers that can be chosen from, and is there one? Comparisons with what is no number are false.
    pub fn sound(&self) -> Tensor<'g> {
        let below = self.x.lt(f64::from(f32::MAX)).cast(Scalar::I32);
        self.sum(below).equals((self.rows * self.columns) as i64) & self.largest.gt(f64::from(f32::MIN))
    }
}

/// The first place where `hit [n]` is true; the last place if nowhere.
pub(super) fn first_true(hit: Tensor<'_>, n: usize) -> Tensor<'_> {
    let last = n as i64 - 1;
    let back = -1i64; // so that the first place is the largest number
    let place = hit.capture().iota(dims![n], 0) * back + last;
    let none = hit.capture().constant(0.0, Scalar::I32);
    hit.select(place, none).max(&[0]) * back + last
}

/// Of each place the sum of `values [n]` up to it, itself included.
pub(super) fn sums_up_to(values: Tensor<'_>, n: usize) -> Tensor<'_> {
    let c = values.capture();
    let up_to = c.iota(dims![n, n], 1).lt(c.iota(dims![n, n], 0) + 1);
    up_to.select(values.unsqueeze(0), 0i64).sum(&[1])
}

/// Of each place the sum of those before it.
pub(super) fn sums_before(values: Tensor<'_>, n: usize) -> Tensor<'_> {
    let c = values.capture();
    let before = c.iota(dims![n, n], 1).lt(c.iota(dims![n, n], 0));
    before.select(values.unsqueeze(0), 0i64).sum(&[1])
}

/// How many places of `[n]` are true, i32.
pub(super) fn count(hit: Tensor<'_>) -> Tensor<'_> {
    hit.cast(Scalar::I32).sum(&[0])
}

/// The scale of probabilities, of which top-p takes its share: temperature comes after truncation.
pub(super) fn plain<'g>(like: Tensor<'g>) -> Tensor<'g> {
    like.capture().constant(f64::from(scale(1.0)), Scalar::F32)
}

/// Is `x` at least `limit`?
pub(super) fn at_least<'g>(x: Tensor<'g>, limit: Tensor<'g>) -> Tensor<'g> {
    limit.lt(x) | x.equals(limit)
}
