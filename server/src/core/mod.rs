//! What a server does with a request, whatever interface it came by: checked ([`intake`]), queued ([`queue`]), answered ([`together`]), and told
//! as events ([`output`]). Nothing in here knows HTTP or an interface's JSON.

pub mod answering;
pub mod budget;
pub mod channel;
pub mod client;
pub mod condition;
pub mod constraint;
pub mod error;
pub mod event;
pub mod generation;
pub mod id;
pub mod infill;
pub mod intake;
pub mod job;
pub mod limits;
pub mod load;
pub mod loading;
pub mod metrics;
pub mod model;
pub mod models;
pub mod names;
pub mod output;
pub mod preparing;
pub mod probabilities;
pub mod prompt;
pub mod queue;
pub mod request;
pub mod sampling;
pub mod together;
pub mod tools;
