//! Sockets: who is let in, for how long, and who has to go.
//!
//! Every wait for a client has an end: for the head of a request and between requests (`head_time`), for a body (`body_time`, see
//! [`crate::net::body`]), for an answer to be read (`write_time`). Where there is no room, the connection goes that has waited for its client
//! the longest ([`crate::connection_registry`]); so slow clients keep each other out, and not those who have sent a request.

mod bodies;
mod stream;

use crate::config::Config;
use crate::connection_registry::{ConnectionSlot, Registry};
use crate::core::error::RequestError;
use crate::net::error::to_json;
use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use bodies::{Arriving, Leaving};
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

/// Connections for each request that may wait: a client keeps one or two open that wait for nothing, and pages more.
const CONNECTIONS_PER_REQUEST: usize = 4;
/// Most bytes of a head, and of what hyper buffers of a body in either direction. Browsers and proxies send heads of up to 16 KiB.
const MAX_HEAD_BYTES: usize = 64 << 10;
/// Files that the process needs besides connections: weights, kernels, libraries, pipes of compilers.
const RESERVED_FILES: usize = 256;
/// Bytes that the system is asked to hold of what a client does not read; Linux makes it twice as many, for what it needs besides. It says
/// that there is room again when a third of them is free, so a client must have read 43 KiB to be seen reading: 1.4 KiB a second with a
/// `write_time` of 30 s. Left to itself, it held 4 MiB of an answer of 5, and a reader of less than 47 kB a second looked like none. 64 KiB on
/// their way are 640 kB a second over 100 ms, a hundred times what a model tells without probabilities.
const SEND_BUFFER: usize = 64 << 10;
/// How long nobody is let in after the system had no file, or no memory, for one more: about as long as one of them takes to leave.
const BACK_OFF: Duration = Duration::from_millis(50);
/// Who is told at a time that there is no room; more are just closed.
const MAX_REFUSALS: usize = 32;
/// How long whoever is told so may take to read it.
const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// The sockets of a server.
pub struct Connections {
    listener: TcpListener,
    router: Router,
    config: Config,
    registry: Arc<Registry>,
    refusing: Arc<Semaphore>,
}

impl Connections {
    /// Those that `listener` has, answered by `router`.
    pub fn new(listener: TcpListener, router: Router, config: Config) -> Connections {
        let wanted = config.connections.max(config.queue.saturating_mul(CONNECTIONS_PER_REQUEST));
        let registry = Registry::new(wanted.min(room_for(wanted)));
        Connections { listener, router, config, registry, refusing: Arc::new(Semaphore::new(MAX_REFUSALS)) }
    }
    /// Who is connected.
    pub fn registry(&self) -> Arc<Registry> {
        self.registry.clone()
    }
    /// Serves them until `end`; then nobody is let in, and who is being answered is waited for.
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
                    // Pieces of a stream are small; none shall wait for the next. Without that they are only later.
                    let _ = stream.set_nodelay(true);
                    // Without that a slow reader has to be faster.
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
                // It left before it was let in.
                Err(error) if is_of_one_connection(&error) => {}
                Err(_) => {
                    self.registry.make_room();
                    tokio::time::sleep(BACK_OFF).await;
                }
            }
        }
        // A server that ends does not wait for its sockets alone: whoever comes now is refused by the system.
        drop(self.listener);
        let _ = closing.send(true);
        while tasks.join_next().await.is_some() {}
    }
    /// One connection, from its beginning to its end.
    fn one(
        &self,
        stream: TcpStream,
        peer: SocketAddr,
        place: ConnectionSlot,
        mut closed: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + 'static {
        let connection = place.connection.clone();
        let io = Watched::new(TokioIo::new(stream), connection.clone(), self.config.write_time);
        let router = self.router.clone();
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let (router, connection) = (router.clone(), connection.clone());
            async move {
                let mut request = request.map(|body| Body::new(Arriving::new(body, connection.clone())));
                request.extensions_mut().insert(ConnectInfo(peer));
                // A router is always ready, and never fails.
                let response = router.oneshot(request).await.unwrap_or_else(|never| match never {});
                Ok::<_, Infallible>(response.map(|body| Body::new(Leaving::new(body, connection))))
            }
        });
        let mut builder = http1::Builder::new();
        builder.timer(TokioTimer::new()).header_read_timeout(self.config.head_time).max_buf_size(MAX_HEAD_BYTES);
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
                // What went wrong with a connection is its client's matter.
                if serving.as_mut().poll(context).is_ready() || evicted.as_mut().poll(context).is_ready() {
                    return Poll::Ready(());
                }
                // Nobody is waited for who has not asked for anything, and has all of what was asked for before. A client that does not
                // read the rest of an answer has `write_time` for it.
                match is_closing && place.connection.is_idle() {
                    true => Poll::Ready(()),
                    false => Poll::Pending,
                }
            })
            .await;
        }
    }
}

/// Says that there is no room, and waits for it to be read: a socket that is closed with unread bytes takes back what it has said.
async fn refuse(mut stream: TcpStream) -> io::Result<()> {
    let body = to_json(&RequestError::crowded()).to_string();
    let length = body.len();
    let response = format!(
        "HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    stream.writable().await?;
    // It fits into the buffer of a socket that has sent nothing yet.
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

/// Errors of `accept` that say nothing about the next one.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

/// Asks the system for files for so many connections; how many it has room for.
fn room_for(connections: usize) -> usize {
    let wanted = (connections + RESERVED_FILES) as u64;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let Some(current) = current.filter(|&current| current < wanted) else { return connections };
    let raised = maximum.map_or(wanted, |maximum| maximum.min(wanted));
    let had = match setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum }) {
        Ok(()) => raised,
        Err(_) => current,
    };
    // Where there are few, connections have half of them.
    usize::try_from(had.saturating_sub(RESERVED_FILES as u64).max(had / 2)).unwrap_or(connections).max(1)
}
