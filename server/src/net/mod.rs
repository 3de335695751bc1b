//! HTTP: sockets, bodies, what is let in, and how answers and errors are written.

pub mod body;
pub mod connections;
pub mod cors;
pub mod draining;
pub mod error;
pub mod guard;
pub mod host;
pub mod log;
pub mod stream;
