//! Tile plans: how the work of one kernel is cut into workgroups, threads, registers and loops, as a value. Proposers make several, one is decided on,
//! and what follows applies it: `schedule/workgroup.rs` the workgroup's part, `map/` that of each nest.

pub mod contraction;
pub mod nest_view;
pub mod plan;
pub mod product;
pub mod propose;
pub mod text;

pub use plan::{Accumulators, Threads, TilePlan, Vectors, Warps, Workgroup};
pub use plan::{Along, Counted, NestPlan, OutputLanes, Part, Proposal, StagePlan, Sum, SumLanes};
