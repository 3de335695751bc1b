//! Errors of requests as gRPC statuses.

use gristmill_server::worker::{ErrorKind, RequestError};
use tonic::{Code, Status};

/// Returns the status of an error, with its message.
pub fn status(error: &RequestError) -> Status {
    let code = match error.kind {
        ErrorKind::Invalid | ErrorKind::MediaType => Code::InvalidArgument,
        ErrorKind::Unauthorized => Code::Unauthenticated,
        ErrorKind::Forbidden => Code::PermissionDenied,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::Method => Code::Unimplemented,
        ErrorKind::Timeout => Code::DeadlineExceeded,
        ErrorKind::TooLarge | ErrorKind::Busy => Code::ResourceExhausted,
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::Internal => Code::Internal,
    };
    Status::new(code, &error.message)
}
