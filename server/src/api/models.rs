//! `/v1/models`: those that there are. OpenAI's clients and Anthropic's both ask here, and each finds the fields that it knows.

use crate::api::date::date;
use crate::app::App;
use crate::core::error::RequestError;
use crate::core::models::entry::ModelEntry;
use crate::core::models::pool::Status;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde_json::{Value, json};
use std::sync::Arc;

/// How a model is: in llama.cpp's words, and how far it is or why it is not there.
fn status(status: Status) -> Value {
    match status {
        Status::Unloaded => json!({ "value": "unloaded" }),
        Status::Loaded(bytes) => json!({ "value": "loaded", "bytes": bytes }),
        Status::Loading(None) => json!({ "value": "loading" }),
        Status::Loading(Some(step)) => {
            json!({ "value": "loading", "message": step.what, "done": step.done, "total": step.total })
        }
        Status::Failed(error) => {
            json!({ "value": "unloaded", "failed": true, "message": error.text(), "too_large": error.too_large })
        }
    }
}

fn describe(app: &App, model: &ModelEntry) -> Value {
    json!({
        "id": model.name(),
        "object": "model",
        "created": model.created,
        "owned_by": app.config.owned_by,
        "aliases": model.names.aliases,
        "status": status(app.models.status(model)),
        // As vLLM has it.
        "max_model_len": model.known().map(|plan| plan.context),
        // Anthropic's.
        "type": "model",
        "display_name": model.name(),
        "created_at": date(model.created),
    })
}

/// All of them.
pub async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let all = app.models.all();
    let data: Vec<Value> = all.iter().map(|model| describe(&app, model)).collect();
    let name = |model: Option<&Arc<ModelEntry>>| model.map(|model| model.name().to_owned());
    let (first, last) = (name(all.first()), name(all.last()));
    Json(json!({ "object": "list", "data": data, "has_more": false, "first_id": first, "last_id": last }))
}

/// The one of that name.
pub async fn get(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, RequestError> {
    let Path(name) = name.map_err(|error| RequestError::body(error.to_string()))?;
    Ok(Json(describe(&app, app.models.find(Some(&name))?)))
}
