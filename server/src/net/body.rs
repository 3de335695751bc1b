//! Bodies of requests: read, parsed, and what is wrong with them said in the words of JSON.

use crate::app::App;
use crate::config::Config;
use crate::core::error::RequestError;
use axum::body::Body;
use axum::extract::{ConnectInfo, FromRequest, Request};
use axum::http::{HeaderMap, header};
use futures_util::StreamExt;
use percent_encoding::percent_decode_str;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, IgnoredAny};
use serde_json::error::Category;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Flattened into a struct, it takes the fields that the struct does not name; and serde reads that struct from objects alone, not from
/// arrays too.
#[derive(Clone, Copy, Debug)]
pub struct IgnoredFields;

impl<'de> Deserialize<'de> for IgnoredFields {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<IgnoredFields, D::Error> {
        IgnoredAny::deserialize(from).map(|_| IgnoredFields)
    }
}

/// A request whose body was not read yet.
pub struct UnreadRequest {
    client: IpAddr,
    when: Instant,
    headers: HeaderMap,
    query: String,
    body: Body,
}

impl<S: Sync> FromRequest<S> for UnreadRequest {
    type Rejection = RequestError;
    async fn from_request(request: Request, _: &S) -> Result<UnreadRequest, RequestError> {
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
        let client = peer.map_or(IpAddr::from([0, 0, 0, 0]), |peer| peer.0.ip());
        let (parts, body) = request.into_parts();
        let query = parts.uri.query().unwrap_or_default().to_owned();
        Ok(UnreadRequest { client, when: Instant::now(), headers: parts.headers, query, body })
    }
}

/// A body that has arrived. It takes its part of the room for bodies until it is dropped.
pub struct ReadBody {
    bytes: Vec<u8>,
    room: Option<OwnedSemaphorePermit>,
}

impl UnreadRequest {
    /// Who asks, of a request without a body; and the value of that name in its query, where there is one.
    pub fn parameter(&self, name: &str) -> (IpAddr, Option<String>) {
        let mut pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        let value = pairs.find(|pair| pair.0 == name).map(|pair| pair.1.replace('+', " "));
        (self.client, value.map(|value| percent_decode_str(&value).decode_utf8_lossy().into_owned()))
    }
    /// The body; who asks, and since when.
    ///
    /// # Errors
    /// When it is not said to be JSON, too long, too slow, or others fill the room for bodies.
    pub async fn json(self, app: &App) -> Result<(ReadBody, IpAddr, Instant), RequestError> {
        if !is_json(&self.headers) {
            return Err(RequestError::media_type());
        }
        let read = read(self.body, app.config.body, &app.bodies);
        let read = tokio::time::timeout(app.config.body_time, read).await.map_err(|_| RequestError::too_slow())??;
        Ok((read, self.client, self.when))
    }
}

/// Is a body with these headers JSON? Browsers send other pages' requests unasked if they are plain text, or of no type, but not if they are JSON. What says
/// neither its type nor an origin comes from no browser, and some programs send that.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else { return !headers.contains_key(header::ORIGIN) };
    let kind = kind.to_str().unwrap_or_default().split(';').next().unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

/// How many times what it may be a body is read nevertheless: who is still sending does not read the refusal.
const DRAIN_FACTOR: usize = 16;

/// Reads a body of at most so many bytes; what is beyond [`Config::SMALL_BODY`] of it takes `room`.
async fn read(body: Body, most: usize, room: &Arc<Semaphore>) -> Result<ReadBody, RequestError> {
    let mut stream = body.into_data_stream();
    let mut read = ReadBody { bytes: Vec::new(), room: None };
    let (mut length, mut refusal) = (0, None);
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|_| RequestError::body("the body was cut off"))?;
        let before = length;
        length += piece.len();
        if length > most {
            refusal = Some(RequestError::too_large(most));
        }
        if refusal.is_none() {
            match room_for(before, length, room) {
                Some(more) => read.take(&piece, more),
                None => refusal = Some(RequestError::bodies()),
            }
        }
        if refusal.is_some() {
            // It is read on, but not kept.
            read = ReadBody { bytes: Vec::new(), room: None };
            if length > most.saturating_mul(DRAIN_FACTOR) {
                break;
            }
        }
    }
    refusal.map_or(Ok(read), Err)
}

