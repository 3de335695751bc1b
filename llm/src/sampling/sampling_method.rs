//! Sampling as a device function in ordinary tensor ops: from logits `[1, vocabulary]` to an id
//! that the next step reads on the device. The chain is that of [`Sampler`](super::Sampler): top-k,
//! top-p, min-p, temperature, draw.
//!
//! Every truncation keeps a prefix of the ids in descending order of their logits (ties by
//! ascending id). Up to [`MAX_CANDIDATES`] ids are found in that order without sorting the
//! vocabulary ([`top_k`](super::top_k)); larger sets are cut at the key of the last kept
//! id ([`radix_select`](super::radix_select)).

use super::grid::{Grid, RequestParams};
use super::radix_select::{Truncation, radix_select};
use super::top_k::top_k;
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::Function;

/// Maximum number of ids that a device ranks in order.
pub const MAX_CANDIDATES: usize = 64;
/// Sampling parameters of a request: scale, top-k, top-p, min-p.
pub const REQUEST_PARAMS: usize = 4;

/// A sampling method that a device supports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum SamplingMethod {
    /// The first of the largest logits.
    Greedy,
    /// Top-k with at most [`MAX_CANDIDATES`] ids, optionally with top-p.
    SmallTopK,
    /// Top-k with more ids, without top-p.
    TopK,
    /// Top-p without top-k.
    TopP,
    /// All ids, without top-k and top-p.
    All,
}

impl SamplingMethod {
    fn name(self) -> &'static str {
        match self {
            SamplingMethod::Greedy => "sample.greedy",
            SamplingMethod::SmallTopK => "sample.best",
            SamplingMethod::TopK => "sample.first",
            SamplingMethod::TopP => "sample.nucleus",
            SamplingMethod::All => "sample.all",
        }
    }
}

/// Returns the function `sample.<choice>` for one row of logits.
///
/// Inputs: logits `[1, vocabulary]` f32; except for greedy, the request's parameters `[1, 4]` f32
/// and a random number `[1]` i32. Output: the id `[1]` i32, or −1 if a logit is NaN or infinite,
/// or none is above −∞.
pub fn sampling_function(choice: SamplingMethod, vocabulary: usize) -> Function {
    let c = Capture::new(choice.name());
    let logits = c
        .input("logits", dims![1, vocabulary], Scalar::F32)
        .reshape(dims![vocabulary]);
    let grid = Grid::new(logits, vocabulary);
    let id = match choice {
        SamplingMethod::Greedy => grid.first_of(grid.largest),
        _ => {
            let numbers = c
                .input("request", dims![1, REQUEST_PARAMS], Scalar::F32)
                .reshape(dims![REQUEST_PARAMS]);
            let random = c.input("random", dims![1], Scalar::I32);
            let number = |i: usize| numbers.slice(0, i, 1).reshape(dims![]);
            let request = RequestParams {
                scale: number(0),
                top_k: number(1),
                top_p: number(2),
                min_p: number(3),
                random: random.reshape(dims![]),
            };
            match choice {
                SamplingMethod::TopK => radix_select(&grid, &request, Truncation::TopK),
                SamplingMethod::TopP => radix_select(&grid, &request, Truncation::TopP),
                SamplingMethod::All => radix_select(&grid, &request, Truncation::None),
                SamplingMethod::Greedy | SamplingMethod::SmallTopK => {
                    top_k(&grid, &request, MAX_CANDIDATES)
                }
            }
        }
    };
    let none = c.constant(-1.0, Scalar::I32);
    let id = grid
        .sound()
        .select(id.clamp_index(vocabulary - 1), none)
        .reshape(dims![1]);
    c.output("tokens", id);
    c.finish()
}
