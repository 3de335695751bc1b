//! Anthropic's interface: `/v1/messages`.

pub mod encoder;
pub mod error;
pub mod messages;

mod content;
