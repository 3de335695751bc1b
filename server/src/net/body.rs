//! Request bodies: reading with limits, parsing, and errors in terms of JSON.

use crate::app::App;
use crate::config::Config;
use crate::core::error::RequestError;
use axum::body::Body;
use axum::extract::{ConnectInfo, FromRequest, Request};
use axum::http::{HeaderMap, header};
use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};
use futures_util::StreamExt;
use percent_encoding::percent_decode_str;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, IgnoredAny};
use serde_json::Value;
use serde_json::error::Category;
use std::io::Read;
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
    /// When a web page sends another content type than JSON, the body is too long or too slow,
    /// other bodies hold all the memory, or it cannot be decompressed.
    pub async fn json(self, app: &App) -> Result<(ReadBody, IpAddr, Instant), RequestError> {
        if !is_json(&self.headers) {
            return Err(RequestError::media_type());
        }
        let encoding = Encoding::from_headers(&self.headers)?;
        let most = app.config.body;
        let read = read(self.body, most, &app.bodies);
        let mut read = tokio::time::timeout(app.config.body_time, read)
            .await
            .map_err(|_| RequestError::too_slow())??;
        if let Some(encoding) = encoding {
            let room = app.bodies.clone();
            let unpacked = move || read.decompress(encoding, most, &room);
            read = tokio::task::spawn_blocking(unpacked)
                .await
                .map_err(|_| RequestError::internal("the body could not be decompressed"))??;
        }
        replace_lone_surrogates(&mut read.bytes);
        Ok((read, self.client, self.when))
    }
}

/// Content types that browsers send cross-origin without a preflight (Fetch standard).
const SIMPLE_TYPES: &[&str] = &[
    "",
    "text/plain",
    "multipart/form-data",
    "application/x-www-form-urlencoded",
];

/// Returns whether a body with these headers counts as JSON. Browsers send cross-origin requests
/// without a preflight if their body is plain text, a form or untyped, but not if it is JSON. A
/// request without an origin does not come from a page; `curl -d` calls its body a form.
fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE);
    let kind = kind
        .map_or(Ok(""), |kind| kind.to_str())
        .unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    let is_simple = SIMPLE_TYPES
        .iter()
        .any(|simple| kind.eq_ignore_ascii_case(simple));
    let from_page = headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site");
    !(is_simple && from_page)
}

/// Compression of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Encoding {
    Gzip,
    Deflate,
}

