//! Errors of requests, independent of the interface.

/// Error that ends a request, before or during its response.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestError {
    /// Kind of error, which determines the HTTP status.
    pub kind: ErrorKind,
    /// Machine-readable code of the interfaces, such as `queue_full`.
    pub code: Option<&'static str>,
    /// Path of the field at fault, as the request calls it.
    pub field: Option<String>,
    /// Cause of the error, and how to avoid it.
    pub message: String,
}

/// Kinds of errors; each interface maps them to a status and an error type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// The request is malformed or not supported.
    Invalid,
    /// The API key is missing or wrong.
    Unauthorized,
    /// The `Host` or origin of the request is not allowed.
    Forbidden,
    /// The path or model does not exist.
    NotFound,
    /// The path does not support the HTTP method.
    Method,
    /// The body did not arrive in time.
    Timeout,
    /// The body exceeds the size limit.
    TooLarge,
    /// The body has another content type than JSON.
    MediaType,
    /// The queue is full.
    Busy,
    /// The server is loading, overloaded, draining, or its engine has failed.
    Unavailable,
    /// The server itself is at fault.
    Internal,
}

/// Maximum characters of a message, as it may repeat parts of the request.
const MAX_MESSAGE_CHARS: usize = 300;

fn truncated(mut message: String) -> String {
    if let Some((end, _)) = message.char_indices().nth(MAX_MESSAGE_CHARS) {
        message.truncate(end);
        message.push('…');
    }
    message
}

/// Lists the first names for a message, and the number of the others.
fn listed(names: &[&str]) -> String {
    const MAX_LISTED_NAMES: usize = 8;
    let mut text = names
        .iter()
        .take(MAX_LISTED_NAMES)
        .map(|name| format!("`{name}`"))
        .collect::<Vec<_>>()
        .join(", ");
    if names.len() > MAX_LISTED_NAMES {
        text.push_str(&format!(
            " and {} more, which /v1/models lists",
            names.len() - MAX_LISTED_NAMES
        ));
    }
    text
}

