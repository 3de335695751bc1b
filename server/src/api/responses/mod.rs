//! OpenAI's `/v1/responses`. Responses are not stored, so each request has the whole conversation.

pub mod encoder;
pub mod request;

mod items;
