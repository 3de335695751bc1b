//! What there is: one model, and it is loaded.

use crate::api::date::date;
use crate::api::interface::check_model;
use crate::app::App;
use crate::core::error::RequestError;
use crate::core::model::Served;
use crate::net::body::{self, IgnoredFields, UnreadRequest};
use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// The version of Ollama whose interface this is: clients ask for it before they use what is newer.
const VERSION: &str = "0.12.0";

/// `/api/version`.
pub async fn version() -> Json<Value> {
    Json(json!({ "version": VERSION }))
}

fn details(served: &Served) -> Value {
    let family = served.about.architecture.as_str();
    json!({
        "parent_model": "", "format": "gguf", "family": family, "families": [family], "parameter_size": "",
        "quantization_level": "",
    })
}

fn describe(served: &Served) -> Value {
    json!({
        "name": served.name, "model": served.name, "size": served.about.weight_bytes, "digest": served.digest(),
        "details": details(served),
    })
}

/// `/api/tags`.
pub async fn tags(State(app): State<Arc<App>>) -> Json<Value> {
    let served = &app.intake.served;
    let mut model = describe(served);
    model["modified_at"] = date(served.created).into();
    Json(json!({ "models": [model] }))
}

/// `/api/ps`.
pub async fn running(State(app): State<Arc<App>>) -> Json<Value> {
    let served = &app.intake.served;
    let mut model = describe(served);
    // It stays.
    model["expires_at"] = "9999-12-31T23:59:59Z".into();
    model["size_vram"] = 0.into();
    model["context_length"] = served.context.into();
    Json(json!({ "models": [model] }))
}

/// A request for a model.
#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
struct ShowRequest {
    #[serde(alias = "name")]
    model: String,
    #[serde(flatten)]
    _others: IgnoredFields,
}

/// `/api/show`.
///
/// # Errors
/// When it is another model.
pub async fn show(State(app): State<Arc<App>>, asked: UnreadRequest) -> Result<Json<Value>, RequestError> {
    let (read, _, _) = asked.json(&app).await?;
    let request: ShowRequest = body::parse(&read)?;
    let served = &app.intake.served;
    check_model(Some(&request.model), served)?;
    let mut can = vec!["completion", "tools"];
    can.extend(served.template.mentions(served.markup.think[0]).then_some("thinking"));
    can.extend(served.infill.as_ref().map(|_| "insert"));
    let family = served.about.architecture.as_str();
    let mut info = json!({
        "general.architecture": family,
        "general.basename": served.name,
        "tokenizer.ggml.tokens": null,
    });
    info[format!("{family}.context_length")] = served.context.into();
    info[format!("{family}.embedding_length")] = served.about.width.into();
    Ok(Json(json!({
        "modelfile": format!("FROM {}\n", served.name), "parameters": "", "template": served.template.source(),
        "details": details(served), "model_info": info, "capabilities": can, "modified_at": date(served.created),
    })))
}
