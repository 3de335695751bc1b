//! Sockets: accepting, limiting and closing connections.
//!
//! Every wait for a client has a timeout: for a request head and between requests (`head_time`),
//! for a body (`body_time`, see [`crate::net::body`]), and for the client to read a response
//! (`write_time`). At the connection limit, the connection that has waited longest for its client
//! is closed ([`crate::connection_registry`]), so slow clients displace each other and not those
//! with a complete request.

mod bodies;
mod stream;

use crate::config::Config;
use crate::connection_registry::{ConnectionSlot, Registry};
use crate::core::error::RequestError;
use crate::net::error::to_json;
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use bodies::{IncomingBody, OutgoingBody};
use futures_util::future::{Either, select};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use stream::Watched;
use tokio::io::AsyncWrite;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tower::ServiceExt;

/// Connections allowed for each queued request: a client keeps one or two idle connections, and the
/// chat page more.
const CONNECTIONS_PER_REQUEST: usize = 4;
/// Maximum bytes of a request head, and of hyper's buffers in either direction. Browsers and
/// proxies send up to 16 KiB.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// File descriptors reserved for other uses than connections: weights, kernels, libraries, pipes of
/// compilers.
const RESERVED_FILES: usize = 256;
/// Send buffer of a socket in bytes; Linux doubles it and reports space once a third is free, so a
/// client must read 43 KiB to be seen reading. The default buffer held 4 MiB, and readers below 47
/// kB/s looked stalled. 64 KiB allow 640 kB/s at 100 ms, a hundred times the rate of text.
const SEND_BUFFER: usize = 64 << 10;
/// Pause of `accept` after the system had no file descriptor or memory: about the time in which a
/// connection closes.
const BACK_OFF: Duration = Duration::from_millis(50);
/// Maximum connections that are refused with a response at a time; further ones are closed without.
const MAX_REFUSALS: usize = 32;
/// Maximum time for a client to read the refusal.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Listener and connections of a server.
pub struct Connections {
    listener: TcpListener,
    router: Router,
    config: Config,
    registry: Arc<Registry>,
    refusing: Arc<Semaphore>,
}

impl Connections {
    /// Accepts the connections of `listener` and handles their requests with `router`.
    pub fn new(listener: TcpListener, router: Router, config: Config) -> Connections {
        let wanted = config
            .connections
            .max(config.queue.saturating_mul(CONNECTIONS_PER_REQUEST));
        let registry = Registry::new(wanted.min(room_for(wanted)));
        Connections {
            listener,
            router,
            config,
            registry,
            refusing: Arc::new(Semaphore::new(MAX_REFUSALS)),
        }
    }
    /// Returns the registry of open connections.
    pub fn registry(&self) -> Arc<Registry> {
        self.registry.clone()
    }
    /// Serves connections until `end`; then accepts no more and waits for the open ones to finish.
    pub async fn serve(self, end: impl Future<Output = ()>) {
        let mut end = pin!(end);
        let (closing, closed) = watch::channel(false);
        let mut tasks = JoinSet::new();
        let mut number = 0;
        loop {
            let accepted = match select(&mut end, pin!(self.listener.accept())).await {
                Either::Left(_) => break,
                Either::Right((accepted, _)) => accepted,
            };
            while tasks.try_join_next().is_some() {}
            match accepted {
                Ok((stream, peer)) => {
                    // Stream chunks are small and must not wait for each other (Nagle). If this
                    // fails, they are merely later.
                    let _ = stream.set_nodelay(true);
                    // If this fails, slow readers look stalled at a higher rate ([`SEND_BUFFER`]).
                    let _ = set_socket_send_buffer_size(&stream, SEND_BUFFER);
                    number += 1;
                    match self.registry.admit(number, peer.ip()) {
                        Some(place) => tasks.spawn(self.one(stream, peer, place, closed.clone())),
                        None => match self.refusing.clone().try_acquire_owned() {
                            Ok(turn) => tasks.spawn(async move {
                                let _turn = turn;
                                let _ = tokio::time::timeout(REFUSAL_TIMEOUT, refuse(stream)).await;
                            }),
                            Err(_) => continue,
                        },
                    };
                }
                // The client disconnected before it was accepted.
                Err(error) if is_of_one_connection(&error) => {}
                Err(_) => {
                    self.registry.make_room();
                    tokio::time::sleep(BACK_OFF).await;
                }
            }
        }
        // Closes the listening socket, so that the system refuses new connections while the open
        // ones finish.
        drop(self.listener);
        let _ = closing.send(true);
        while tasks.join_next().await.is_some() {}
    }
    /// Serves one connection from its beginning to its end.
    fn one(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        place: ConnectionSlot,
        mut closed: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let connection = place.connection.clone();
        let io = Watched::new(
            TokioIo::new(stream),
            connection.clone(),
            self.config.write_time,
        );
        let router = self.router.clone();
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let (router, connection) = (router.clone(), connection.clone());
            async move {
                let mut request =
                    request.map(|body| Body::new(IncomingBody::new(body, connection.clone())));
                request.extensions_mut().insert(ConnectInfo(peer));
                // A router is always ready and cannot fail.
                let response = router
                    .oneshot(request)
                    .await
                    .unwrap_or_else(|never| match never {});
                Ok::<_, Infallible>(
                    response.map(|body| Body::new(OutgoingBody::new(body, connection))),
                )
            }
        });
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(self.config.head_time)
            .max_buf_size(MAX_HEAD_BYTES);
        let serving = builder.serve_connection(io, service);
        async move {
            let mut serving = pin!(serving);
            let mut evicted = pin!(place.connection.evicted.notified());
            let mut closing = pin!(closed.wait_for(|&closed| closed));
            let mut is_closing = false;
            poll_fn(|context| {
                if !is_closing && closing.as_mut().poll(context).is_ready() {
                    is_closing = true;
                    serving.as_mut().graceful_shutdown();
                }
                // Errors of a connection concern its client only.
                if serving.as_mut().poll(context).is_ready()
                    || evicted.as_mut().poll(context).is_ready()
                {
                    return Poll::Ready(());
                }
                // An idle connection is closed: it has no request and its last response was sent. A
                // client that does not read the rest of a response has `write_time` for it.
                match is_closing && place.connection.is_idle() {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            })
            .await;
        }
    }
}

/// Responds that the server is full and waits until the client has read it: closing a socket with
/// unread input would discard the response.
async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    let body = to_json(&RequestError::crowded()).to_string();
    let length = body.len();
    let response = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    stream.writable().await?;
    // The response fits into the send buffer of a new socket.
    stream.try_write(response.as_bytes())?;
    poll_fn(|context| Pin::new(&mut stream).poll_shutdown(context)).await?;
    let mut unread = [0; 1024];
    loop {
        stream.readable().await?;
        match stream.try_read(&mut unread) {
            Ok(0) => return Ok(()),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
    }
}

/// Returns whether an error of `accept` concerns that connection only.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted
    )
}

/// Raises the limit of open files for `connections` connections; returns the number that it allows.
fn room_for(connections: usize) -> usize {
    let wanted = (connections + RESERVED_FILES) as u64;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(current) = current.filter(|&current| current < wanted) else {
        return connections;
    };
    let raised = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let had = match setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(raised),
            maximum,
        },
    ) {
        Ok(()) => raised,
        Err(_) => current,
    };
    // With a low limit, connections may use half of the files.
    usize::try_from(had.saturating_sub(RESERVED_FILES as u64).max(had / 2))
        .unwrap_or(connections)
        .max(1)
}
