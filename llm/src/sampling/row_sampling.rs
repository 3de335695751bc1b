//! Batched sampling as a device function: one token for each row, with parameters by row, from the
//! first few ids ([`SamplingMethod::SmallTopK`](super::SamplingMethod::SmallTopK)) or from all
//! ([`SamplingMethod::All`](super::SamplingMethod::All)). Greedy is the first of one.

use super::grid::{COLUMNS, at_least, parts_of_rows, plain, row_count};
use super::rng::PositionRng;
use super::rows::rows_function;
use super::sampler::Sampler;
use super::sampling_method::{MAX_CANDIDATES, REQUEST_PARAMS, SamplingMethod, sampling_function};
use super::top_ids::{LogitRows, top_ids};
use super::weight::{probability, probability_share_of, target_of, weight_of};
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::Function;

/// Sampling method and parameters of a sequence on the device.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct RowSampling {
    choice: SamplingMethod,
    /// Sampling parameters of the request.
    pub numbers: [f32; REQUEST_PARAMS],
    /// Generator of the request's seed; each token uses the number of its position.
    pub random: PositionRng,
}

impl RowSampling {
    /// Returns the device parameters of a sampler; `None` if the device does
    /// not support its method.
    pub fn new(sampler: &Sampler) -> Option<RowSampling> {
        match sampler.choice()? {
            SamplingMethod::Greedy => Some(RowSampling::greedy()),
            choice => Some(RowSampling {
                choice,
                numbers: sampler.numbers(),
                random: sampler.random(),
            }),
        }
    }
    /// Returns the device parameters of a sampler if they can be used in batched steps.
    pub fn for_batch(sampler: &Sampler) -> Option<RowSampling> {
        RowSampling::new(sampler).filter(|draws| draws.candidate_set().is_batched())
    }
    /// Returns the parameters of greedy sampling.
    pub fn greedy() -> RowSampling {
        let numbers = [0.0, 1.0, probability(1.0), f32::MIN];
        RowSampling {
            choice: SamplingMethod::Greedy,
            numbers,
            random: PositionRng::new(0),
        }
    }
    /// Returns the candidate set that this method samples from.
    pub fn candidate_set(&self) -> CandidateSet {
        match self.choice {
            SamplingMethod::Greedy => CandidateSet::Top1,
            SamplingMethod::SmallTopK => CandidateSet::SmallTopK,
            SamplingMethod::TopK => CandidateSet::TopK,
            SamplingMethod::TopP => CandidateSet::TopP,
            SamplingMethod::All => CandidateSet::All,
        }
    }
}

/// Candidate set of the rows of a step: the ids that the device must consider.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CandidateSet {
    /// The most probable id of each row.
    Top1,
    /// The first few ids, at most [`MAX_CANDIDATES`].
    SmallTopK,
    /// The first k ids, for any k; only in steps with one row.
    TopK,
    /// The fewest ids with a given total probability; only in steps with one row.
    TopP,
    /// All ids of the vocabulary.
    All,
    /// The first few ids for some rows, all ids for others.
    Mixed,
}

impl CandidateSet {
    /// Returns whether steps with several rows support it.
    pub fn is_batched(self) -> bool {
        !matches!(self, CandidateSet::TopK | CandidateSet::TopP)
    }
    /// Returns the candidate set of a step with rows of both kinds.
    pub fn and(self, other: CandidateSet) -> CandidateSet {
        match (self, other) {
            (a, b) if a == b => a,
            (CandidateSet::Top1, CandidateSet::SmallTopK)
            | (CandidateSet::SmallTopK, CandidateSet::Top1) => CandidateSet::SmallTopK,
            _ => CandidateSet::Mixed,
        }
    }
    /// Returns the function that samples up to `max_rows` rows of logits:
    /// [`sampling_function`], [`rows_function`] or [`row_sampling_function`].
    pub fn function(self, vocabulary: usize, max_rows: usize) -> Function {
        let choice = match self {
            CandidateSet::Top1 => SamplingMethod::Greedy,
            CandidateSet::SmallTopK => SamplingMethod::SmallTopK,
            CandidateSet::TopK => SamplingMethod::TopK,
            CandidateSet::TopP => SamplingMethod::TopP,
            CandidateSet::All => SamplingMethod::All,
            CandidateSet::Mixed => return row_sampling_function(vocabulary, max_rows, self),
        };
        match (max_rows, self) {
            (1, _) => sampling_function(choice, vocabulary),
            (_, CandidateSet::Top1) => rows_function(vocabulary, max_rows),
            _ => row_sampling_function(vocabulary, max_rows, self),
        }
    }
}

