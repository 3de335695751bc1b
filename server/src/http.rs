//! The way in: paths, keys, hosts, bodies.

use crate::config::Config;
use crate::constraint::Constraint;
use crate::error::ApiError;
use crate::job::{Event, Job};
use crate::metrics::{self, Metrics};
use crate::model::Served;
use crate::openai::settings::Settings;
use crate::openai::{chat, completions, models};
use crate::queue::{Queue, Refused};
use axum::body::Body;
use axum::extract::{ConnectInfo, FromRequest, Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::StreamExt;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::any::Any;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{Semaphore, mpsc};
use tower_http::catch_panic::CatchPanicLayer;

/// What all requests share.
pub struct App {
    /// The model.
    pub served: Arc<Served>,
    /// What the engine's thread is to do.
    pub queue: Arc<Queue<Job>>,
    /// What was done.
    pub metrics: Arc<Metrics>,
    /// What the server was told.
    pub config: Config,
    /// Requests that are read and checked at a time: they take the cores from the model.
    pub preparing: Arc<Semaphore>,
}

/// The page.
const PAGE: &str = include_str!("page/index.html");
/// It runs what it carries and asks this server alone.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; \
    img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// All paths.
pub fn router(app: Arc<App>) -> Router {
    let guarded = Router::new()
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::get))
        .route("/v1/chat/completions", post(chat::complete))
        .route("/v1/completions", post(completions::complete))
        .route("/metrics", get(counts))
        .route_layer(middleware::from_fn_with_state(app.clone(), check_key));
    Router::new()
        .route("/", get(page))
        .route("/health", get(health))
        .merge(guarded)
        .fallback(async |uri: Uri| ApiError::path(uri.path()))
        .method_not_allowed_fallback(async || ApiError::method())
        .layer(middleware::from_fn_with_state(app.clone(), check_host))
        .layer(CatchPanicLayer::custom(panicked))
        .with_state(app)
}

fn panicked(_: Box<dyn Any + Send>) -> Response {
    ApiError::internal("the request failed; the server's log says why").into_response()
}

async fn page() -> Response {
    let headers = [(header::CONTENT_SECURITY_POLICY, PAGE_POLICY), (header::CACHE_CONTROL, "no-cache")];
    (headers, Html(PAGE)).into_response()
}

async fn health(State(app): State<Arc<App>>) -> (StatusCode, Json<Value>) {
    match app.queue.is_closed() {
        false => (StatusCode::OK, Json(json!({ "status": "ok" }))),
        true => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": "unavailable" }))),
    }
}

async fn counts(State(app): State<Arc<App>>) -> Response {
    app.metrics.waiting.set(app.queue.len() as i64);
    ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], app.metrics.to_text()).into_response()
}

/// Lets in who knows the key.
async fn check_key(State(app): State<Arc<App>>, request: Request, next: Next) -> Result<Response, ApiError> {
    if let Some(key) = &app.config.api_key {
        let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let given =
            given.and_then(|value| value.split_once(' ')).filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
        // Hashes are compared in constant time, whatever the lengths.
        let same = |(_, token): (&str, &str)| blake3::hash(token.trim().as_bytes()) == blake3::hash(key.as_bytes());
        if !given.is_some_and(same) {
            return Err(ApiError::key());
        }
    }
    Ok(next.run(request).await)
}

/// On loopback, lets in who asks for loopback: the name of a web site may have been resolved to it (DNS rebinding).
async fn check_host(State(app): State<Arc<App>>, request: Request, next: Next) -> Result<Response, ApiError> {
    let named = request.uri().host().map(str::to_owned).or_else(|| {
        let host = request.headers().get(header::HOST)?.to_str().ok()?;
        Some(
            host.rsplit_once(':')
                .filter(|(_, port)| port.bytes().all(|b| b.is_ascii_digit()))
                .map_or(host, |(name, _)| name)
                .to_owned(),
        )
    });
    let local = |name: &str| {
        let name = name.trim_matches(['[', ']']);
        name.eq_ignore_ascii_case("localhost") || name.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
    };
    match named {
        Some(name) if app.config.host.is_loopback() && !local(&name) => Err(ApiError::host()),
        _ => Ok(next.run(request).await),
    }
}

/// A request whose body was not read yet.
pub struct Asked {
    client: IpAddr,
    when: Instant,
    headers: HeaderMap,
    body: Body,
}

