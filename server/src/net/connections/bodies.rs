//! Body wrappers that report the progress of requests and responses to the connection registry.

use crate::connection_registry::Connection;
use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Request body that reports when it begins to arrive, and when it has arrived or is dropped.
pub struct IncomingBody<B> {
    body: B,
    connection: Arc<Connection>,
}

impl<B: HttpBody> IncomingBody<B> {
    /// Wraps the body of a request, after its head has arrived.
    pub fn new(body: B, connection: Arc<Connection>) -> IncomingBody<B> {
        connection.begun();
        if body.is_end_stream() {
            connection.requested();
        }
        IncomingBody { body, connection }
    }
}

impl<B: HttpBody + Unpin> HttpBody for IncomingBody<B> {
    type Data = B::Data;
    type Error = B::Error;
    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        if matches!(frame, Poll::Ready(None)) {
            self.connection.requested();
        }
        frame
    }
    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B> Drop for IncomingBody<B> {
    fn drop(&mut self) {
        self.connection.requested();
    }
}

/// Response body that reports when it was sent or is dropped.
pub struct OutgoingBody {
    body: Body,
    connection: Arc<Connection>,
}

impl OutgoingBody {
    /// Wraps the body of a response.
    pub fn new(body: Body, connection: Arc<Connection>) -> OutgoingBody {
        OutgoingBody { body, connection }
    }
}

impl HttpBody for OutgoingBody {
    type Data = Bytes;
    type Error = axum::Error;
    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }
    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for OutgoingBody {
    fn drop(&mut self) {
        self.connection.answered();
    }
}

#[cfg(test)]
mod tests {
    use super::IncomingBody;
    use crate::connection_registry::Registry;
    use axum::body::Body;
    use std::net::Ipv4Addr;

    #[test]
    fn a_head_is_the_beginning_of_a_request_and_its_body_the_end() {
        let place = Registry::new(1)
            .admit(0, Ipv4Addr::LOCALHOST.into())
            .unwrap();
        let connection = &place.connection;
        let since = connection.waiting_since();
        let body = IncomingBody::new(Body::from("a body"), connection.clone());
        assert!(connection.waiting_since() > since);
        drop(body);
        assert_eq!(connection.waiting_since(), None);
        connection.answered();
        drop(IncomingBody::new(Body::empty(), connection.clone()));
        assert_eq!(connection.waiting_since(), None);
    }
}
