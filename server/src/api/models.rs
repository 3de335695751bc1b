//! `/v1/models`: there is one. OpenAI's clients and Anthropic's both ask here, and each finds the fields that it knows.

use crate::api::date::date;
use crate::app::App;
use crate::core::error::RequestError;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde_json::{Value, json};
use std::sync::Arc;

fn describe(app: &App) -> Value {
    let served = &app.intake.served;
    json!({
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "gristmill",
        // As vLLM has it.
        "max_model_len": served.context,
        // Anthropic's.
        "type": "model",
        "display_name": served.name,
        "created_at": date(served.created),
    })
}

/// All of them.
pub async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    let name = &app.intake.served.name;
    let (first, last) = (name, name);
    Json(json!({ "object": "list", "data": [describe(&app)], "has_more": false, "first_id": first, "last_id": last }))
}

/// The one of that name.
pub async fn get(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, RequestError> {
    let Path(name) = name.map_err(|error| RequestError::body(error.to_string()))?;
    match app.intake.served.is_called(&name) {
        true => Ok(Json(describe(&app))),
        false => Err(RequestError::model(&name, &app.intake.served.name)),
    }
}
