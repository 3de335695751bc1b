//! Tensor graph to kernel text, by pure functions: decompose, schedule, price, map, lower, render. Opens no device.

pub mod alternatives;
pub mod custom;
pub mod decision;
pub mod decompose;
pub mod emit;
pub mod fragment;
pub mod layout;
pub mod lower;
pub mod map;
pub mod nest;
pub mod pipeline;
pub mod planned;
pub mod prepack;
pub mod price;
pub mod record;
pub mod request;
pub mod schedule;
#[doc(hidden)]
pub mod testing;
pub mod tile;
mod title;
mod typical;
pub mod watch;

pub use decision::{Cheapest, Decision, Listed, Perturb, Policy};
pub use decompose::attention::chunk_positions;
pub use emit::{CustomCode, CustomDialect, Dialect, Signature};
pub use pipeline::{Compiled, check_plan, compile, compile_watched};
pub use watch::Watch;
