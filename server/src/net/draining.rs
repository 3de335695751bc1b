//! Closing of connections while the server drains, and reading of bodies that were refused.

use crate::app::App;
use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use futures_util::StreamExt;
use futures_util::stream::poll_fn as stream_fn;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

/// Closes the connection after the response while the server drains. Otherwise a client could send
/// its next request on a connection that is just being closed, and lose it; a new connection is
/// routed to another server.
pub async fn close(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if app.models.is_draining() {
        response
            .headers_mut()
            .insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Bytes of a refused request's body that are read and discarded: a client that is still sending
/// does not read the response, and would see a reset connection.
const MAX_DRAINED: usize = 64 << 20;
/// Maximum time to read the rest of a refused body.
const MAX_DRAIN_TIME: Duration = Duration::from_secs(10);

/// Reads the rest of a body that was refused unread, within limits, before the refusal is sent.
pub async fn read_refused(request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let body = Arc::new(Mutex::new(body.into_data_stream()));
    let lent = body.clone();
    let lent = stream_fn(move |context| poll(&lent, context));
    let request = Request::from_parts(parts, Body::from_stream(lent));
    let response = next.run(request).await;
    let status = response.status();
    if status.is_client_error() || status.is_server_error() {
        let rest = async {
            let mut read = 0;
            while let Some(Ok(piece)) = poll_fn(|context| poll(&body, context)).await
                && read < MAX_DRAINED
            {
                read += piece.len();
            }
        };
        // The refusal is sent even if the client is too slow.
        let _ = tokio::time::timeout(MAX_DRAIN_TIME, rest).await;
    }
    response
}

fn poll(
    body: &Mutex<BodyDataStream>,
    context: &mut Context,
) -> Poll<Option<Result<Bytes, axum::Error>>> {
    let mut body = body.lock().unwrap_or_else(PoisonError::into_inner);
    body.poll_next_unpin(context)
}
