//! Messages of `grpc.health.v1`, the health service of gRPC.

use prost::{Enumeration, Message};

/// Request for the health of a service.
#[derive(Clone, PartialEq, Message)]
pub struct ServingRequest {
    /// Name of the service; empty for the whole server.
    #[prost(string, tag = "1")]
    pub service: String,
}

/// Health of a service.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct ServingResponse {
    /// Whether it accepts requests.
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub status: i32,
}

/// Whether a service accepts requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Enumeration)]
#[repr(i32)]
pub enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
}
