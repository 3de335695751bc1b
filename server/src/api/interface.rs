//! What an interface is to the server.

use crate::core::error::RequestError;
use crate::core::event::Usage;
use crate::core::model::Served;
use crate::core::models::policy::Stay;
use crate::core::output::{FinishedReply, OutputEvent};
use crate::core::request::GenerateRequest;
use crate::net::stream::{Chunk, Framing};
use axum::response::Response;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::Arc;

/// An endpoint that answers are generated for.
pub trait Interface: 'static {
    /// Its requests.
    type Body: DeserializeOwned + Send + 'static;
    /// What tells its answers.
    type Encoder: ResponseEncoder;
    /// The model that a request names.
    fn model(body: &Self::Body) -> Option<&str>;
    /// What a request asks of the core, and how it wants to be told.
    ///
    /// # Errors
    /// What makes no sense, or cannot be honoured.
    fn request(body: Self::Body, served: &Arc<Served>) -> Result<(GenerateRequest, Self::Encoder), RequestError>;
    /// How long the model stays after a request that says so.
    ///
    /// # Errors
    /// When that makes no sense.
    fn stay(_body: &Self::Body) -> Result<Option<Stay>, RequestError> {
        Ok(None)
    }
    /// What is told of a request that asks for nothing but that the model is there, or no longer; once that is so.
    fn nothing(_body: &Self::Body, _served: &Served) -> Option<Value> {
        None
    }
}

/// What tells answers in the form of one interface: as they come, or whole.
pub trait ResponseEncoder: Send + 'static {
    /// How its streams are told.
    const FRAMING: Framing;
    /// The response begins.
    fn begin(&mut self, _out: &mut Vec<Chunk>) {}
    /// A prompt has been run.
    fn prompt(&mut self, _usage: &Usage, _out: &mut Vec<Chunk>) {}
    /// More of an answer.
    fn output(&mut self, choice: usize, event: OutputEvent, out: &mut Vec<Chunk>);
    /// What belongs together has come.
    fn together(&mut self, _out: &mut Vec<Chunk>) {}
    /// The end of all.
    fn end(&mut self, usage: &Usage, out: &mut Vec<Chunk>);
    /// It cannot go on; the response has begun with success.
    fn fail(&mut self, error: &RequestError, out: &mut Vec<Chunk>);
    /// All of it at once.
    fn whole(self, answers: Vec<FinishedReply>, usage: &Usage) -> Response;
}