/// Returns `sample.best.rows`, `sample.all.rows` or `sample.drawn.rows` for `n` rows of logits, `n`
/// from 1 to `max_rows`.
///
/// Inputs: logits `[n, vocabulary]` f32; parameters of each request `[n, 4]` f32, with top-k at
/// most [`MAX_CANDIDATES`], or 0 for all; a random number for each `[n]` i32. Output: ids `[n]`
/// i32, or −1 if a logit is NaN or infinite, or none is above −∞.
pub fn row_sampling_function(vocabulary: usize, max_rows: usize, among: CandidateSet) -> Function {
    let name = match among {
        CandidateSet::Top1 | CandidateSet::SmallTopK => "best",
        CandidateSet::All => "all",
        CandidateSet::Mixed => "drawn",
        CandidateSet::TopK | CandidateSet::TopP => unreachable!("{among:?} is chosen for one row"),
    };
    let c = Capture::new(format!("sample.{name}.rows{max_rows}"));
    let n = row_count(&c, max_rows);
    let (parts, columns) = (vocabulary.div_ceil(COLUMNS), COLUMNS);
    let logits = c.input("logits", dims![n, vocabulary], Scalar::F32);
    let numbers = c.input("requests", dims![n, REQUEST_PARAMS], Scalar::F32);
    let random = c.input("random", dims![n], Scalar::I32);
    let x = parts_of_rows(logits, n, vocabulary);
    let of_part = x.max(&[2]);
    let largest = of_part.max(&[1]);
    let of = RowSampler {
        x,
        of_part,
        largest,
        n,
        vocabulary,
        numbers,
        random,
    };
    let id = match among {
        CandidateSet::Top1 | CandidateSet::SmallTopK => of.among_first(),
        CandidateSet::All => of.among_all(),
        CandidateSet::TopK | CandidateSet::TopP => unreachable!("{among:?} is chosen for one row"),
        CandidateSet::Mixed => numbers
            .slice(1, 1, 1)
            .reshape(dims![n])
            .lt(0.5)
            .select(of.among_all(), of.among_first()),
    };
    // Comparisons with NaN are false.
    let numbers = x
        .lt(f64::from(f32::MAX))
        .cast(Scalar::I32)
        .sum(&[2])
        .sum(&[1]);
    let sound = numbers.equals((parts * columns) as i64) & largest.gt(f64::from(f32::MIN));
    c.output(
        "tokens",
        sound.select(
            id.clamp_index(vocabulary - 1),
            c.constant(-1.0, Scalar::I32),
        ),
    );
    c.finish()
}

/// Rows of logits with sampling parameters.
pub(super) struct RowSampler<'g> {
    /// The logits in parts `[n, parts, COLUMNS]`, padded with the lowest finite number.
    pub x: Tensor<'g>,
    /// The largest logit of each part `[n, parts]`, and of each row `[n]`.
    pub of_part: Tensor<'g>,
    pub largest: Tensor<'g>,
    /// Number of rows, a scalar.
    pub n: Tensor<'g>,
    pub vocabulary: usize,
    /// Parameters of each request `[n, REQUEST_PARAMS]`.
    pub numbers: Tensor<'g>,
    /// Random number of each request `[n]` i32.
    pub random: Tensor<'g>,
}

