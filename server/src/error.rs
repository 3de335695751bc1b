//! Refusals and failures, as OpenAI's clients expect them.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// Why a request gets no answer, or not the rest of one.
#[derive(Clone, Debug, PartialEq)]
pub struct ApiError {
    /// The status of the response, where it has not begun yet.
    pub status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
    message: String,
}

const INVALID: &str = "invalid_request_error";
/// Most characters of a message, which may repeat what a client has sent.
const MOST: usize = 300;

fn short(mut message: String) -> String {
    if let Some((end, _)) = message.char_indices().nth(MOST) {
        message.truncate(end);
        message.push('…');
    }
    message
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { status, kind, code: None, param: None, message: short(message.into()) }
    }
    fn code(mut self, code: &'static str) -> ApiError {
        self.code = Some(code);
        self
    }
    /// A parameter that cannot be honoured: which one, and why.
    pub fn parameter(name: impl Into<String>, message: impl Into<String>) -> ApiError {
        let param = Some(name.into());
        ApiError { param, ..ApiError::new(StatusCode::BAD_REQUEST, INVALID, message) }
    }
    /// The same with that code.
    pub fn with_code(self, code: &'static str) -> ApiError {
        self.code(code)
    }
    /// A parameter that must be there.
    pub fn missing(name: impl Into<String>) -> ApiError {
        let name = name.into();
        let message = format!("Missing required parameter: '{name}'.");
        ApiError::parameter(name, message).code("missing_required_parameter")
    }
    /// Parameters that nobody knows here, in the words of OpenAI.
    pub fn unknown(names: &[&str]) -> ApiError {
        let several = if names.len() > 1 { "s" } else { "" };
        ApiError::body(format!("Unrecognized request argument{several} supplied: {}", names.join(", ")))
    }
    /// A body that is no request.
    pub fn body(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, INVALID, message)
    }
    /// A body that is too long.
    pub fn too_large(limit: usize) -> ApiError {
        let message =
            format!("the body is longer than {limit} bytes; shorten it, or start the server with a larger --max-body");
        ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, INVALID, message).code("request_too_large")
    }
    /// A body that did not arrive.
    pub fn too_slow() -> ApiError {
        ApiError::new(StatusCode::REQUEST_TIMEOUT, INVALID, "the body did not arrive in time")
    }
    /// A body of another type.
    pub fn media_type() -> ApiError {
        let message = "the body must be JSON, with the header Content-Type: application/json";
        ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID, message)
    }
    /// A prompt that does not fit, of that parameter.
    pub fn context(name: &str, prompt: usize, context: usize) -> ApiError {
        let message = format!(
            "the prompt takes at least {prompt} tokens, and the context has {context}, of which one must be left for the answer"
        );
        ApiError::parameter(name, message).code("context_length_exceeded")
    }
    /// No key, or a wrong one.
    pub fn key() -> ApiError {
        let message = "a valid API key is needed: Authorization: Bearer KEY";
        ApiError::new(StatusCode::UNAUTHORIZED, INVALID, message).code("invalid_api_key")
    }
    /// A name by which a server on loopback should not be reached: a page elsewhere may have it resolved to here.
    pub fn host() -> ApiError {
        let message = "this server answers to localhost only; start it with --host to be reached by other names";
        ApiError::new(StatusCode::FORBIDDEN, INVALID, message).code("host_not_allowed")
    }
    /// A model that is not served here.
    pub fn model(asked: &str, served: &str) -> ApiError {
        let asked: String = asked.chars().take(100).collect();
        let message = format!("the model `{asked}` does not exist here; this server has `{served}`");
        let error = ApiError::new(StatusCode::NOT_FOUND, INVALID, message).code("model_not_found");
        ApiError { param: Some("model".into()), ..error }
    }
    /// A path that leads nowhere.
    pub fn path(path: &str) -> ApiError {
        let path: String = path.chars().take(100).collect();
        ApiError::new(StatusCode::NOT_FOUND, INVALID, format!("there is nothing at {path}")).code("unknown_url")
    }
    /// A path that takes another method.
    pub fn method() -> ApiError {
        ApiError::new(StatusCode::METHOD_NOT_ALLOWED, INVALID, "this path takes another method")
            .code("method_not_allowed")
    }
    /// Too many wait already.
    pub fn busy(waiting: usize) -> ApiError {
        let message = format!("{waiting} requests are waiting already; try again in a moment");
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message).code("queue_full")
    }
    /// Too many are connected already.
    pub fn crowded() -> ApiError {
        let message = "too many connections; try again in a moment";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message).code("too_many_connections")
    }
    /// An answer that was told faster than it was read.
    pub fn unread() -> ApiError {
        let message = "the answer was not read fast enough, and ends here";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message).code("answer_unread")
    }
    /// Bodies of others take all the memory there is for them.
    pub fn bodies() -> ApiError {
        let message = "others are sending too much at the moment; try again soon";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message).code("too_many_bodies")
    }
    /// The engine is gone for good, and why.
    pub fn failed(why: &str) -> ApiError {
        let message = format!("the model cannot be run any more: {why}");
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message).code("engine_failed")
    }
    /// A schema that turned out to be impossible to follow, or too expensive, while an answer was written.
    pub fn constraint(why: impl std::fmt::Display) -> ApiError {
        ApiError::body(format!("the schema cannot be followed any further: {why}")).code("schema_too_complex")
    }
    /// A host that may mean two things to two readers.
    pub fn host_header(message: &str) -> ApiError {
        ApiError::body(message).code("invalid_host")
    }
    /// The server is about to end.
    pub fn closing() -> ApiError {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", "the server is shutting down")
    }
    /// The model is not there yet.
    pub fn loading() -> ApiError {
        let message =
            "the model is being loaded, and its kernels compiled where that is the first time; try again in a moment";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message).code("model_loading")
    }
    /// Something of ours that should not have happened.
    pub fn internal(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }
    /// The error object.
    pub fn to_json(&self) -> Value {
        json!({ "error": { "message": self.message, "type": self.kind, "param": self.param, "code": self.code } })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.to_json())).into_response();
        let headers = response.headers_mut();
        match self.status {
            // Clients wait that long before they try again, if they do.
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}
