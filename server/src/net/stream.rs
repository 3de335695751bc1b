//! Streaming responses as server-sent events or JSON lines.

use axum::body::{Body, Bytes};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde_json::Value;
use std::convert::Infallible;
use std::fmt::Write;
use std::time::Duration;

/// Framing of the chunks of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// Server-sent events (`text/event-stream`).
    Events,
    /// One JSON value per line (`application/x-ndjson`).
    Lines,
}

/// A chunk of a stream.
#[derive(Clone, PartialEq, Debug)]
pub enum Chunk {
    /// A JSON value, with the event's name if the interface names its events.
    Data(Option<&'static str>, Value),
    /// A fixed text that is not JSON.
    Text(&'static str),
    /// A comment, which is not part of the response: progress, or empty to keep the connection
    /// open.
    Comment(String),
}

/// Source of the chunks of a stream.
pub trait ChunkSource: Send + 'static {
    /// Returns the next chunks; `None` after the last one.
    fn next(&mut self) -> impl Future<Output = Option<Vec<Chunk>>> + Send;
}

/// Maximum time without output: proxies close connections that are silent for a minute.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Response that streams the chunks of a source. Empty comments keep the connection open in
/// between.
pub fn respond(framing: Framing, source: impl ChunkSource) -> Response {
    let pieces = stream::unfold(source, move |mut source| async move {
        let chunks = match tokio::time::timeout(KEEP_ALIVE_INTERVAL, source.next()).await {
            Ok(chunks) => chunks?,
            Err(_) => vec![Chunk::Comment(String::new())],
        };
        let mut text = String::new();
        chunks
            .iter()
            .for_each(|chunk| chunk.write(framing, &mut text));
        Some((Ok::<_, Infallible>(Bytes::from(text)), source))
    });
    let kind = match framing {
        Framing::Events => "text/event-stream",
        Framing::Lines => "application/x-ndjson",
    };
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, Body::from_stream(pieces)).into_response()
}

impl Chunk {
    /// Writes the chunk as it is sent. JSON as serialised here has no line ends.
    fn write(&self, framing: Framing, out: &mut String) {
        // Writing to a String does not fail.
        let _ = match (framing, self) {
            (Framing::Events, Chunk::Data(Some(name), data)) => {
                write!(out, "event: {name}\ndata: {data}\n\n")
            }
            (Framing::Events, Chunk::Data(None, data)) => write!(out, "data: {data}\n\n"),
            (Framing::Events, Chunk::Text(text)) => write!(out, "data: {text}\n\n"),
            (Framing::Events, Chunk::Comment(text)) => write!(out, ": {text}\n\n"),
            (Framing::Lines, Chunk::Data(_, data)) => writeln!(out, "{data}"),
            (Framing::Lines, Chunk::Text(text)) => writeln!(out, "{text}"),
            // JSON lines have no comments.
            (Framing::Lines, Chunk::Comment(_)) => Ok(()),
        };
    }
}
