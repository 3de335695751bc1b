//! Compiles a tensor graph to kernel source by pure functions: decompose, schedule, cost, map,
//! lower, render. Opens no device.

pub mod alternatives;
pub mod apply;
pub mod cost;
pub mod custom;
pub mod decision;
pub mod decompose;
pub mod emit;
pub mod ir;
pub mod kernel;
pub mod lower;
pub mod map;
pub mod pipeline;
pub mod plan;
pub mod planned;
pub mod prepack;
pub mod propose;
pub mod record;
pub mod schedule;
#[doc(hidden)]
pub mod testing;
pub mod watch;

pub use decision::{Cheapest, Decision, Listed, Perturb, Policy};
pub use decompose::attention::chunk_positions;
pub use emit::{CustomCode, CustomDialect, Dialect, Signature};
pub use pipeline::{Compiled, check_plan, compile, compile_watched};
pub use watch::Watch;
