//! The models that there are: what they are called ([`names`]), what is known of each ([`entry`]), who leaves where memory is short ([`policy`]), and the
//! one place that owns which of them are loaded ([`pool`]).

pub mod entry;
pub mod names;
pub mod policy;
pub mod pool;
