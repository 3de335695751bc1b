//! Tensor graph to kernel text, by pure functions: derive, schedule, price, optimise, lower, render. Opens no device.

mod attention;
pub mod decision;
pub mod derive;
pub mod halves;
pub mod layout;
pub mod lower;
pub mod opt;
pub mod pipeline;
pub mod prepack;
pub mod price;
pub mod schedule;
pub mod threads;
pub mod tiles;
pub mod together;

pub use attention::chunk_positions;
pub use decision::{Cheapest, Decision, Perturb, Policy};
pub use pipeline::{Compiled, Dialect, Signature, compile};
