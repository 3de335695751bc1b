//! Tile plans: how the work of one kernel is cut into workgroups, threads, registers and
//! loops, as a value.
//!
//! Proposers make several candidates and one is chosen. `kernel/workgroup.rs` applies the workgroup
//! part, `map/` the part of each nest.

pub mod nest_view;
pub mod text;
pub mod tile_plan;
pub mod warps;

pub use tile_plan::{Accumulators, Threads, TilePlan, Vectors, Warps, Workgroup};
pub use tile_plan::{
    Along, AxisPart, BANKS, Counted, FIRST, KernelPlan, NestPlan, OutputLanes, Proposal, StagePlan,
    SumLanes, ThreadSum, proposals,
};
