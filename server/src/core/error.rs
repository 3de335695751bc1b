//! Refusals and failures, whatever interface they are told in.

/// Why a request gets no answer, or not the rest of one.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestError {
    /// Of which kind.
    pub kind: ErrorKind,
    /// Which one, for programs.
    pub code: Option<&'static str>,
    /// The path of the field that it is about, as the request calls it.
    pub field: Option<String>,
    /// The cause, and the way out.
    pub message: String,
}

/// Kinds of errors. What a status or a type is to a client follows from it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// The request makes no sense, or asks for what is not possible here.
    Invalid,
    /// Without the key.
    Unauthorized,
    /// By a name, or from a page, that is not let in.
    Forbidden,
    /// There is no such thing.
    NotFound,
    /// The path takes another method.
    Method,
    /// It did not arrive in time.
    Timeout,
    /// It is too long.
    TooLarge,
    /// It is not JSON.
    MediaType,
    /// Too many wait.
    Busy,
    /// Not now, or not any more.
    Unavailable,
    /// A fault of ours.
    Internal,
}

/// Most characters of a message, which may repeat what a client has sent.
const MAX_MESSAGE_CHARS: usize = 300;

fn short(mut message: String) -> String {
    if let Some((end, _)) = message.char_indices().nth(MAX_MESSAGE_CHARS) {
        message.truncate(end);
        message.push('…');
    }
    message
}

/// Names for a message, as many as fit into it.
fn listed(names: &[&str]) -> String {
    const MAX_LISTED_NAMES: usize = 8;
    let mut text = names.iter().take(MAX_LISTED_NAMES).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    if names.len() > MAX_LISTED_NAMES {
        text.push_str(&format!(" and {} more, which /v1/models lists", names.len() - MAX_LISTED_NAMES));
    }
    text
}

