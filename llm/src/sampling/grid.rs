//! Shared tensor code of the sampling functions: the grid of logits,
//! request parameters, prefix sums.

use super::weight::scale;
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::dtype::Scalar;

/// Logits per row of a [`Grid`].
pub(super) const COLUMNS: usize = 256;

/// Parameters of one request, and the random number of this position.
#[derive(Clone, Copy)]
pub(super) struct RequestParams<'g> {
    /// Factor from a logit's distance below the largest to an exponent,
    /// see [`weight`](super::weight).
    pub scale: Tensor<'g>,
    /// Maximum number of ids that remain.
    pub top_k: Tensor<'g>,
    /// Total probability of the ids that remain, in the unit of
    /// [`probability`](super::weight::probability).
    pub top_p: Tensor<'g>,
    /// Logarithm of the minimum fraction of the largest probability.
    pub min_p: Tensor<'g>,
    /// Random number of the position that the token is chosen for, see
    /// [`PositionRng`](super::PositionRng); i32.
    pub random: Tensor<'g>,
}

/// Returns the number of rows of a function that takes 1 to `max_rows`: a constant for one row,
/// otherwise the variable `n`.
pub(super) fn row_count(c: &Capture, max_rows: usize) -> Tensor<'_> {
    if max_rows == 1 {
        c.int(1)
    } else {
        c.var("n", 1, max_rows)
    }
}

/// Splits logits `[n, vocabulary]` into parts `[n, parts, COLUMNS]`, padded with
/// the lowest finite number.
pub(super) fn parts_of_rows<'g>(
    logits: Tensor<'g>,
    n: Tensor<'g>,
    vocabulary: usize,
) -> Tensor<'g> {
    let (c, columns) = (logits.capture(), COLUMNS);
    let shape = dims![n, vocabulary.div_ceil(columns), columns];
    if vocabulary.is_multiple_of(columns) {
        return logits.reshape(shape);
    }
    let id = c.iota(shape, 1) * columns as i64 + c.iota(shape, 2);
    let place = c.iota(shape, 0) * vocabulary as i64 + id.clamp_index(vocabulary - 1);
    let all = logits.reshape(dims![n * vocabulary as i64]);
    id.lt(vocabulary as i64)
        .select(all.gather(place), f64::from(f32::MIN))
}

/// Logits in rows of equal length, so that reductions run first within rows, over the whole GPU,
/// and then over rows.
#[derive(Clone, Copy)]
pub(super) struct Grid<'g> {
    pub vocabulary: usize,
    pub rows: usize,
    /// Length of a row.
    pub columns: usize,
    /// The logits `[rows, columns]`, padded with the lowest finite number.
    pub x: Tensor<'g>,
    /// Ids of the logits, i32.
    pub id: Tensor<'g>,
    /// Whether the id is in the vocabulary (not padding), bool.
    pub inside: Tensor<'g>,
    /// Largest logit of each row.
    pub row_max: Tensor<'g>,
    /// Largest logit, a scalar.
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
            _ => inside.select(
                logits.gather(id.clamp_index(vocabulary - 1)),
                f64::from(f32::MIN),
            ),
        };
        let row_max = x.max(&[1]);
        Grid {
            vocabulary,
            rows,
            columns,
            x,
            id,
            inside,
            row_max,
            largest: row_max.max(&[0]),
        }
    }
    /// Returns the first id with this logit.
    pub fn first_of(&self, logit: Tensor<'g>) -> Tensor<'g> {
        let row = first_true(self.row_max.equals(logit), self.rows);
        let column = first_true(self.row(self.x, row).equals(logit), self.columns);
        row * self.columns as i64 + column
    }
    /// Returns one row of a tensor of the grid's shape.
    pub fn row(&self, values: Tensor<'g>, row: Tensor<'g>) -> Tensor<'g> {
        values
            .gather(row.clamp_index(self.rows - 1).reshape(dims![1]))
            .reshape(dims![self.columns])
    }
    /// Returns every logit minus the largest; none is above 0.
    pub fn below(&self) -> Tensor<'g> {
        self.x - self.largest
    }
    /// Returns the sum over all rows.
    pub fn sum(&self, values: Tensor<'g>) -> Tensor<'g> {
        values.sum(&[1]).sum(&[0])
    }
    /// Returns whether no logit is NaN or +∞ and at least one is above −∞. Comparisons with NaN are
    /// false.
    pub fn sound(&self) -> Tensor<'g> {
        let below = self.x.lt(f64::from(f32::MAX)).cast(Scalar::I32);
        self.sum(below).equals((self.rows * self.columns) as i64)
            & self.largest.gt(f64::from(f32::MIN))
    }
}

/// Returns the first index at which `hit [n]` is true, or `n - 1` if there is none.
pub(super) fn first_true(hit: Tensor<'_>, n: usize) -> Tensor<'_> {
    let last = n as i64 - 1;
    let back = -1i64; // so that the first place is the largest number
    let place = hit.capture().iota(dims![n], 0) * back + last;
    let none = hit.capture().constant(0.0, Scalar::I32);
    hit.select(place, none).max(&[0]) * back + last
}

/// Returns the inclusive prefix sums of `values [n]`.
pub(super) fn inclusive_sums(values: Tensor<'_>, n: usize) -> Tensor<'_> {
    let c = values.capture();
    let up_to = c.iota(dims![n, n], 1).lt(c.iota(dims![n, n], 0) + 1);
    up_to.select(values.unsqueeze(0), 0i64).sum(&[1])
}

/// Returns the exclusive prefix sums of `values [n]`.
pub(super) fn exclusive_sums(values: Tensor<'_>, n: usize) -> Tensor<'_> {
    let c = values.capture();
    let before = c.iota(dims![n, n], 1).lt(c.iota(dims![n, n], 0));
    before.select(values.unsqueeze(0), 0i64).sum(&[1])
}

/// Returns the number of true elements of `[n]`, i32.
pub(super) fn count(hit: Tensor<'_>) -> Tensor<'_> {
    hit.cast(Scalar::I32).sum(&[0])
}

/// Returns the scale of probabilities for top-p, at temperature 1:
/// temperature comes after truncation.
pub(super) fn plain<'g>(like: Tensor<'g>) -> Tensor<'g> {
    like.capture().constant(f64::from(scale(1.0)), Scalar::F32)
}

/// Returns elementwise whether `x >= limit`.
pub(super) fn at_least<'g>(x: Tensor<'g>, limit: Tensor<'g>) -> Tensor<'g> {
    limit.lt(x) | x.equals(limit)
}
