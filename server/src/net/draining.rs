//! Connections of a server that was asked to end.

use crate::app::App;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, header};
use axum::middleware::Next;
use axum::response::Response;
use std::sync::Arc;

/// Has a connection end with its answer once nobody is let in any more. Whoever kept it for the next request opens another, which a router opens to another
/// server; a connection that the server closes while a request is on its way loses that request.
pub async fn close(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if app.models.is_draining() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}