impl RequestError {
    fn new(kind: ErrorKind, message: impl Into<String>) -> RequestError {
        RequestError { kind, code: None, field: None, message: short(message.into()) }
    }
    fn code(mut self, code: &'static str) -> RequestError {
        self.code = Some(code);
        self
    }
    /// A parameter that cannot be honoured: which one, and why.
    pub fn parameter(name: impl Into<String>, message: impl Into<String>) -> RequestError {
        let field = Some(name.into());
        RequestError { field, ..RequestError::new(ErrorKind::Invalid, message) }
    }
    /// The same with that code.
    pub fn with_code(self, code: &'static str) -> RequestError {
        self.code(code)
    }
    /// A parameter that must be there.
    pub fn missing(name: impl Into<String>) -> RequestError {
        let name = name.into();
        let message = format!("Missing required parameter: '{name}'.");
        RequestError::parameter(name, message).code("missing_required_parameter")
    }
    /// Parameters that nobody knows here, in the words of OpenAI.
    pub fn unknown(names: &[&str]) -> RequestError {
        let several = if names.len() > 1 { "s" } else { "" };
        RequestError::body(format!("Unrecognized request argument{several} supplied: {}", names.join(", ")))
    }
    /// A body that is no request.
    pub fn body(message: impl Into<String>) -> RequestError {
        RequestError::new(ErrorKind::Invalid, message)
    }
    /// A body that is too long.
    pub fn too_large(limit: usize) -> RequestError {
        let message =
            format!("the body is longer than {limit} bytes; shorten it, or start the server with a larger --max-body");
        RequestError::new(ErrorKind::TooLarge, message).code("request_too_large")
    }
    /// A body that did not arrive.
    pub fn too_slow() -> RequestError {
        RequestError::new(ErrorKind::Timeout, "the body did not arrive in time")
    }
    /// A body of another type.
    pub fn media_type() -> RequestError {
        let message = "the body must be JSON, with the header Content-Type: application/json";
        RequestError::new(ErrorKind::MediaType, message)
    }
    /// A prompt that does not fit, of that parameter.
    pub fn context(name: &str, prompt: usize, context: usize) -> RequestError {
        let message = format!(
            "the prompt takes at least {prompt} tokens, and the context has {context}, of which one must be left for the answer"
        );
        RequestError::parameter(name, message).code("context_length_exceeded")
    }
    /// No key, or a wrong one.
    pub fn key() -> RequestError {
        let message = "a valid API key is needed: Authorization: Bearer KEY, or x-api-key: KEY";
        RequestError::new(ErrorKind::Unauthorized, message).code("invalid_api_key")
    }
    /// A name by which a server on loopback should not be reached: a page elsewhere may have it resolved to here.
    pub fn host() -> RequestError {
        let message = "this server answers to localhost only; start it with --host, or with --allowed-host NAME behind a proxy, to be reached by other names";
        RequestError::new(ErrorKind::Forbidden, message).code("host_not_allowed")
    }
    /// A model that is not served here: those that are, and the one that may have been meant.
    pub fn model(asked: &str, names: &[&str], nearest: Option<&str>) -> RequestError {
        let asked: String = asked.chars().take(100).collect();
        let nearest = nearest.map(|name| format!("did you mean `{name}`? ")).unwrap_or_default();
        let message = format!("the model `{asked}` does not exist here; {nearest}this server has {}", listed(names));
        let error = RequestError::new(ErrorKind::NotFound, message).code("model_not_found");
        RequestError { field: Some("model".into()), ..error }
    }
    /// A name that several models have.
    pub fn ambiguous_model(asked: &str, names: &[&str]) -> RequestError {
        let asked: String = asked.chars().take(100).collect();
        let message = format!("`{asked}` may be any of {}; give its whole name", listed(names));
        RequestError::parameter("model", message).code("model_ambiguous")
    }
    /// No model was named, and there are several.
    pub fn which_model(names: &[&str]) -> RequestError {
        let message = format!("this server has several models: say which in 'model', of {}", listed(names));
        RequestError::parameter("model", message).code("missing_required_parameter")
    }
    /// A model that cannot be loaded, and why. One that is larger than the memory is no smaller a moment later.
    pub fn not_loaded(name: &str, why: &str, too_large: bool) -> RequestError {
        let message = format!("the model `{name}` cannot be loaded: {why}");
        let (kind, code) = if too_large {
            (ErrorKind::Invalid, "model_too_large")
        } else {
            (ErrorKind::Unavailable, "model_not_loaded")
        };
        let error = RequestError::new(kind, message).code(code);
        RequestError { field: Some("model".into()), ..error }
    }
    /// A path that leads nowhere.
    pub fn path(path: &str) -> RequestError {
        let path: String = path.chars().take(100).collect();
        RequestError::new(ErrorKind::NotFound, format!("there is nothing at {path}")).code("unknown_url")
    }
    /// A path that takes another method.
    pub fn method() -> RequestError {
        RequestError::new(ErrorKind::Method, "this path takes another method").code("method_not_allowed")
    }
    /// Too many wait already.
    pub fn busy(waiting: usize) -> RequestError {
        let message = format!("{waiting} requests are waiting already; try again in a moment");
        RequestError::new(ErrorKind::Busy, message).code("queue_full")
    }
    /// Too many are connected already.
    pub fn crowded() -> RequestError {
        let message = "too many connections; try again in a moment";
        RequestError::new(ErrorKind::Unavailable, message).code("too_many_connections")
    }
    /// An answer that was told faster than it was read.
    pub fn unread() -> RequestError {
        let message = "the answer was not read fast enough, and ends here";
        RequestError::new(ErrorKind::Unavailable, message).code("answer_unread")
    }
    /// Bodies of others take all the memory there is for them.
    pub fn bodies() -> RequestError {
        let message = "others are sending too much at the moment; try again soon";
        RequestError::new(ErrorKind::Unavailable, message).code("too_many_bodies")
    }
    /// The engine is gone for good, and why.
    pub fn failed(why: &str) -> RequestError {
        let message = format!("the model cannot be run any more: {why}");
        RequestError::new(ErrorKind::Unavailable, message).code("engine_failed")
    }
    /// A schema that turned out to be impossible to follow, or too expensive, while an answer was written.
    pub fn constraint(why: impl std::fmt::Display) -> RequestError {
        RequestError::body(format!("the schema cannot be followed any further: {why}")).code("schema_too_complex")
    }
    /// A host that may mean two things to two readers.
    pub fn host_header(message: &str) -> RequestError {
        RequestError::body(message).code("invalid_host")
    }
    /// The server is about to end.
    pub fn closing() -> RequestError {
        RequestError::new(ErrorKind::Unavailable, "the server is shutting down")
    }
    /// The model is not there yet.
    pub fn loading() -> RequestError {
        let message =
            "the model is being loaded, and its kernels compiled where that is the first time; try again in a moment";
        RequestError::new(ErrorKind::Unavailable, message).code("model_loading")
    }
    /// Something of ours that should not have happened.
    pub fn internal(message: impl Into<String>) -> RequestError {
        RequestError::new(ErrorKind::Internal, message)
    }
}
