//! Closing of connections while the server drains.

use crate::app::App;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;

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
