//! The way in: paths, keys, hosts.

use crate::app::App;
use crate::error::ApiError;
use crate::host;
use crate::metrics;
use crate::openai::{chat, completions, models};
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use std::any::Any;
use std::sync::{Arc, OnceLock};
use tower::ServiceExt;
use tower_http::catch_panic::CatchPanicLayer;

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
        .layer(middleware::from_fn_with_state(app.clone(), host::check))
        .layer(CatchPanicLayer::custom(panicked))
        .with_state(app)
}

/// What connections meet: all paths once there is a model, and before that a word that it is on its way.
#[derive(Clone, Default)]
pub struct Front {
    behind: Arc<OnceLock<Router>>,
}

impl Front {
    /// From now on requests are answered.
    pub fn open(&self, router: Router) {
        // It is opened once.
        let _ = self.behind.set(router);
    }
    /// As a service.
    pub fn router(&self) -> Router {
        Router::new().fallback(Front::answer).with_state(self.clone())
    }
    async fn answer(State(front): State<Front>, request: Request) -> Response {
        match front.behind.get() {
            // A router is always ready, and never fails.
            Some(router) => router.clone().oneshot(request).await.unwrap_or_else(|never| match never {}),
            None if request.uri().path() == "/health" => {
                (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": "loading" }))).into_response()
            }
            None => ApiError::loading().into_response(),
        }
    }
}

fn panicked(_: Box<dyn Any + Send>) -> Response {
    ApiError::internal("the request failed; the server's log says why").into_response()
}

async fn page() -> Response {
    let headers = [(header::CONTENT_SECURITY_POLICY, PAGE_POLICY), (header::CACHE_CONTROL, "no-cache")];
    (headers, Html(PAGE)).into_response()
}

async fn health(State(app): State<Arc<App>>) -> (StatusCode, Json<Value>) {
    if let Some(why) = app.condition.failure() {
        return (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": "failed", "message": why })));
    }
    match app.queue.is_closed() {
        false => (StatusCode::OK, Json(json!({ "status": "ok" }))),
        true => (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": "unavailable" }))),
    }
}

async fn counts(State(app): State<Arc<App>>) -> Response {
    app.metrics.waiting.set(app.queue.len() as i64);
    app.metrics.connections.set(app.connected.len() as i64);
    app.metrics.engine_failed.set(i64::from(app.condition.failure().is_some()));
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
