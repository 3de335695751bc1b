//! Traits that an API endpoint implements: request parsing and response encoding.

use crate::core::error::RequestError;
use crate::core::event::Usage;
use crate::core::model::Served;
use crate::core::models::policy::KeepAlive;
use crate::core::output::{FinishedReply, OutputEvent};
use crate::core::request::GenerateRequest;
use crate::net::stream::{Chunk, Framing};
use axum::response::Response;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::Arc;

/// An endpoint that generates text.
pub trait Interface: 'static {
    /// The deserialised request body.
    type Body: DeserializeOwned + Send + 'static;
    /// Encoder of the responses.
    type Encoder: ResponseEncoder;
    /// Returns the model that the request names.
    fn model(body: &Self::Body) -> Option<&str>;
    /// Converts the body into the core's request and the encoder of its response.
    ///
    /// # Errors
    /// The first parameter that is malformed or not supported.
    fn request(
        body: Self::Body,
        served: &Arc<Served>,
    ) -> Result<(GenerateRequest, Self::Encoder), RequestError>;
    /// Returns how long the model stays loaded after this request, if the request says.
    ///
    /// # Errors
    /// When the value is malformed.
    fn keep_alive(_body: &Self::Body) -> Result<Option<KeepAlive>, RequestError> {
        Ok(None)
    }
    /// Response to a request that only loads or unloads the model; `None` for a request that
    /// generates.
    fn load_response(_body: &Self::Body, _served: &Served) -> Option<Value> {
        None
    }
}

/// Encodes output events in the format of one interface, streamed or whole.
pub trait ResponseEncoder: Send + 'static {
    /// Framing of the response stream.
    const FRAMING: Framing;
    /// Called when the response begins.
    fn begin(&mut self, _out: &mut Vec<Chunk>) {}
    /// Called when a prompt has been run.
    fn prompt(&mut self, _usage: &Usage, _out: &mut Vec<Chunk>) {}
    /// Called for each output event of choice `choice`.
    fn output(&mut self, choice: usize, event: OutputEvent, out: &mut Vec<Chunk>);
    /// Called after the last output event of one engine event, to send what the encoder holds back.
    fn together(&mut self, _out: &mut Vec<Chunk>) {}
    /// Called once, after all choices have finished.
    fn end(&mut self, usage: &Usage, out: &mut Vec<Chunk>);
    /// Called when generation fails after the response has begun with status 200.
    fn fail(&mut self, error: &RequestError, out: &mut Vec<Chunk>);
    /// Encodes the complete response of a request that does not stream.
    fn whole(self, answers: Vec<FinishedReply>, usage: &Usage) -> Response;
}
