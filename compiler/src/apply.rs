//! Applies plans: maps the nests of a launch to the machine, lowers them to linear code, and counts
//! what that code costs.
//!
//! The scheduler applies every candidate of a plan to learn its cost, and emission the chosen one.

mod candidate;
mod code_cost;
mod footprint;
mod issue_slots;
pub mod mapping;
mod moment;
mod own_graph;
pub mod scratch;
mod walk;

pub use candidate::{Candidate, cost_as_proposed};
pub use code_cost::CodeCost;
pub use own_graph::Kernel;