/// Room for what a body has grown by, as far as it needs any.
fn room_for(before: usize, now: usize, room: &Arc<Semaphore>) -> Option<Option<OwnedSemaphorePermit>> {
    let large = |length: usize| length.saturating_sub(Config::SMALL_BODY);
    match u32::try_from(large(now) - large(before)).ok()? {
        0 => Some(None),
        more => Some(Some(room.clone().try_acquire_many_owned(more).ok()?)),
    }
}

impl ReadBody {
    fn take(&mut self, piece: &[u8], more: Option<OwnedSemaphorePermit>) {
        self.bytes.extend_from_slice(piece);
        match (&mut self.room, more) {
            (Some(room), Some(more)) => room.merge(more),
            (room, more) => *room = room.take().or(more),
        }
    }
}

/// Understands a body.
///
/// # Errors
/// When it is not JSON, or not such a request.
pub fn parse<T: DeserializeOwned>(read: &ReadBody) -> Result<T, RequestError> {
    let mut json = serde_json::Deserializer::from_slice(&read.bytes);
    let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        refusal(path.trim_start_matches('.'), error.inner())
    })?;
    json.end().map_err(|error| RequestError::body(format!("the body is not JSON: {error}")))?;
    Ok(parsed)
}

/// What is wrong with a body, at that path in it.
fn refusal(path: &str, error: &serde_json::Error) -> RequestError {
    let text = error.to_string();
    if error.classify() != Category::Data {
        return RequestError::body(format!("the body is not JSON: {text}"));
    }
    // The path says better where.
    let what = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
    let dot = if path.is_empty() { "" } else { "." };
    if let Some(name) = what.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
        return RequestError::missing(format!("{path}{dot}{name}"));
    }
    match path {
        "" => RequestError::body(format!("the body: {}", plainly(what))),
        path => RequestError::parameter(path, format!("{path}: {}", plainly(what))),
    }
}

/// What serde calls what it expects, and what it is in JSON.
const EXPECTED_TYPES: &[(&str, &str)] = &[
    ("f64", "a number"),
    ("i64", "a whole number"),
    ("u64", "a whole number, 0 or more"),
    ("u32", "a whole number, 0 or more"),
    ("a boolean", "true or false"),
    ("a sequence", "an array"),
    ("a map", "an object"),
    ("string or map", "a string"),
];

/// What it calls the beginning of what it finds, likewise.
const FOUND_TYPES: &[(&str, &str)] = &[
    ("sequence", "an array"),
    ("map", "an object"),
    ("floating point", "the number"),
    ("integer", "the number"),
    ("string", "the string"),
];

/// A mismatch of types as serde tells it, in the words of JSON.
fn plainly(what: &str) -> String {
    let mismatch = ["invalid type: ", "invalid value: "]
        .iter()
        .find_map(|kind| what.strip_prefix(kind)?.rsplit_once(", expected "));
    let Some((found, expected)) = mismatch else { return what.to_owned() };
    let expected = EXPECTED_TYPES.iter().find(|row| row.0 == expected).map_or(expected, |row| row.1);
    let found = FOUND_TYPES
        .iter()
        .find_map(|row| Some(format!("{}{}", row.1, found.strip_prefix(row.0)?)))
        .unwrap_or(found.to_owned());
    format!("expected {expected}, found {found}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mismatches_are_told_in_the_words_of_json() {
        for (told, plain) in [
            ("invalid type: string \"hot\", expected f64", "expected a number, found the string \"hot\""),
            ("invalid value: integer `-5`, expected u64", "expected a whole number, 0 or more, found the number `-5`"),
            ("invalid type: sequence, expected an object", "expected an object, found an array"),
            ("invalid type: null, expected a sequence", "expected an array, found null"),
            (
                "invalid type: string \", expected f64\", expected a boolean",
                "expected true or false, found the string \", expected f64\"",
            ),
            ("unknown variant `king`, expected `user`", "unknown variant `king`, expected `user`"),
        ] {
            assert_eq!(plainly(told), plain);
        }
    }
}
