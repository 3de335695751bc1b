//! `/health` and `/metrics`, for load balancers and monitoring.

use crate::app::{App, Health};
use crate::core::metrics;
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use std::sync::Arc;

/// `/health`: 200 while requests are accepted, 503 once the engine has failed or the server drains.
pub async fn health(State(app): State<Arc<App>>) -> (StatusCode, Json<Value>) {
    let devices = &app.models.shared.devices;
    let names = devices.names().iter().enumerate();
    let lost: Vec<&String> = names
        .filter(|&(device, _)| devices.loss(device).is_some())
        .map(|(_, name)| name)
        .collect();
    let (status, body) = match app.health() {
        Health::Failed(why) => (
            StatusCode::SERVICE_UNAVAILABLE,
            json!({ "status": "failed", "message": why }),
        ),
        Health::Draining => (
            StatusCode::SERVICE_UNAVAILABLE,
            json!({ "status": "draining" }),
        ),
        Health::Loading | Health::Ready if lost.is_empty() => {
            (StatusCode::OK, json!({ "status": "ok" }))
        }
        Health::Loading | Health::Ready => (
            StatusCode::OK,
            json!({ "status": "ok", "lost_devices": lost }),
        ),
    };
    (status, Json(body))
}

/// `/metrics`: counters and gauges in Prometheus' text format.
pub async fn counts(State(app): State<Arc<App>>) -> Response {
    let shared = &app.models.shared;
    for model in app.models.entries() {
        model.sum_metrics();
        shared
            .metrics
            .set_load(model.name(), &model.metrics, &model.load());
    }
    shared.metrics.connections.set(app.connected.len() as i64);
    shared
        .metrics
        .engine_failed
        .set(i64::from(shared.devices.failure().is_some()));
    (
        [(header::CONTENT_TYPE, metrics::CONTENT_TYPE)],
        shared.metrics.to_text(),
    )
        .into_response()
}
