//! From logits to a token.
//!
//! The chain is llama.cpp's: penalties, top-k, top-p, min-p, temperature, draw. Temperature comes *after* truncation
//! (Hugging Face applies it before, so equal settings truncate differently there). The seed, the history and the logits determine
//! the token, and nothing else: random numbers belong to positions ([`PositionRng`]), and weights are whole numbers
//! ([`weight`]), so that a device and the host choose the same.

mod top_k;
mod choose;
mod row_sampling;
mod grid;
mod top_ids;
mod params;
mod candidates;
mod candidates_function;
mod rng;
mod rows;
mod sampler;
mod stop;
mod tokens;
mod device_sampler;
mod weight;
mod radix_select;

pub use choose::{MAX_CANDIDATES, SamplingMethod, REQUEST_PARAMS, one_function};
pub use row_sampling::{CandidateSet, RowSampling, row_sampling_function, next_function};
pub(crate) use params::GARBAGE;
pub use params::{SamplingError, SamplingParams};
pub use candidates::Candidates;
pub use candidates_function::{MAX_CHANGED_LOGITS, candidates_function};
pub use rng::PositionRng;
pub use rows::rows_function;
pub use sampler::{Sampler, not_a_number};
pub use stop::StopMatcher;
pub use tokens::TokenSet;
pub use device_sampler::RowParams;
pub(crate) use device_sampler::DeviceSampler;

#[cfg(test)]
mod tests;

#[cfg(test)]
mod device_tests;

#[cfg(test)]
mod candidates_tests;

#[cfg(test)]
mod row_sampling_tests;
