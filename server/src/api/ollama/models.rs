//! Endpoints that list models: `/api/version`, `/api/tags`, `/api/ps` and `/api/show`.

use crate::api::date::date;
use crate::app::App;
use crate::core::error::RequestError;
use crate::core::model::now;
use crate::core::models::entry::ModelEntry;
use crate::core::models::pool::Status;
use crate::core::preprocess::Preprocessor;
use crate::net::body::{self, IgnoredFields, UnreadRequest};
use axum::Json;
use axum::extract::State;
use gristmill_llm::pooling::PoolingKind;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Instant;

/// Version of Ollama's interface that is implemented; clients check it before they use newer
/// features.
const VERSION: &str = "0.13.5";

/// `/api/version`: the version of Ollama's interface.
pub async fn version() -> Json<Value> {
    Json(json!({ "version": VERSION }))
}

/// Expiry of a model without a keep-alive.
const NO_EXPIRY: &str = "9999-12-31T23:59:59Z";

fn details(family: &str) -> Value {
    json!({
        "parent_model": "", "format": "gguf", "family": family, "families": [family], "parameter_size": "",
        "quantization_level": "",
    })
}

/// Describes a model. Without a plan, only the name is known.
fn describe(model: &ModelEntry) -> Value {
    let plan = model.cached_plan();
    let (size, family) = plan.as_ref().map_or((0, ""), |plan| {
        (plan.about.weight_bytes, &plan.about.architecture)
    });
    json!({
        "name": model.name(), "model": model.name(), "size": size, "digest": model.digest(), "details": details(family),
        "modified_at": date(model.created),
    })
}

/// `/api/tags`: all models.
pub async fn tags(State(app): State<Arc<App>>) -> Json<Value> {
    let models: Vec<Value> = app
        .models
        .entries()
        .iter()
        .map(|model| describe(model))
        .collect();
    Json(json!({ "models": models }))
}

/// `/api/ps`: the loaded models.
pub async fn running(State(app): State<Arc<App>>) -> Json<Value> {
    let loaded = app.models.entries().iter().filter_map(|model| {
        let Status::Loaded(bytes) = app.models.status(model) else {
            return None;
        };
        let mut told = describe(model);
        told["size"] = bytes.into();
        // Without a keep-alive the model stays until another model needs its memory.
        let leaves = model
            .queue
            .leaves()
            .map(|at| now() + at.saturating_duration_since(Instant::now()).as_secs());
        told["expires_at"] = leaves.map_or_else(|| NO_EXPIRY.into(), date).into();
        told["size_vram"] = 0.into();
        told["context_length"] = model.cached_plan().map(|plan| plan.context).into();
        Some(told)
    });
    let models: Vec<Value> = loaded.collect();
    Json(json!({ "models": models }))
}

/// Body of `/api/show`.
#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
struct ShowRequest {
    model: Option<String>,
    /// The older name of `model`.
    name: Option<String>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

/// `/api/show`: metadata of one model.
///
/// # Errors
/// When there is no such model, or it cannot be read.
pub async fn show(
    State(app): State<Arc<App>>,
    asked: UnreadRequest,
) -> Result<Json<Value>, RequestError> {
    let (read, client, _) = asked.json(&app).await?;
    let shown = app.run_blocking(client, move |models| {
        let request: ShowRequest = body::parse(&read)?;
        let named = [request.model, request.name].into_iter().flatten();
        let named = named.max_by_key(|name| !name.is_empty());
        let named = named.ok_or_else(|| RequestError::missing("model"))?;
        Ok(described(&Preprocessor::for_model(models, Some(&named))?))
    });
    Ok(Json(shown.await?))
}

fn described(preprocessor: &Preprocessor) -> Value {
    let served = &preprocessor.served;
    let mut can = match served.pooling.is_of_encoder() {
        true => Vec::new(),
        false => vec!["completion", "tools"],
    };
    can.extend(
        served
            .template
            .mentions(served.markup.think[0])
            .then_some("thinking"),
    );
    can.extend(served.fim.as_ref().map(|_| "insert"));
    let embeds = |kind: &PoolingKind| !matches!(kind, PoolingKind::None | PoolingKind::Rank);
    let kind = served.pooling.kind().filter(embeds);
    can.extend(kind.map(|_| "embedding"));
    let family = served.about.architecture.as_str();
    let mut info = json!({
        "general.architecture": family,
        "general.basename": served.name,
        "tokenizer.ggml.tokens": null,
    });
    info[format!("{family}.context_length")] = served.context.into();
    info[format!("{family}.embedding_length")] = served.about.width.into();
    json!({
        "modelfile": format!("FROM {}\n", served.name), "parameters": "", "template": served.template.source(),
        "details": details(family), "model_info": info, "capabilities": can, "modified_at": date(served.created),
    })
}
