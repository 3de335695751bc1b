//! Map: what each range of a nest becomes on the machine. Every choice is legal for any nest.

mod fragment_tiling;
mod fuse_reductions;
pub mod simd;
pub mod simt;