impl<'g> RowSampler<'g> {
    /// Returns parameter `i` of each row, `[n, 1]`.
    fn number(&self, i: usize) -> Tensor<'g> {
        self.numbers.slice(1, i, 1)
    }
    fn parts(&self) -> usize {
        self.vocabulary.div_ceil(COLUMNS)
    }
    /// Samples an id `[n]` for each row from its first few ids.
    fn among_first(&self) -> Tensor<'g> {
        let &RowSampler {
            x,
            of_part,
            largest,
            n,
            vocabulary,
            random,
            ..
        } = self;
        let (scale, top_k, top_p, min_p) = (
            self.number(0),
            self.number(1),
            self.number(2).reshape(dims![n]),
            self.number(3),
        );
        let c = x.capture();
        let (best, id) = top_ids(
            &LogitRows {
                x,
                of_row: of_part,
                n,
                rows: self.parts(),
                columns: COLUMNS,
            },
            MAX_CANDIDATES,
        );
        let below = best - largest.unsqueeze(1);
        let (among, none) = (
            c.iota(dims![n, MAX_CANDIDATES], 1)
                .lt(top_k.cast(Scalar::I32)),
            c.constant(0.0, Scalar::I64),
        );
        // Probabilities are relative to the first k; an id remains while the ids before it have
        // less than top-p in total.
        let mass = among.select(weight_of(below, plain(below)), none);
        let wanted = probability_share_of(mass.sum(&[1]), top_p).unsqueeze(1);
        let inside = id.lt(vocabulary as i64);
        let stays = among
            & inside
            & prefix_sums(mass, MAX_CANDIDATES, 0).lt(wanted)
            & at_least(best, largest.unsqueeze(1) + min_p);
        let weight = stays.select(weight_of(below, scale), none);
        let target = target_of(weight.sum(&[1]), random).unsqueeze(1);
        let place = first_reached(weight, target, MAX_CANDIDATES).clamp_index(MAX_CANDIDATES - 1)
            + c.iota(dims![n], 0) * MAX_CANDIDATES as i64;
        id.reshape(dims![n * MAX_CANDIDATES as i64]).gather(place)
    }
    /// Samples an id `[n]` for each row from all ids in ascending order: first the part in which
    /// the prefix sum of weights reaches the target, then the index within it.
    pub fn among_all(&self) -> Tensor<'g> {
        let &RowSampler { x, n, random, .. } = self;
        let (c, parts, columns) = (x.capture(), self.parts(), COLUMNS as i64);
        let id =
            c.iota(dims![n, parts, COLUMNS], 1) * columns + c.iota(dims![n, parts, COLUMNS], 2);
        let weight = self.weight(x, id);
        let of_part = weight.sum(&[2]);
        let target = target_of(of_part.sum(&[1]), random).unsqueeze(1);
        let part = first_reached(of_part, target, parts).clamp_index(parts - 1);
        let before = c
            .iota(dims![n, parts], 1)
            .lt(part.unsqueeze(1))
            .select(of_part, 0i64)
            .sum(&[1])
            .unsqueeze(1);
        // The weights of that part are recomputed.
        let row = c.iota(dims![n], 0) * parts as i64 + part;
        let own = x.reshape(dims![n * parts as i64, COLUMNS]).gather(row);
        let first = part.unsqueeze(1) * columns;
        let weight = self.weight(
            own.unsqueeze(1),
            (first + c.iota(dims![n, COLUMNS], 1)).unsqueeze(1),
        );
        let place = first_reached(weight.reshape(dims![n, COLUMNS]), target - before, COLUMNS);
        part * columns + place
    }
    /// Returns the weights of logits `[n, .., ..]` with these ids at each row's temperature;
    /// 0 for truncated ids.
    fn weight(&self, x: Tensor<'g>, id: Tensor<'g>) -> Tensor<'g> {
        let [largest, min_p, scale] =
            [self.largest.unsqueeze(1), self.number(3), self.number(0)].map(|of| of.unsqueeze(1));
        let stays = at_least(x, largest + min_p) & id.lt(self.vocabulary as i64);
        stays.select(
            weight_of(x - largest, scale),
            x.capture().constant(0.0, Scalar::I64),
        )
    }
}

/// Returns for each row of weights `[n, m]` the first index with an inclusive prefix sum above the
/// target `[n, 1]`; `m` if there is none.
fn first_reached<'g>(weight: Tensor<'g>, target: Tensor<'g>, m: usize) -> Tensor<'g> {
    target
        .lt(prefix_sums(weight, m, 1))
        .cast(Scalar::I32)
        .sum(&[1])
        * -1i64
        + m as i64
}

/// Returns the prefix sums of rows `[n, m]`; each includes `own` elements from its index on
/// (0: exclusive, 1: inclusive).
fn prefix_sums(values: Tensor<'_>, m: usize, own: i64) -> Tensor<'_> {
    let square = dims![m, m];
    let c = values.capture();
    let counts = c.iota(square, 1).lt(c.iota(square, 0) + own);
    counts
        .unsqueeze(0)
        .select(values.unsqueeze(1), 0i64)
        .sum(&[2])
}

/// Returns the function `sample.next`, which gathers the tokens of a step of `n` rows, `n`
/// from 1 to `max_rows`.
///
/// Inputs: the ids chosen for the rows of the previous step `[max_rows]` i32; for each row its
/// index there, or −1, `[n]` i32; the id to use for −1 `[n]` i32. Output: the tokens `[n]` i32.
pub fn next_function(max_rows: usize) -> Function {
    let c = Capture::new(format!("sample.next{max_rows}"));
    let n = row_count(&c, max_rows);
    let chosen = c.input("chosen", dims![max_rows], Scalar::I32);
    let (from, given) = (
        c.input("from", dims![n], Scalar::I32),
        c.input("given", dims![n], Scalar::I32),
    );
    let before = chosen.gather(from.clamp_index(max_rows - 1));
    c.output("tokens", from.lt(0).select(given, before));
    c.finish()
}
