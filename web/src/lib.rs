//! The program of a page's worker: opens a model, answers messages, and reports to the page.
//!
//! The page calls the functions of [`exports`], on wasm32 alone; all else runs and is tested
//! anywhere. An answer is made token by token, so that the worker can take messages between two.

pub mod event;
#[cfg(target_family = "wasm")]
pub mod exports;
pub mod model;
mod writer;