impl<S: Sync> FromRequest<S> for Asked {
    type Rejection = ApiError;
    async fn from_request(request: Request, _: &S) -> Result<Asked, ApiError> {
        let peer = request.extensions().get::<ConnectInfo<SocketAddr>>();
        let client = peer.map_or(IpAddr::from([0, 0, 0, 0]), |peer| peer.0.ip());
        let (parts, body) = request.into_parts();
        Ok(Asked { client, when: Instant::now(), headers: parts.headers, body })
    }
}

impl Asked {
    /// The body, read and understood; who asks, and since when.
    ///
    /// # Errors
    /// When it is not JSON, too long, too slow, or not such a request.
    pub async fn json<T: DeserializeOwned>(self, app: &App) -> Result<(T, IpAddr, Instant), ApiError> {
        let kind = self.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        // Browsers send other pages' requests unasked if they are plain text, but not if they are JSON.
        if !kind.eq_ignore_ascii_case("application/json") {
            return Err(ApiError::media_type());
        }
        let read = read(self.body, app.config.body);
        let bytes = tokio::time::timeout(app.config.body_time, read).await.map_err(|_| ApiError::too_slow())??;
        Ok((parse(&bytes)?, self.client, self.when))
    }
}

/// How many times what it may be a body is read nevertheless: who is still sending does not read the refusal.
const DRAINED: usize = 16;

async fn read(body: Body, most: usize) -> Result<Vec<u8>, ApiError> {
    let mut stream = body.into_data_stream();
    let (mut bytes, mut length) = (Vec::new(), 0);
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|_| ApiError::body("the body was cut off"))?;
        length += piece.len();
        if length <= most {
            bytes.extend_from_slice(&piece);
        } else if length > most.saturating_mul(DRAINED) {
            break;
        } else {
            bytes = Vec::new();
        }
    }
    if length > most { Err(ApiError::too_large(most)) } else { Ok(bytes) }
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        match inner.classify() {
            serde_json::error::Category::Data if path != "." => ApiError::parameter(&path, format!("{path}: {inner}")),
            serde_json::error::Category::Data => ApiError::body(inner.to_string()),
            _ => ApiError::body(format!("the body is not JSON: {inner}")),
        }
    })?;
    json.end().map_err(|error| ApiError::body(format!("the body is not JSON: {error}")))?;
    Ok(parsed)
}

/// Runs what takes a while (templates, tokenizers, grammars) beside the threads that serve connections.
///
/// # Errors
/// What it says, or that it panicked.
pub async fn prepare<T: Send + 'static>(
    app: &Arc<App>,
    work: impl FnOnce(&App) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    // The turn ends with the work, also where its client has left.
    let turn = app.preparing.clone().acquire_owned().await.map_err(|_| ApiError::closing())?;
    let shared = app.clone();
    let done = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        work(&shared)
    });
    let done = done.await;
    done.unwrap_or_else(|_| Err(ApiError::internal("the request failed; the server's log says why")))
}

impl App {
    /// Has a request wait for its turn; where its answers will be told.
    ///
    /// # Errors
    /// When there is no room for it.
    #[expect(clippy::too_many_arguments, reason = "each is a field of a job")]
    pub fn submit(
        &self,
        client: IpAddr,
        asked: Instant,
        settings: Settings,
        prompt: Vec<u32>,
        constraint: Option<Constraint>,
        markers: bool,
        logprobs: Option<usize>,
    ) -> Result<mpsc::UnboundedReceiver<Event>, ApiError> {
        // Its length is bounded by the answer's: an answer is made whether or not it is read at once.
        let (sender, events) = mpsc::unbounded_channel();
        let Settings { sampling, reuse, bias, choices, limit, stop, endless, stream, .. } = settings;
        let job = Job {
            client,
            asked,
            prompt,
            reuse,
            sampling,
            bias,
            constraint,
            choices,
            limit,
            stop,
            endless,
            markers,
            logprobs,
            stream,
            events: sender,
        };
        match self.queue.push(job) {
            Ok(()) => {
                self.metrics.requests.inc();
                Ok(events)
            }
            Err(Refused::Full(waiting)) => {
                self.metrics.refused.inc();
                Err(ApiError::busy(waiting))
            }
            Err(Refused::Closed) => Err(ApiError::closing()),
        }
    }
}
