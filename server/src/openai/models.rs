//! `/v1/models`: there is one.

use crate::app::App;
use crate::error::ApiError;
use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde_json::{Value, json};
use std::sync::Arc;

fn describe(app: &App) -> Value {
    let served = &app.served;
    json!({
        "id": served.name,
        "object": "model",
        "created": served.created,
        "owned_by": "gristmill",
        // Beyond OpenAI's interface, as vLLM has it.
        "max_model_len": served.context,
    })
}

/// All of them.
pub async fn list(State(app): State<Arc<App>>) -> Json<Value> {
    Json(json!({ "object": "list", "data": [describe(&app)] }))
}

/// The one of that name.
pub async fn get(
    State(app): State<Arc<App>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    let Path(name) = name.map_err(|error| ApiError::body(error.to_string()))?;
    match app.served.is_called(&name) {
        true => Ok(Json(describe(&app))),
        false => Err(ApiError::model(&name, &app.served.name)),
    }
}
