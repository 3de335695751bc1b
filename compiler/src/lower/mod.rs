//! Lower: from the nests of a kernel to a linear list of statements.

pub(crate) mod async_copies;
pub(crate) mod barriers;
mod carried;
pub(crate) mod coalesce;
mod code;
pub(crate) mod copies_ahead;
pub(crate) mod dependents;
mod forwarded;
mod fused_loops;
mod kernel;
pub(crate) mod legalise;
mod linear;
pub(crate) mod mma;
pub(crate) mod mma_f16;
pub(crate) mod pairs;
pub(crate) mod prefetch;
pub(crate) mod pressure;
pub mod print;
mod products;
pub(crate) mod rescaled;
mod rings;
pub mod spec;
pub(crate) mod streamed;
mod surplus;
pub(crate) mod threads;
pub(crate) mod tiles;
mod unpacked;
pub(crate) mod unroll;
pub(crate) mod vector;
mod warp;

pub use code::{Addition, Code, KernelCode, Prefetch, SpanPrefetch, Statement, TilePrefetch, end_of_block};
pub(crate) use code::{bytes_of, define};
pub use kernel::{finish, lower_bodies, lower_program};
pub use linear::{REGISTERS_OF_INTEGER_SUMS, lower_body};
pub use threads::ThreadIndex;
pub use warp::is_laid_out;
