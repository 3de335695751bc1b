//! Accepting and limiting connections.

use futures_util::Stream;
use futures_util::stream::unfold;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tonic::transport::server::{Connected, TcpConnectInfo};

/// Maximum connections. A router has one or two; further ones are closed at once.
const MAX_CONNECTIONS: usize = 256;
/// Bytes with which a client of HTTP/2 begins; afterwards it has to answer pings.
const PREFACE_BYTES: usize = 24;
/// Pause of `accept` after the system had no file descriptor or memory.
const BACK_OFF: Duration = Duration::from_millis(50);

/// A connection that counts until it is dropped.
pub struct Connection {
    stream: TcpStream,
    /// Time limit of the preface, until it has arrived.
    opening: Option<Pin<Box<Sleep>>>,
    /// Bytes of the preface that are missing.
    missing: usize,
    _permit: OwnedSemaphorePermit,
}

/// Returns the connections of a listener. A client has `head_time` for its first bytes.
pub fn accept(
    listener: TcpListener,
    head_time: Duration,
) -> impl Stream<Item = io::Result<Connection>> + Send {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    unfold((listener, permits), move |(listener, permits)| async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else {
                sleep(BACK_OFF).await;
                continue;
            };
            let Ok(permit) = permits.clone().try_acquire_owned() else {
                continue;
            };
            // Chunks are small and must not wait for each other (Nagle).
            let _ = stream.set_nodelay(true);
            let connection = Connection {
                stream,
                opening: Some(Box::pin(sleep(head_time))),
                missing: PREFACE_BYTES,
                _permit: permit,
            };
            return Some((Ok(connection), (listener, permits)));
        }
    })
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;
    fn connect_info(&self) -> TcpConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        buffer: &mut ReadBuf,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Some(limit) = &mut self.opening {
            if read.is_pending() && limit.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.missing = self.missing.saturating_sub(buffer.filled().len() - before);
            if self.missing == 0 {
                self.opening = None;
            }
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        bytes: &[io::IoSlice],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, bytes)
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
