//! Tile plans: how the work of one kernel is cut into workgroups, threads, registers and loops, as a value. Proposers make several, one is decided on,
//! and what follows applies it: `kernel/workgroup.rs` the workgroup's part, `map/` that of each nest.

pub mod nest_view;
pub mod text;
pub mod tile_plan;
pub mod warps;

pub use tile_plan::{Accumulators, Threads, TilePlan, Vectors, Warps, Workgroup};
pub use tile_plan::{
    Along, AxisPart, BANKS, Counted, FIRST, NestPlan, OutputLanes, Proposal, StagePlan, SumLanes, ThreadSum, proposals,
};
