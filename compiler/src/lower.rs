//! Lowers the nests of a kernel to a linear list of statements.

mod kernel;
pub(crate) mod linear_ir;
pub(crate) mod linearise;
pub(crate) mod pressure;
pub mod spec;

/// Matrix products as MMA instructions.
pub(crate) mod mma {
    pub(crate) mod f16;
    pub(crate) mod int8;
    pub(crate) mod stage_products;
    pub(crate) mod tiles;
    pub(crate) mod unpacked;
}

/// Loads, writes and copies.
pub(crate) mod memory {
    pub(crate) mod coalesce;
    pub(crate) mod early_loads;
    pub(crate) mod prefetch;
    pub(crate) mod store_forwarding;

    /// Software pipelining: copies that overlap arithmetic.
    pub(crate) mod pipeline {
        pub(crate) mod async_copies;
        pub(crate) mod multistage;
        pub(crate) mod reload;
        pub(crate) mod ring;
    }
}

/// Synchronisation of threads and of kernels.
pub(crate) mod sync {
    pub(crate) mod barriers;
    pub(crate) mod dependent_launch;
    pub(crate) mod shared_memory_reduce;
}

/// Loop fusion, unrolling and early exit.
pub(crate) mod loops {
    pub(crate) mod early_exit;
    pub(crate) mod full_unroll;
    pub(crate) mod loop_carried;
    pub(crate) mod loop_fusion;
    pub(crate) mod online_rescale;
    pub(crate) mod unroll;
}

/// Legalisation: replaces loads and types that a machine lacks by those that it has.
pub(crate) mod legalise {
    pub(crate) mod loads;
    pub(crate) mod types;
}

pub use kernel::{finish, lower_bodies, lower_program};
pub use linear_ir::accesses::{Accesses, AllAccesses, accesses};
pub use linear_ir::bytes_of;
pub(crate) use linear_ir::define;
pub use linear_ir::print;
pub use linear_ir::threads::ThreadIndex;
pub use linear_ir::{
    Addition, Code, KernelCode, Prefetch, SpanPrefetch, Statement, TilePrefetch, Update,
    end_of_block,
};
pub use linearise::{REGISTERS_OF_INTEGER_SUMS, integer_sums_at_once, lower_body};
