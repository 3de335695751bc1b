//! The vocabulary that all later passes share: nests and ranges, matrix products in nests, weight
//! layouts, hints and titles.

pub mod hints;
pub mod layout;
pub mod nest;
pub mod parse;
pub(crate) mod size_estimate;
pub(crate) mod title;

/// First slot number of intermediates; a function's own slots are below.
pub const TEMP: u32 = 1 << 16;

/// Matrix products, recognised in nests.
pub mod mma {
    pub mod fragment;
    pub(crate) mod lane_tile;
    pub mod product;
    pub mod tile_axes;
}
