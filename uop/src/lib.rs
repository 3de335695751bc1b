//! The intermediate representation: dtypes, ops, the hash-consed graph, rules, text form, programs and targets.

pub mod encoding;
