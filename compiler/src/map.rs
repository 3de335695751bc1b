//! Maps the ranges of nests to the machine. Every choice is legal for any nest.

pub(crate) mod accumulators;
pub(crate) mod fragment_tiling;
pub(crate) mod fuse_reductions;
pub mod simd;
pub mod simt;
pub(crate) mod tile_terms;
pub(crate) mod units;
