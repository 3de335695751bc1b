//! The choice of a token as a function of the device: from logits `[1, vocabulary]` to an id that the next step reads there, in ordinary
//! tensor ops. The chain is that of [`Sampler`](super::Sampler): top-k, top-p, min-p, temperature, draw.
//!
//! Every truncation keeps a prefix of the ids in descending order of their logits (of equal ones the lower id first). Up to [`BEST`]
//! ids are found in that order without sorting the vocabulary ([`best`](super::best)); more are told apart by the key of the
//! last that stays ([`wide`](super::wide)).

use super::best::best;
use super::weight::scale;
use super::wide::{Cut, wide};
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::Function;

/// Most ids that are put in order.
pub const BEST: usize = 64;
/// Numbers of a request.
pub const NUMBERS: usize = 4;

/// A way to choose.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Choice {
    /// The first of the largest logits.
    Greedy,
    /// One of the first k, at most [`BEST`].
    Best,
    /// One of the first k, however many.
    First,
    /// One of the fewest that have a probability together.
    Nucleus,
    /// One of all.
    All,
}

impl Choice {
    fn name(self) -> &'static str {
        match self {
            Choice::Greedy => "sample.greedy",
            Choice::Best => "sample.best",
            Choice::First => "sample.first",
            Choice::Nucleus => "sample.nucleus",
            Choice::All => "sample.all",
        }
    }
    /// Do a request's numbers and random numbers decide?
    pub fn draws(self) -> bool {
        self != Choice::Greedy
    }
}

/// Logits that one row of a [`Grid`] holds.
const COLUMNS: usize = 256;

/// What is chosen with: numbers of one request, and the random number of this position.
#[derive(Clone, Copy)]
pub(super) struct Request<'g> {
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

/// The function `sample.<choice>` for logits over a vocabulary and positions below `rows`. Its slots: logits `[1, vocabulary]` f32; where
/// random numbers decide, the request's numbers `[4]` f32 and a random number for each position `[rows]` i32; the ids chosen so far
/// `[rows]` i32, one a position, into which this one is written at `pos`; the id `[1]` i32, as the next step's token. Where no
/// token can be chosen (a logit is no number, or infinite, or none is above −∞), the id is −1.
pub fn function(choice: Choice, vocabulary: usize, rows: usize) -> Function {
    let c = Capture::new(choice.name());
    let logits = c.input("logits", dims![1, vocabulary], Scalar::F32).reshape(dims![vocabulary]);
    let pos = c.var("pos", 0, rows - 1);
    let grid = Grid::new(logits, vocabulary);
    let id = match choice {
        Choice::Greedy => grid.first_of(grid.largest),
        _ => {
            let numbers = c.input("request", dims![NUMBERS], Scalar::F32);
            let random = c.input("random", dims![rows], Scalar::I32);
            let number = |i: usize| numbers.slice(0, i, 1).reshape(dims![]);
            let request = Request {
                scale: number(0),
                top_k: number(1),
                top_p: number(2),
                min_p: number(3),
                random: random.slice(0, pos, 1).reshape(dims![]),
            };
            match choice {
                Choice::First => wide(&grid, &request, Cut::First),
                Choice::Nucleus => wide(&grid, &request, Cut::Nucleus),
                Choice::All => wide(&grid, &request, Cut::None),
                Choice::Greedy | Choice::Best => best(&grid, &request, BEST),
            }
        }
    };
    let none = c.constant(-1.0, Scalar::I32);
    let id = grid.sound().select(id.clamp_index(vocabulary - 1), none).reshape(dims![1]);
    let chosen = c.state("chosen", dims![rows], Scalar::I32);
    c.output_state(chosen.assign(id, pos));
    c.output("token", id);
    c.finish()
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
    fn new(logits: Tensor<'g>, vocabulary: usize) -> Grid<'g> {
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
    fn first_of(&self, logit: Tensor<'g>) -> Tensor<'g> {
        let row = first(self.row_max.equals(logit), self.rows);
        let column = first(self.row(self.x, row).equals(logit), self.columns);
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
    fn sound(&self) -> Tensor<'g> {
        let below = self.x.lt(f64::from(f32::MAX)).cast(Scalar::I32);
        self.sum(below).equals((self.rows * self.columns) as i64) & self.largest.gt(f64::from(f32::MIN))
    }
}

/// The first place where `hit [n]` is true; the last place if nowhere.
pub(super) fn first(hit: Tensor<'_>, n: usize) -> Tensor<'_> {
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
