//! Sampling: from logits to a token.
//!
//! The chain is llama.cpp's: penalties, top-k, top-p, min-p, temperature, draw. Temperature comes
//! *after* truncation (Hugging Face applies it before, so equal settings truncate differently
//! there). The token depends only on the seed, the history and the logits: random numbers belong to
//! positions ([`PositionRng`]), and weights are integers ([`weight`]), so that a device and the
//! host choose the same.

mod candidates;
mod candidates_function;
mod device_sampler;
mod grid;
mod params;
mod radix_select;
mod rng;
mod row_sampling;
mod rows;
mod sampler;
mod sampling_method;
mod stop;
mod tokens;
mod top_ids;
mod top_k;
mod weight;

pub use candidates::Candidates;
pub use candidates_function::{MAX_CHANGED_LOGITS, candidates_function};
pub(crate) use device_sampler::DeviceSampler;
pub use device_sampler::RowParams;
pub(crate) use params::GARBAGE;
pub use params::{SamplingError, SamplingParams};
pub use rng::{PositionRng, RANDOM_BITS};
pub use row_sampling::{CandidateSet, RowSampling, next_function, row_sampling_function};
pub use rows::rows_function;
pub use sampler::{Sampler, not_a_number};
pub use sampling_method::{MAX_CANDIDATES, REQUEST_PARAMS, SamplingMethod, sampling_function};
pub use stop::StopMatcher;
pub use tokens::TokenSet;

#[cfg(test)]
mod tests;

#[cfg(test)]
mod device_tests;

#[cfg(test)]
mod candidates_tests;

#[cfg(test)]
mod row_sampling_tests;