impl RequestError {
    fn new(kind: ErrorKind, message: impl Into<String>) -> RequestError {
        RequestError {
            kind,
            code: None,
            field: None,
            message: truncated(message.into()),
        }
    }
    fn code(mut self, code: &'static str) -> RequestError {
        self.code = Some(code);
        self
    }
    /// Error about a parameter that is invalid or not supported.
    pub fn parameter(name: impl Into<String>, message: impl Into<String>) -> RequestError {
        let field = Some(name.into());
        RequestError {
            field,
            ..RequestError::new(ErrorKind::Invalid, message)
        }
    }
    /// Returns the error with a machine-readable code.
    pub fn with_code(self, code: &'static str) -> RequestError {
        self.code(code)
    }
    /// Error about a missing required parameter.
    pub fn missing(name: impl Into<String>) -> RequestError {
        let name = name.into();
        let message = format!("Missing required parameter: '{name}'.");
        RequestError::parameter(name, message).code("missing_required_parameter")
    }
    /// Error about an unknown parameter whose name is nearly that of a known one.
    pub fn misspelt(name: &str, nearest: &str) -> RequestError {
        let message =
            format!("Unrecognized request argument supplied: {name}; did you mean {nearest}?");
        RequestError::parameter(name, message).code("unknown_parameter")
    }
    /// Error about a malformed request body.
    pub fn body(message: impl Into<String>) -> RequestError {
        RequestError::new(ErrorKind::Invalid, message)
    }
    /// Error about a body longer than `limit` bytes.
    pub fn too_large(limit: usize) -> RequestError {
        let message = format!(
            "the body is longer than {limit} bytes; shorten it, or start the server with a larger --max-body"
        );
        RequestError::new(ErrorKind::TooLarge, message).code("request_too_large")
    }
    /// Error about a body that did not arrive in time.
    pub fn too_slow() -> RequestError {
        RequestError::new(ErrorKind::Timeout, "the body did not arrive in time")
    }
    /// Error about a body of another content type than JSON.
    pub fn media_type() -> RequestError {
        let message = "the body must be JSON, with the header Content-Type: application/json";
        RequestError::new(ErrorKind::MediaType, message)
    }
    /// Error about a body that is compressed in an unknown way.
    pub fn encoding() -> RequestError {
        let message = "the body's Content-Encoding is not known; send gzip, deflate or identity";
        RequestError::new(ErrorKind::MediaType, message)
    }
    /// Error about a prompt that exceeds the context; `name` is the parameter of the prompt.
    pub fn context(name: &str, prompt: usize, context: usize) -> RequestError {
        // The words by which Claude Code and OpenAI's clients know when to compact.
        let message = format!(
            "prompt is too long: {prompt} tokens > {context} maximum. This model's maximum context length is {context} tokens, one of which the answer needs"
        );
        RequestError::parameter(name, message).code("context_length_exceeded")
    }
    /// Error about a text that exceeds the context of a text encoder.
    pub fn text(name: &str, tokens: usize, context: usize) -> RequestError {
        let message = format!(
            "the text is too long: {tokens} tokens > {context} maximum; an encoder reads a text as a whole: shorten it, or send its parts as texts"
        );
        RequestError::parameter(name, message).code("context_length_exceeded")
    }
    /// Error about a missing or wrong API key.
    pub fn key() -> RequestError {
        let message = "a valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY";
        RequestError::new(ErrorKind::Unauthorized, message).code("invalid_api_key")
    }
    /// Error about a `Host` that is not loopback's: DNS rebinding may let another site's page send
    /// the request.
    pub fn host() -> RequestError {
        let message = "this server accepts requests to localhost only; for other names, start it with --host, or with --allowed-host NAME behind a proxy";
        RequestError::new(ErrorKind::Forbidden, message).code("host_not_allowed")
    }
    /// Error about an unknown model, with the names of the served ones and the most similar name.
    pub fn model(asked: &str, names: &[&str], nearest: Option<&str>) -> RequestError {
        let asked: String = asked.chars().take(100).collect();
        let nearest = nearest
            .map(|name| format!("did you mean `{name}`? "))
            .unwrap_or_default();
        let message = format!(
            "the model `{asked}` does not exist here; {nearest}this server has {}",
            listed(names)
        );
        let error = RequestError::new(ErrorKind::NotFound, message).code("model_not_found");
        RequestError {
            field: Some("model".into()),
            ..error
        }
    }
    /// Error about a name that matches several models.
    pub fn ambiguous_model(asked: &str, names: &[&str]) -> RequestError {
        let asked: String = asked.chars().take(100).collect();
        let message = format!(
            "`{asked}` matches several models: {}; give the full name",
            listed(names)
        );
        RequestError::parameter("model", message).code("model_ambiguous")
    }
    /// Error about a request that names no model although there are several.
    pub fn which_model(names: &[&str]) -> RequestError {
        let message = format!(
            "this server has several models: set 'model' to one of {}",
            listed(names)
        );
        RequestError::parameter("model", message).code("missing_required_parameter")
    }
    /// Error about a model that failed to load. A model larger than the memory is a permanent
    /// error, other failures may be transient.
    pub fn not_loaded(name: &str, why: &str, too_large: bool) -> RequestError {
        let message = format!("the model `{name}` cannot be loaded: {why}");
        let (kind, code) = if too_large {
            (ErrorKind::Invalid, "model_too_large")
        } else {
            (ErrorKind::Unavailable, "model_not_loaded")
        };
        let error = RequestError::new(kind, message).code(code);
        RequestError {
            field: Some("model".into()),
            ..error
        }
    }
    /// Error about an unknown path.
    pub fn path(path: &str) -> RequestError {
        let path: String = path.chars().take(100).collect();
        let message = format!(
            "the path {path} does not exist; the paths are listed in docs/serving.md, such as /v1/chat/completions"
        );
        RequestError::new(ErrorKind::NotFound, message).code("unknown_url")
    }
    /// Error about an HTTP method that the path does not support.
    pub fn method() -> RequestError {
        RequestError::new(ErrorKind::Method, "the path does not support this method")
            .code("method_not_allowed")
    }
    /// Error about a full queue.
    pub fn busy(waiting: usize) -> RequestError {
        let message = format!("{waiting} requests are already queued; try again in a moment");
        RequestError::new(ErrorKind::Busy, message).code("queue_full")
    }
    /// Error about too many connections.
    pub fn crowded() -> RequestError {
        let message = "too many connections; try again in a moment";
        RequestError::new(ErrorKind::Unavailable, message).code("too_many_connections")
    }
    /// Error about a server that records no KV events.
    pub fn no_kv_events() -> RequestError {
        let message = "this server records no KV events; set `kv_events` of its configuration";
        RequestError::new(ErrorKind::NotFound, message).code("no_kv_events")
    }
    /// Error about too many subscribers of a model's KV events.
    pub fn subscribers(most: usize) -> RequestError {
        let message = format!("{most} clients subscribe to KV events already; end one of them");
        RequestError::new(ErrorKind::Busy, message).code("too_many_subscribers")
    }
    /// Error about a client that reads the response too slowly.
    pub fn unread() -> RequestError {
        let message = "the client read the response too slowly; the response is cut off";
        RequestError::new(ErrorKind::Unavailable, message).code("answer_unread")
    }
    /// Error about the memory limit of request bodies, when other requests hold all of it.
    pub fn bodies() -> RequestError {
        let message = "other request bodies use all the memory for bodies; try again soon";
        RequestError::new(ErrorKind::Unavailable, message).code("too_many_bodies")
    }
    /// Error about an engine that has failed for good.
    pub fn failed(why: &str) -> RequestError {
        let message = format!("the model cannot be run any more: {why}");
        RequestError::new(ErrorKind::Unavailable, message).code("engine_failed")
    }
    /// Error about a schema that becomes unsatisfiable or too expensive during generation.
    pub fn constraint(why: impl std::fmt::Display) -> RequestError {
        RequestError::body(format!("generation cannot satisfy the schema: {why}"))
            .code("schema_too_complex")
    }
    /// Error about an ambiguous or malformed `Host`.
    pub fn host_header(message: &str) -> RequestError {
        RequestError::body(message).code("invalid_host")
    }
    /// Error about a server that is shutting down.
    pub fn closing() -> RequestError {
        RequestError::new(ErrorKind::Unavailable, "the server is shutting down")
    }
    /// Error about a model that is still loading.
    pub fn loading() -> RequestError {
        let message = "the model is loading and may compile its kernels for the first time; try again in a moment";
        RequestError::new(ErrorKind::Unavailable, message).code("model_loading")
    }
    /// Error about an internal fault.
    pub fn internal(message: impl Into<String>) -> RequestError {
        RequestError::new(ErrorKind::Internal, message)
    }
}
