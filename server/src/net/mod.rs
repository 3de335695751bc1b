//! HTTP: sockets, request bodies, access control, streams and error responses.

pub mod body;
pub mod connections;
pub mod cors;
pub mod draining;
pub mod error;
pub mod guard;
pub mod host;
pub mod ignored;
pub mod lenient;
pub mod log;
pub mod path;
pub mod stream;
