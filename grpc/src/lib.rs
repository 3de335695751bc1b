//! A second port of the server, for routers such as smg: vLLM's worker protocol over gRPC.
//!
//! Requests enter the same queue as those of the HTTP interfaces and have the same limits, API key
//! and graceful shutdown. A router sends token ids and gets token ids. It subscribes to the events
//! of the KV cache, so that requests go to the server that has the longest prefix of their prompt.

mod connection;
mod error;
mod generate;
mod kv_events;
pub mod messages;
mod request;
mod router;
mod running;
mod service;

use crate::router::Router;
use crate::service::Methods;
use gristmill_server::Server;
use gristmill_server::worker::Worker;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;
use tonic::transport;

/// Calls allowed for each queued request: health, loads and subscriptions are calls too.
const CALLS_PER_REQUEST: usize = 4;
/// Maximum bytes of a call's headers.
const MAX_HEADER_BYTES: u32 = 16 << 10;
/// Interval of pings, and time for a client to answer: connections of dead clients are closed.
const PING_INTERVAL: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Opens the gRPC port of a server at `address`; returns the address with the port that it has.
/// Calls get the status `UNAVAILABLE` until the server has its model. The server's configuration
/// needs `kv_events` for subscriptions, and the server a single model.
///
/// # Errors
/// When the address is not available.
pub fn listen(server: &mut Server, address: SocketAddr) -> io::Result<SocketAddr> {
    let mut listens = address;
    let bind = async {
        let listener = TcpListener::bind(address).await?;
        listens = listener.local_addr()?;
        Ok::<_, io::Error>(listener)
    };
    server.serve_beside(bind, serve)?;
    Ok(listens)
}

/// Serves the connections of a listener until the worker is closed and its clients are served.
async fn serve(listener: TcpListener, worker: Worker) {
    let config = worker.config();
    let wanted = config.queue.saturating_mul(CALLS_PER_REQUEST);
    let calls = config.connections.max(wanted);
    let incoming = connection::accept(listener, config.head_time);
    let streams = u32::try_from(calls).unwrap_or(u32::MAX);
    let server = transport::Server::builder()
        .max_concurrent_streams(streams)
        .http2_max_header_list_size(MAX_HEADER_BYTES)
        .http2_keepalive_interval(Some(PING_INTERVAL))
        .http2_keepalive_timeout(Some(PING_TIMEOUT));
    let router = Router::new(Methods::new(worker.clone(), calls));
    let served = server.serve_with_incoming_shutdown(router, incoming, worker.closed());
    if let Err(error) = served.await {
        tracing::error!(%error, "the gRPC port failed");
    }
}
