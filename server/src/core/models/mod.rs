//! The served models: their names ([`names`]), their plans and queues ([`entry`]), the eviction
//! policy ([`policy`]), and the pool that loads and evicts them ([`pool`]).

pub mod entry;
pub mod names;
pub mod policy;
pub mod pool;
