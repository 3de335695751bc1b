//! From logits to a token.
//!
//! The chain is llama.cpp's: penalties, top-k, top-p, min-p, temperature, draw. Temperature comes *after* truncation
//! (Hugging Face applies it before, so equal settings truncate differently there). The seed, the history and the logits determine
//! the token, and nothing else: random numbers belong to positions ([`Random`]), and weights are whole numbers
//! ([`weight`]), so that a device and the host choose the same.

mod best;
mod choose;
mod drawn;
mod grid;
mod order;
mod params;
mod ranked;
mod ranks;
mod rng;
mod rows;
mod sampler;
mod stop;
mod tokens;
mod told;
mod weight;
mod wide;

pub use choose::{BEST, Choice, NUMBERS, one_function};
pub use drawn::{Among, Draws, drawn_function, next_function};
pub(crate) use params::GARBAGE;
pub use params::{SamplingError, SamplingParams};
pub use ranked::Ranked;
pub use ranks::{CHANGED, ranks_function};
pub use rng::Random;
pub use rows::rows_function;
pub use sampler::{Sampler, not_a_number};
pub use stop::StopMatcher;
pub use tokens::TokenSet;
pub use told::Ask;
pub(crate) use told::Rows;

#[cfg(test)]
mod tests;

#[cfg(test)]
mod device_tests;

#[cfg(test)]
mod ranked_tests;

#[cfg(test)]
mod drawn_tests;
