//! `/v1/models`: lists the models. OpenAI's and Anthropic's clients share this path, so each entry
//! has the fields of both.

use crate::api::date::date;
use crate::app::App;
use crate::core::adapters::joined_names;
use crate::core::error::RequestError;
use crate::core::models::entry::ModelEntry;
use crate::core::models::pool::Status;
use crate::core::replica::Replica;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde_json::{Value, json};
use std::sync::Arc;

/// Model status in llama.cpp's format, with loading progress or the reason of a failure.
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

/// State of each replica of a model.
fn replicas(model: &ModelEntry) -> Vec<Value> {
    let describe = |(number, replica): (usize, &Replica)| {
        let status = replica.status();
        let (value, message) = status.parts();
        let bytes = replica.metrics.bytes.get();
        let mut told = json!({
            "replica": number, "device": replica.device, "value": value, "bytes": bytes,
        });
        if let Some(message) = message {
            told["message"] = message.into();
        }
        told
    };
    model.replicas.iter().enumerate().map(describe).collect()
}

fn describe(app: &App, model: &ModelEntry) -> Value {
    let plan = model.cached_plan();
    let mut described = json!({
        "id": model.name(),
        "object": "model",
        "created": model.created,
        "owned_by": app.config.owned_by,
        "aliases": model.names.aliases,
        "status": status(app.models.status(model)),
        // vLLM's field.
        "max_model_len": plan.as_ref().map(|plan| plan.context),
        // llama.cpp's field: bytes of the weights.
        "meta": plan.map(|plan| json!({ "size": plan.about.weight_bytes })),
        // Fields of Anthropic's interface.
        "type": "model",
        "display_name": model.name(),
        "created_at": date(model.created),
    });
    if model.replicas.len() > 1 {
        described["status"]["replicas"] = replicas(model).into();
    }
    described
}

/// A model with each of its adapters, as a model of its own with vLLM's field `parent`.
fn adapted<'a>(app: &'a App, model: &'a ModelEntry) -> impl Iterator<Item = Value> + 'a {
    joined_names(model.name(), &model.adapters).map(|name| {
        let mut described = describe(app, model);
        described["id"] = json!(name);
        described["display_name"] = json!(name);
        described["parent"] = json!(model.name());
        described["aliases"] = json!([]);
        described
    })
}

/// `GET /v1/models`: all served models.
pub async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let all = app.models.entries();
    let data: Vec<Value> = (all.iter())
        .flat_map(|model| std::iter::once(describe(&app, model)).chain(adapted(&app, model)))
        .collect();
    let name = |model: Option<&Arc<ModelEntry>>| model.map(|model| model.name().to_owned());
    let (first, last) = (name(all.first()), name(all.last()));
    Json(
        json!({ "object": "list", "data": data, "has_more": false, "first_id": first, "last_id": last }),
    )
}

/// `GET /v1/models/{name}`: one model, by its name or an alias.
pub async fn get(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, RequestError> {
    let Path(name) = name.map_err(|error| RequestError::body(error.to_string()))?;
    Ok(Json(describe(&app, app.models.find(Some(&name))?)))
}
