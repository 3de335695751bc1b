//! Routes of the server and the middleware that every request passes.

use crate::api::anthropic::messages::{self, Messages};
use crate::api::openai::chat::Chat;
use crate::api::openai::completions::Completions;
use crate::api::openai::embeddings;
use crate::api::openai::llama::LlamaCompletions;
use crate::api::openai::template;
use crate::api::page::{counts, health};
use crate::api::responses::request::Responses;
use crate::api::serve::generate;
use crate::api::shape;
use crate::api::{loads, models, native, ollama, rerank};
use crate::app::App;
use crate::core::error::RequestError;
use crate::core::loading::Loading;
use crate::net::{cors, draining, guard, host, log, path};
use crate::page;
use axum::extract::{Request, State};
use axum::http::{StatusCode, Uri, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use std::any::Any;
use std::sync::{Arc, OnceLock};
use tower::ServiceExt;
use tower_http::catch_panic::CatchPanicLayer;

/// Returns the router of all endpoints.
pub fn router(app: Arc<App>) -> Router {
    let origins = app.config.cors.clone();
    let guarded = Router::new()
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*name}", get(models::get))
        .route("/v1/chat/completions", post(generate::<Chat>))
        .route("/v1/completions", post(generate::<Completions>))
        .route("/v1/responses", post(generate::<Responses>))
        .route("/v1/messages", post(generate::<Messages>))
        .route("/v1/messages/count_tokens", post(messages::count))
        .route("/v1/embeddings", post(embeddings::embed))
        .route("/v1/rerank", post(rerank::rerank))
        .route("/v2/rerank", post(rerank::rerank))
        .route("/api/chat", post(generate::<ollama::chat::OllamaChat>))
        .route(
            "/api/generate",
            post(generate::<ollama::generate::Generate>),
        )
        .route("/api/tags", get(ollama::models::tags))
        .route("/api/ps", get(ollama::models::running))
        .route("/api/show", post(ollama::models::show))
        .route("/api/version", get(ollama::models::version))
        .route("/api/embed", post(ollama::embed::embed))
        .route("/api/embeddings", post(ollama::embed::embed_one))
        .route("/completion", post(generate::<LlamaCompletions>))
        .route("/completions", post(generate::<LlamaCompletions>))
        .route("/infill", post(generate::<LlamaCompletions>))
        .route("/apply-template", post(template::apply))
        .route("/slots", get(loads::slots))
        .route("/tokenize", post(native::tokenize))
        .route("/detokenize", post(native::detokenize))
        .route("/tokenizer_info", get(native::tokenizer_info))
        .route("/props", get(native::props))
        .route("/v1/loads", get(loads::loads))
        .route("/metrics", get(counts))
        .route_layer(middleware::from_fn_with_state(
            app.clone(),
            guard::check_key,
        ));
    let router = Router::new()
        .route("/health", get(health))
        .merge(page::router())
        .merge(guarded)
        .fallback(async |uri: Uri| RequestError::path(uri.path()))
        .method_not_allowed_fallback(async || RequestError::method())
        .layer(middleware::from_fn_with_state(app.clone(), host::check))
        .layer(CatchPanicLayer::custom(panicked))
        .layer(middleware::from_fn(shape::shape_errors))
        .layer(middleware::from_fn_with_state(app.clone(), draining::close))
        .with_state(app);
    match cors::layer(&origins) {
        Some(cors) => router.layer(cors),
        None => router,
    }
}

/// Router in front of the server: answers 503 with loading progress until the real router is
/// installed.
#[derive(Clone, Default)]
pub struct ReadinessGate {
    behind: Arc<OnceLock<Router>>,
    loading: Loading,
}

impl ReadinessGate {
    /// Returns the handle on which the loader reports progress.
    pub fn loading(&self) -> Loading {
        self.loading.clone()
    }
    /// Installs the router; from now on it handles all requests.
    pub fn open(&self, router: Router) {
        // The gate opens once; a second router is ignored.
        let _ = self.behind.set(router);
    }
    /// Returns the gate as a router.
    pub fn router(&self) -> Router {
        Router::new()
            .fallback(ReadinessGate::answer)
            .layer(middleware::from_fn(shape::shape_errors))
            .layer(middleware::from_fn(log::requests))
            .layer(middleware::from_fn(draining::read_refused))
            .with_state(self.clone())
    }
    async fn answer(State(gate): State<ReadinessGate>, mut request: Request) -> Response {
        path::normalise(request.uri_mut());
        match gate.behind.get() {
            // A router is always ready and cannot fail.
            Some(router) => router
                .clone()
                .oneshot(request)
                .await
                .unwrap_or_else(|never| match never {}),
            // A browser gets the web page, which shows the loading progress.
            None if request.uri().path() == "/" && reads_pages(&request) => {
                (StatusCode::SERVICE_UNAVAILABLE, page::index()).into_response()
            }
            None if page::is_part(request.uri().path()) => page::router()
                .oneshot(request)
                .await
                .unwrap_or_else(|never| match never {}),
            None if request.uri().path() == "/health" => (
                StatusCode::SERVICE_UNAVAILABLE,
                Json(gate.loading.to_json()),
            )
                .into_response(),
            None => RequestError::loading().into_response(),
        }
    }
}

fn reads_pages(request: &Request) -> bool {
    let accepted = request
        .headers()
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok());
    accepted.is_some_and(|kinds| kinds.contains("text/html"))
}

fn panicked(_: Box<dyn Any + Send>) -> Response {
    RequestError::internal("the request failed; the server's log says why").into_response()
}
