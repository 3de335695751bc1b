//! Socket wrapper that closes the connection of a client that does not read.

use crate::connection_registry::Connection;
use hyper::rt::{Read, ReadBufCursor, Write};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep};

/// Minimum average rate at which a client must read pending data, in bytes per second. Reading is
/// noticed every 43 KiB ([`super::SEND_BUFFER`]), which take 21 s at this rate: a `write_time`
/// below that requires 43 KiB within it. Telephone modems were faster.
const MIN_BYTES_PER_SECOND: u64 = 2048;

/// A socket with a deadline for its client to read what was written.
pub struct Watched<S> {
    stream: S,
    connection: Arc<Connection>,
    /// Maximum time without reading.
    patience: Duration,
    /// Time by which the client must have read more; `None` while every write completes.
    deadline: Option<Instant>,
    timer: Pin<Box<Sleep>>,
}

impl<S> Watched<S> {
    /// Wraps a stream, which fails once its client has not read for `patience`.
    pub fn new(stream: S, connection: Arc<Connection>, patience: Duration) -> Watched<S> {
        let timer = Box::pin(tokio::time::sleep(patience));
        Watched {
            stream,
            connection,
            patience,
            deadline: None,
            timer,
        }
    }
    /// Updates the deadline after a write of `offered` bytes.
    fn judge(
        &mut self,
        context: &mut Context,
        offered: usize,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match written {
            Poll::Ready(Ok(n)) if n == offered => {
                if self.deadline.take().is_some() {
                    self.connection.set_stalled(false);
                }
            }
            Poll::Ready(Ok(n)) => {
                // Bytes that were read extend the deadline, up to `patience` from now.
                let bought = Duration::from_millis(n as u64 * 1000 / MIN_BYTES_PER_SECOND);
                let most = Instant::now() + self.patience;
                self.deadline = self.deadline.map(|deadline| (deadline + bought).min(most));
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending => {
                if self.deadline.is_none() {
                    self.connection.set_stalled(true);
                }
                let deadline = *self
                    .deadline
                    .get_or_insert_with(|| Instant::now() + self.patience);
                if self.timer.deadline() != deadline {
                    self.timer.as_mut().reset(deadline);
                }
                if self.timer.as_mut().poll(context).is_ready() {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
        }
        written
    }
}

impl<S: Read + Unpin> Read for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: Write + Unpin> Write for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.judge(context, bytes.len(), written)
    }
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context,
        bytes: &[IoSlice],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.judge(
            context,
            bytes.iter().map(|slice| slice.len()).sum(),
            written,
        )
    }
    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        // hyper flushes once its own buffer is empty.
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.connection.flushed();
        }
        flushed
    }
    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
