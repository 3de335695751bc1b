//! Messages of the protocols, written by hand from their wire format: no build needs `protoc`.
//!
//! The fields have the names and numbers of the protocols; their meaning is documented there. Only
//! fields that this server reads or writes are listed, as others are skipped by their tags.

#![expect(missing_docs, reason = "many names need no comment")]

pub mod common;
pub mod health;
pub mod vllm;
