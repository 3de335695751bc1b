//! Answers told as they come: server-sent events, or a line of JSON each.

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::Value;
use std::convert::Infallible;
use std::fmt::Write;
use std::time::Duration;

/// How pieces are told apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// Server-sent events.
    Events,
    /// A line each.
    Lines,
}

/// A piece of a stream.
#[derive(Clone, PartialEq, Debug)]
pub enum Chunk {
    /// JSON; an event's name, where the interface gives them names.
    Data(Option<&'static str>, Value),
    /// Something that is no JSON.
    Text(&'static str),
    /// For whoever watches: no part of the answer. It keeps the connection open.
    Comment(String),
}

/// What makes the pieces of a stream.
pub trait ChunkSource: Send + 'static {
    /// Some more of them; none behind the last.
    fn next(&mut self) -> impl Future<Output = Option<Vec<Chunk>>> + Send;
}

/// How long nothing may be told: proxies close connections that are silent for a minute.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// A response that tells what comes. While nothing does, comments keep the connection open.
pub fn respond(framing: Framing, source: impl ChunkSource) -> Response {
    let pieces = stream::unfold(source, move |mut source| async move {
        let chunks = match tokio::time::timeout(KEEP_ALIVE_INTERVAL, source.next()).await {
            Ok(chunks) => chunks?,
            Err(_) => vec![Chunk::Comment(String::new())],
        };
        let mut text = String::new();
        chunks.iter().for_each(|chunk| chunk.write(framing, &mut text));
        Some((Ok::<_, Infallible>(Bytes::from(text)), source))
    });
    let kind = match framing {
        Framing::Events => "text/event-stream",
        Framing::Lines => "application/x-ndjson",
    };
    let headers = [(header::CONTENT_TYPE, kind), (header::CACHE_CONTROL, "no-cache")];
    (headers, Body::from_stream(pieces)).into_response()
}

impl Chunk {
    /// As it is sent. JSON has no ends of lines in it.
    fn write(&self, framing: Framing, out: &mut String) {
        // Writing to a String does not fail.
        let _ = match (framing, self) {
            (Framing::Events, Chunk::Data(Some(name), data)) => write!(out, "event: {name}\ndata: {data}\n\n"),
            (Framing::Events, Chunk::Data(None, data)) => write!(out, "data: {data}\n\n"),
            (Framing::Events, Chunk::Text(text)) => write!(out, "data: {text}\n\n"),
            (Framing::Events, Chunk::Comment(text)) => write!(out, ": {text}\n\n"),
            (Framing::Lines, Chunk::Data(_, data)) => writeln!(out, "{data}"),
            (Framing::Lines, Chunk::Text(text)) => writeln!(out, "{text}"),
            // Lines have no comments.
            (Framing::Lines, Chunk::Comment(_)) => Ok(()),
        };
    }
}
