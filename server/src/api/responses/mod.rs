//! OpenAI's newer interface: `/v1/responses`. What was asked before is not kept, so conversations come whole.

pub mod encoder;
pub mod request;

mod items;
