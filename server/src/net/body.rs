//! Request bodies: reading with limits, parsing, and errors in terms of JSON.

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

/// Flattened into a struct, accepts the fields that the struct does not declare. It also makes
/// serde deserialise that struct from objects only, not from arrays.
#[derive(Clone, Copy, Debug)]
pub struct IgnoredFields;

impl<'de> Deserialize<'de> for IgnoredFields {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<IgnoredFields, D::Error> {
        IgnoredAny::deserialize(from).map(|_| IgnoredFields)
    }
}

/// A request with an unread body.
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
        Ok(UnreadRequest {
            client,
            when: Instant::now(),
            headers: parts.headers,
            query,
            body,
        })
    }
}

/// A complete body. It holds permits for its memory until it is dropped.
pub struct ReadBody {
    bytes: Vec<u8>,
    room: Option<OwnedSemaphorePermit>,
}

impl UnreadRequest {
    /// Returns the client of a request, and the value of a query parameter, if present.
    pub fn parameter(&self, name: &str) -> (IpAddr, Option<String>) {
        let mut pairs = self
            .query
            .split('&')
            .filter_map(|pair| pair.split_once('='));
        let value = pairs
            .find(|pair| pair.0 == name)
            .map(|pair| pair.1.replace('+', " "));
        (
            self.client,
            value.map(|value| percent_decode_str(&value).decode_utf8_lossy().into_owned()),
        )
    }
    /// Reads the body; returns it with the client's address and the time of arrival.
    ///
    /// # Errors
    /// When the content type is not JSON, the body is too long or too slow, or other bodies hold
    /// all the memory.
    pub async fn json(self, app: &App) -> Result<(ReadBody, IpAddr, Instant), RequestError> {
        if !is_json(&self.headers) {
            return Err(RequestError::media_type());
        }
        let read = read(self.body, app.config.body, &app.bodies);
        let read = tokio::time::timeout(app.config.body_time, read)
            .await
            .map_err(|_| RequestError::too_slow())??;
        Ok((read, self.client, self.when))
    }
}

/// Returns whether a body with these headers counts as JSON. Browsers send cross-origin requests
/// without a preflight if their body is plain text or untyped, but not if it is JSON. A request
/// with neither a content type nor an origin does not come from a browser; some programs send
/// those.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE) else {
        return !headers.contains_key(header::ORIGIN);
    };
    let kind = kind
        .to_str()
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default();
    kind.trim().eq_ignore_ascii_case("application/json")
}

/// A refused body is read up to this multiple of the size limit, as a client that is still sending
/// does not read the response.
const DRAIN_FACTOR: usize = 16;

/// Reads a body of at most `most` bytes; the bytes beyond [`Config::SMALL_BODY`] take permits of
/// `room`.
async fn read(body: Body, most: usize, room: &Arc<Semaphore>) -> Result<ReadBody, RequestError> {
    let mut stream = body.into_data_stream();
    let mut read = ReadBody {
        bytes: Vec::new(),
        room: None,
    };
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
            // The rest is read and discarded.
            read = ReadBody {
                bytes: Vec::new(),
                room: None,
            };
            if length > most.saturating_mul(DRAIN_FACTOR) {
                break;
            }
        }
    }
    refusal.map_or(Ok(read), Err)
}

/// Acquires permits for a body that grew from `before` to `now` bytes. `None` if too few are left,
/// `Some(None)` if none are needed.
fn room_for(
    before: usize,
    now: usize,
    room: &Arc<Semaphore>,
) -> Option<Option<OwnedSemaphorePermit>> {
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

/// Parses a body as JSON.
///
/// # Errors
/// When it is not JSON, or has another structure than `T`.
pub fn parse<T: DeserializeOwned>(read: &ReadBody) -> Result<T, RequestError> {
    let mut json = serde_json::Deserializer::from_slice(&read.bytes);
    let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        refusal(path.trim_start_matches('.'), error.inner())
    })?;
    json.end()
        .map_err(|error| RequestError::body(format!("the body is not JSON: {error}")))?;
    Ok(parsed)
}

/// Converts a parse error at a path of the body into a request error.
fn refusal(path: &str, error: &serde_json::Error) -> RequestError {
    let text = error.to_string();
    if error.classify() != Category::Data {
        return RequestError::body(format!("the body is not JSON: {text}"));
    }
    // The path locates the error better than the line.
    let what = text
        .rsplit_once(" at line ")
        .map_or(text.as_str(), |(what, _)| what);
    let dot = if path.is_empty() { "" } else { "." };
    if let Some(name) = what
        .strip_prefix("missing field `")
        .and_then(|rest| rest.strip_suffix('`'))
    {
        return RequestError::missing(format!("{path}{dot}{name}"));
    }
    match path {
        "" => RequestError::body(format!("the body: {}", plainly(what))),
        path => RequestError::parameter(path, format!("{path}: {}", plainly(what))),
    }
}

/// serde's names of expected types, and their names in JSON.
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

/// serde's prefixes of found values, and their names in JSON.
const FOUND_TYPES: &[(&str, &str)] = &[
    ("sequence", "an array"),
    ("map", "an object"),
    ("floating point", "the number"),
    ("integer", "the number"),
    ("string", "the string"),
];

/// Translates a type mismatch from serde's terms into those of JSON.
fn plainly(what: &str) -> String {
    let mismatch = ["invalid type: ", "invalid value: "]
        .iter()
        .find_map(|kind| what.strip_prefix(kind)?.rsplit_once(", expected "));
    let Some((found, expected)) = mismatch else {
        return what.to_owned();
    };
    let expected = EXPECTED_TYPES
        .iter()
        .find(|row| row.0 == expected)
        .map_or(expected, |row| row.1);
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
            (
                "invalid type: string \"hot\", expected f64",
                "expected a number, found the string \"hot\"",
            ),
            (
                "invalid value: integer `-5`, expected u64",
                "expected a whole number, 0 or more, found the number `-5`",
            ),
            (
                "invalid type: sequence, expected an object",
                "expected an object, found an array",
            ),
            (
                "invalid type: null, expected a sequence",
                "expected an array, found null",
            ),
            (
                "invalid type: string \", expected f64\", expected a boolean",
                "expected true or false, found the string \", expected f64\"",
            ),
            (
                "unknown variant `king`, expected `user`",
                "unknown variant `king`, expected `user`",
            ),
        ] {
            assert_eq!(plainly(told), plain);
        }
    }
}
