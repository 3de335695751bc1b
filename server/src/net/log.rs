//! A line of the log for every request: who, what, and how it went. Nothing of what was said.

use axum::extract::{ConnectInfo, Request};
use axum::middleware::Next;
use axum::response::Response;
use std::net::SocketAddr;
use std::time::Instant;

/// Most characters of a path.
const PATH: usize = 200;

/// Writes it, once the head of the answer is there.
pub async fn requests(request: Request, next: Next) -> Response {
    let begun = Instant::now();
    let peer = request.extensions().get::<ConnectInfo<SocketAddr>>().map(|peer| peer.0.ip());
    let method = request.method().clone();
    let path: String = request.uri().path().chars().take(PATH).collect();
    let response = next.run(request).await;
    let (status, time) = (response.status().as_u16(), begun.elapsed().as_millis() as u64);
    let client = peer.map(tracing::field::display);
    tracing::info!(client, %method, path, status, head_ms = time, "request");
    response
}
