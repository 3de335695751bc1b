//! `/v1/loads`: the server's load in SGLang's format, for routers.

use crate::api::date::date;
use crate::app::App;
use crate::core::error::RequestError;
use crate::core::load::Load;
use crate::core::model::now;
use crate::core::models::entry::ModelEntry;
use crate::core::replica::Replica;
use crate::net::body::UnreadRequest;
use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};
use std::sync::Arc;

/// Maximum slots that `/slots` lists, as many as `--parallel` allows.
const MAX_SLOTS: usize = 512;

fn describe(load: &Load) -> Value {
    json!({
        "num_running_reqs": load.running,
        "num_waiting_reqs": load.waiting,
        "num_total_reqs": load.requests(),
        "num_used_tokens": load.used,
        "max_total_num_tokens": load.room,
        "token_usage": load.usage(),
        "max_running_requests": load.slots,
    })
}

/// Load of each replica of a model. The queue is the model's.
fn replicas(model: &ModelEntry) -> Vec<Value> {
    let describe = |(number, replica): (usize, &Replica)| {
        let mut load = describe(&replica.load());
        load["replica"] = number.into();
        load["device"] = replica.device.as_str().into();
        load["status"] = replica.status().parts().0.into();
        load
    };
    model.replicas.iter().enumerate().map(describe).collect()
}

/// `/v1/loads?model=NAME`: load of one model, or of all models in total and each on its own.
///
/// # Errors
/// When there is no such model.
pub async fn loads(
    State(app): State<Arc<App>>,
    asked: UnreadRequest,
) -> Result<Json<Value>, RequestError> {
    let (_, named) = asked.parameter("model");
    let named = named.map(|name| app.models.find(Some(&name))).transpose()?;
    // SGLang lists one entry for each data-parallel rank. This process is a single rank: its
    // replicas share a queue.
    let mut rank = describe(&named.map_or_else(|| app.models.total_load(), |model| model.load()));
    rank["dp_rank"] = 0.into();
    let models = app
        .models
        .entries()
        .iter()
        .filter(|model| named.is_none_or(|named| Arc::ptr_eq(named, model)));
    let models: Vec<Value> = models
        .map(|model| {
            let mut load = describe(&model.load());
            load["model"] = model.name().into();
            load["replicas"] = replicas(model).into();
            load
        })
        .collect();
    Ok(Json(
        json!({ "timestamp": date(now()), "dp_rank_count": 1, "loads": [rank], "models": models }),
    ))
}

/// `/slots?model=NAME`: sequences of a model that may run at a time, as in llama.cpp's server.
///
/// # Errors
/// When there is no such model.
pub async fn slots(
    State(app): State<Arc<App>>,
    asked: UnreadRequest,
) -> Result<Json<Value>, RequestError> {
    let (_, named) = asked.parameter("model");
    let model = app.models.find(named.as_deref())?;
    let (load, context) = (model.load(), model.cached_plan().map(|plan| plan.context));
    let slot = |id: usize| json!({ "id": id, "n_ctx": context, "is_processing": id < load.running, "speculative": false });
    Ok(Json((0..load.slots.min(MAX_SLOTS)).map(slot).collect()))
}
