//! The path of a request, independent of its interface: preprocessed ([`preprocess`]), queued
//! ([`queue`]), run ([`batch_worker`]) and streamed as events ([`output`]). Nothing in this module
//! depends on HTTP or on an interface's JSON.

pub mod adapters;
pub mod admission;
pub mod balance;
pub mod batch_worker;
pub mod budget;
pub mod channel;
pub mod client;
pub mod constraint;
mod draft_metrics;
pub mod engine_health;
pub mod engine_request;
pub mod error;
pub mod event;
pub mod field_names;
pub mod fim;
pub mod id;
pub mod kv_events;
pub mod limits;
pub mod load;
pub mod loading;
pub mod metrics;
pub mod model;
pub mod models;
pub mod output;
pub mod pooled_inputs;
pub mod pooled_run;
pub mod preprocess;
pub mod probabilities;
pub mod prompt;
pub mod published_load;
pub mod queue;
pub mod replica;
pub mod request;
pub mod sampling;
pub mod sequence;
pub mod tools;