impl Encoding {
    /// Returns the compression that the headers name; `None` without one.
    fn from_headers(headers: &HeaderMap) -> Result<Option<Encoding>, RequestError> {
        let Some(value) = headers.get(header::CONTENT_ENCODING) else {
            return Ok(None);
        };
        let name = value.to_str().unwrap_or_default().trim();
        match name.to_ascii_lowercase().as_str() {
            "" | "identity" => Ok(None),
            "gzip" | "x-gzip" => Ok(Some(Encoding::Gzip)),
            "deflate" => Ok(Some(Encoding::Deflate)),
            _ => Err(RequestError::encoding()),
        }
    }
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

impl ReadBody {
    /// Decompresses the body, up to the size limit of bodies.
    fn decompress(
        self,
        encoding: Encoding,
        most: usize,
        room: &Arc<Semaphore>,
    ) -> Result<ReadBody, RequestError> {
        // Some clients compress nothing although the header says so.
        let starts_plain = |byte: &u8| byte.is_ascii_whitespace() || b"{[\xef".contains(byte);
        if self.bytes.first().is_none_or(starts_plain) {
            return Ok(self);
        }
        let packed = self.bytes.as_slice();
        // A `deflate` body has zlib's frame (RFC 9110), but some clients send none.
        let has_frame = packed.first().is_some_and(|byte| byte & 0x0f == 8);
        let mut decoder: Box<dyn Read> = match encoding {
            Encoding::Gzip => Box::new(MultiGzDecoder::new(packed)),
            Encoding::Deflate if has_frame => Box::new(ZlibDecoder::new(packed)),
            Encoding::Deflate => Box::new(DeflateDecoder::new(packed)),
        };
        let mut read = ReadBody {
            bytes: Vec::new(),
            room: None,
        };
        let mut piece = [0; 16 << 10];
        loop {
            let length = decoder
                .read(&mut piece)
                .map_err(|_| RequestError::body("the body cannot be decompressed"))?;
            if length == 0 {
                return Ok(read);
            }
            let before = read.bytes.len();
            if before + length > most {
                return Err(RequestError::too_large(most));
            }
            let more = room_for(before, before + length, room).ok_or_else(RequestError::bodies)?;
            read.take(&piece[..length], more);
        }
    }
}

/// Replaces escapes of half a surrogate pair by those of U+FFFD, in place: texts that JavaScript
/// cuts within a character have them, and serde refuses them.
fn replace_lone_surrogates(json: &mut [u8]) {
    let unit = |json: &[u8], at: usize| {
        let digits = json.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let mut at = 0;
    while at < json.len() {
        if json[at] != b'\\' {
            at += 1;
            continue;
        }
        let pair = (unit(json, at), unit(json, at + 6));
        at += match pair {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 12,
            (Some(0xd800..=0xdfff), _) => {
                json[at + 2..at + 6].copy_from_slice(b"fffd");
                6
            }
            // Skips an escaped backslash as a whole.
            _ => 2,
        };
    }
}

/// Bytes of UTF-8's byte order mark, which some programs on Windows write.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Parses a body as JSON. The last of several equal keys counts, as in most JSON parsers.
///
/// # Errors
/// When it is not JSON, or has another structure than `T`.
pub fn parse<T: DeserializeOwned>(read: &ReadBody) -> Result<T, RequestError> {
    let bytes = read.bytes.as_slice();
    let bytes = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(bytes);
    let (error, is_data) = match parse_once(bytes) {
        Ok(parsed) => return Ok(parsed),
        Err(refused) => refused,
    };
    // Derived types refuse equal keys, which a tree does not have.
    let tree = || serde_json::from_slice::<Value>(bytes).ok();
    let parsed = is_data.then(tree).flatten().map(T::deserialize);
    parsed.and_then(Result::ok).ok_or(error)
}

/// Parses JSON in one pass. An error is accompanied by whether the JSON's structure is at fault.
fn parse_once<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, (RequestError, bool)> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let is_data = error.inner().classify() == Category::Data;
        (
            refusal(path.trim_start_matches('.'), error.inner()),
            is_data,
        )
    })?;
    let not_json = |error| RequestError::body(format!("the body is not JSON: {error}"));
    json.end().map_err(|error| (not_json(error), false))?;
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
    use flate2::Compression;
    use flate2::write::{GzEncoder, ZlibEncoder};
    use std::io::Write;

    #[test]
    fn halves_of_surrogates_are_replaced() {
        for (sent, read) in [
            (r#"["\ud83d"]"#, r#"["\ufffd"]"#),
            (r#"["a\uDE00b"]"#, r#"["a\ufffdb"]"#),
            (r#"["\ud83d\ude00"]"#, r#"["\ud83d\ude00"]"#),
            (r#"["\ud83d\ud83d\ude00"]"#, r#"["\ufffd\ud83d\ude00"]"#),
            (r#"["\\ud83d"]"#, r#"["\\ud83d"]"#),
            (r#"["\\\ud83d\n"]"#, r#"["\\\ufffd\n"]"#),
            (r#"["\ud8"#, r#"["\ud8"#),
            (r#"["\"#, r#"["\"#),
        ] {
            let mut bytes = sent.as_bytes().to_vec();
            replace_lone_surrogates(&mut bytes);
            assert_eq!(std::str::from_utf8(&bytes), Ok(read));
        }
    }

    #[test]
    fn the_last_of_equal_keys_counts() {
        #[derive(serde::Deserialize)]
        struct Part {
            at: u64,
        }
        let parsed = |text: &str| {
            let read = ReadBody {
                bytes: text.into(),
                room: None,
            };
            parse::<Vec<Part>>(&read).map(|parts| parts[0].at)
        };
        assert_eq!(parsed(r#"[{"at":1,"at":2}]"#), Ok(2));
        assert_eq!(parsed(r#"[{"at":"x","at":2}]"#), Ok(2));
        assert_eq!(parsed(r#"[{"at":1}]"#), Ok(1));
        let error = parsed(r#"[{"at":2,"at":"x"}]"#).unwrap_err();
        assert_eq!(error.field.as_deref(), Some("[0]"));
        assert!(parsed(r#"[{"at":1,"at":2}] x"#).is_err());
    }

    #[test]
    fn compressed_bodies_are_read_within_the_limit() {
        let room = Arc::new(Semaphore::new(1 << 20));
        let text = vec![b' '; 200_000];
        let mut gzip = GzEncoder::new(Vec::new(), Compression::best());
        gzip.write_all(&text).unwrap();
        let mut zlib = ZlibEncoder::new(Vec::new(), Compression::best());
        zlib.write_all(&text).unwrap();
        let (gzip, zlib) = (gzip.finish().unwrap(), zlib.finish().unwrap());
        let unpack = |bytes: &[u8], encoding, most| {
            let read = ReadBody {
                bytes: bytes.to_vec(),
                room: None,
            };
            read.decompress(encoding, most, &room)
                .map(|read| read.bytes.len())
        };
        assert_eq!(unpack(&gzip, Encoding::Gzip, 200_000), Ok(200_000));
        assert_eq!(unpack(&zlib, Encoding::Deflate, 200_000), Ok(200_000));
        assert_eq!(unpack(b"{}", Encoding::Gzip, 200_000), Ok(2));
        let large = Err(RequestError::too_large(199_999));
        assert_eq!(unpack(&gzip, Encoding::Gzip, 199_999), large);
        assert!(unpack(&gzip[..20], Encoding::Gzip, 200_000).is_err());
        assert_eq!(room.available_permits(), 1 << 20);
    }

    #[test]
    fn a_page_must_say_that_it_sends_json() {
        let headers = |kind: Option<&str>, page: bool| {
            let mut headers = HeaderMap::new();
            kind.map(|kind| headers.insert(header::CONTENT_TYPE, kind.parse().unwrap()));
            page.then(|| headers.insert(header::ORIGIN, "http://a".parse().unwrap()));
            headers
        };
        for (kind, accepted) in [
            (Some("application/json; charset=utf-8"), true),
            (Some("application/problem+json"), true),
            (Some("text/plain"), false),
            (Some("Application/X-WWW-Form-Urlencoded"), false),
            (Some(""), false),
            (None, false),
        ] {
            assert_eq!(is_json(&headers(kind, true)), accepted, "{kind:?}");
            assert!(is_json(&headers(kind, false)), "{kind:?}");
        }
    }

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
