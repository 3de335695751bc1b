//! Request identifiers and the request log, which has one line for each request and none of its
//! content.

use crate::core::id::fresh_id;
use crate::net::ignored::IGNORED;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

/// Maximum characters of a path in the log.
const MAX_PATH_CHARS: usize = 200;
/// Maximum characters of a client's identifier: those of routers and traces have 16 to 64.
const MAX_ID_CHARS: usize = 128;
/// Header of the identifier in requests and responses.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Assigns an identifier to each request, unless it has one, and returns it with the response. Logs
/// a line once the response was sent or dropped.
pub async fn requests(request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let id = given(request.headers()).unwrap_or_else(|| fresh_id("req_"));
    let client = request
        .extensions()
        .get::<ConnectInfo<SocketAddr>>()
        .map(|peer| peer.0.ip());
    let method = request.method().clone();
    let path: String = request.uri().path().chars().take(MAX_PATH_CHARS).collect();
    let mut response = next.run(request).await;
    if let Ok(id) = HeaderValue::from_str(&id) {
        response.headers_mut().insert(REQUEST_ID, id);
    }
    let ignored = response.headers().get(IGNORED);
    let ignored = ignored.and_then(|names| Some(names.to_str().ok()?.to_owned()));
    let (status, head) = (response.status().as_u16(), begun.elapsed());
    let line = Line {
        id,
        client,
        method,
        path,
        ignored,
        status,
        begun,
        head,
        bytes: 0,
    };
    response.map(|body| {
        Body::new(Logged {
            body,
            line,
            ended: false,
        })
    })
}

/// Returns the identifier of a request, if it is safe in headers and logs.
fn given(headers: &HeaderMap) -> Option<String> {
    let id = headers.get(REQUEST_ID)?.to_str().ok()?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/+=".contains(&byte);
    ((1..=MAX_ID_CHARS).contains(&id.len()) && id.bytes().all(plain)).then(|| id.to_owned())
}

/// Fields of a log line.
struct Line {
    id: String,
    client: Option<IpAddr>,
    method: Method,
    path: String,
    /// Names of the request's fields that have no effect.
    ignored: Option<String>,
    status: u16,
    begun: Instant,
    /// Time until the head of the response.
    head: Duration,
    /// Bytes of the response.
    bytes: u64,
}

/// Response body that logs the line when it is dropped.
struct Logged {
    body: Body,
    line: Line,
    ended: bool,
}

impl HttpBody for Logged {
    type Data = Bytes;
    type Error = axum::Error;
    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                self.line.bytes += frame.data_ref().map_or(0, |data| data.len() as u64)
            }
            Some(Err(_)) => {}
            None => self.ended = true,
        }
        Poll::Ready(frame)
    }
    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Logged {
    fn drop(&mut self) {
        // A body of known length is not polled after its end.
        let whole = self.ended || self.body.is_end_stream();
        let Line {
            id,
            client,
            method,
            path,
            ignored,
            status,
            begun,
            head,
            bytes,
        } = &self.line;
        let milliseconds = |time: Duration| time.as_millis() as u64;
        let (head_ms, total_ms) = (milliseconds(*head), milliseconds(begun.elapsed()));
        let client = client.map(tracing::field::display);
        let ignored = ignored.as_deref();
        tracing::info!(client, id, %method, path, status, head_ms, total_ms, bytes, whole, ignored, "request");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_is_taken_if_it_can_stand_in_a_log() {
        let given = |id: &[u8]| {
            let headers =
                HeaderMap::from_iter([(REQUEST_ID, HeaderValue::from_bytes(id).unwrap())]);
            given(&headers)
        };
        for id in [
            "chatcmpl-8WcVBOZ2r2Q3bsY93JagdY6S",
            "0af7651916cd43dd8448eb211c80319c",
            "a/b:c=",
            &"x".repeat(MAX_ID_CHARS),
        ] {
            assert_eq!(given(id.as_bytes()).as_deref(), Some(id));
        }
        for id in [
            &b""[..],
            b"two words",
            b"a\"b",
            b"caf\xe9",
            b"a\tb",
            "x".repeat(MAX_ID_CHARS + 1).as_bytes(),
        ] {
            assert_eq!(given(id), None, "{}", id.escape_ascii());
        }
        assert_eq!(super::given(&HeaderMap::new()), None);
    }
}
