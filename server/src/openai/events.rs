//! Answers told as they come: server-sent events.

use crate::channel::Receiver;
use crate::error::ApiError;
use crate::event::{Delta, Event, Finish, Usage};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::Value;
use std::collections::VecDeque;
use std::convert::Infallible;

/// What tells events in the form of one interface.
pub trait Teller: Send + 'static {
    /// More of an answer.
    fn delta(&mut self, delta: Delta, chunks: &mut VecDeque<Value>);
    /// The end of an answer.
    fn finish(&mut self, choice: usize, reason: Finish, chunks: &mut VecDeque<Value>);
    /// The end of all.
    fn end(&mut self, usage: &Usage, chunks: &mut VecDeque<Value>);
}

/// The last event of a stream.
const DONE: &str = "[DONE]";

struct State<T> {
    events: Receiver,
    teller: T,
    chunks: VecDeque<Value>,
    phase: Phase,
}

#[derive(PartialEq)]
enum Phase {
    Going,
    /// What is left are chunks, and the last event.
    Ended,
    Over,
}

/// A response that tells what comes. While nothing does, comments keep the connection open.
pub fn respond(events: Receiver, teller: impl Teller) -> Response {
    let state = State { events, teller, chunks: VecDeque::new(), phase: Phase::Going };
    let stream = stream::unfold(state, async |mut state| {
        let data = state.next().await?;
        Some((Ok::<_, Infallible>(sse::Event::default().data(data)), state))
    });
    Sse::new(stream).keep_alive(KeepAlive::default()).into_response()
}

impl<T: Teller> State<T> {
    async fn next(&mut self) -> Option<String> {
        loop {
            if let Some(chunk) = self.chunks.pop_front() {
                return Some(chunk.to_string());
            }
            match self.phase {
                Phase::Over => return None,
                Phase::Ended => {
                    self.phase = Phase::Over;
                    return Some(DONE.into());
                }
                Phase::Going => {}
            }
            match self.events.recv().await {
                Some(Event::Delta(delta)) => self.teller.delta(delta, &mut self.chunks),
                Some(Event::Finish { choice, reason }) => self.teller.finish(choice, reason, &mut self.chunks),
                Some(Event::End(usage)) => {
                    self.teller.end(&usage, &mut self.chunks);
                    self.phase = Phase::Ended;
                }
                Some(Event::Failed(error)) => self.fail(&error),
                None => self.fail(&ApiError::closing()),
            }
        }
    }
    /// The response has begun with success; all that is left is to say so in it.
    fn fail(&mut self, error: &ApiError) {
        self.chunks.push_back(error.to_json());
        self.phase = Phase::Ended;
    }
}

/// Waits for all of it. The end of each answer is told by `finish`.
///
/// # Errors
/// When it fails.
pub async fn collect(
    events: &mut Receiver,
    mut delta: impl FnMut(Delta),
    mut finish: impl FnMut(usize, Finish),
) -> Result<Usage, ApiError> {
    loop {
        match events.recv().await {
            Some(Event::Delta(more)) => delta(more),
            Some(Event::Finish { choice, reason }) => finish(choice, reason),
            Some(Event::End(usage)) => return Ok(usage),
            Some(Event::Failed(error)) => return Err(error),
            None => return Err(ApiError::closing()),
        }
    }
}
