//! A model on a device: loaded weights, compiled functions, captured steps.
//!
//! A step runs one prefill chunk, decode rows, or both (a mixed batch). The KV cache of each
//! sequence is stored in pages of a shared pool; a single sequence is a batch of one.
//! [`Engine::start`] and [`Engine::wait`] run steps, up to two in flight. The parts are
//! [`Weights`], the [`KvCache`], the captured graphs, and the device sampler.

mod accessors;
mod activations;
mod compiled;
mod device_buffers;
mod device_sampler;
mod drafting;
mod encode;
mod executor;
mod expert_cache;
mod expert_stream;
mod footprint;
mod forward;
mod graph_key;
mod graphs;
mod host_experts;
mod inputs;
mod kv_cache;
mod pages;
mod placed_step;
mod planning;
mod segmented_step;
mod segments;
mod sizes;
mod state_copy;
mod step;
mod step_limit;

pub use crate::error::{Error, Progress};
pub use crate::load::Weights;
pub use accessors::WholePool;
pub use compiled::{CompiledModel, MemoryEstimate};
pub use executor::Engine;
pub use expert_cache::ExpertCacheStats;
pub use forward::TokenRun;
pub(crate) use graph_key::expert_tile;
pub use graph_key::{
    CacheShape, GraphKey, Settings, StepLimits, batch_graph, cache_rows, depths, mixed_graphs,
    plan_options, sequence_graphs,
};
pub use kv_cache::KvCache;
pub use pages::{PageCopy, Pages, StateCopy};
pub use step::{Chunk, DecodeRow, Step, StepOutput, TokenSource};
