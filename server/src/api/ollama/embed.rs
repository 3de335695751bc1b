//! `/api/embed`, and its predecessor `/api/embeddings`.

use super::encoder::nanoseconds;
use super::keep_alive;
use crate::app::App;
use crate::core::client::Origin;
use crate::core::error::RequestError;
use crate::core::event::Usage;
use crate::core::output::embeddings;
use crate::core::preprocess::Preprocessor;
use crate::core::request::PromptText;
use crate::net::body::{self, IgnoredFields, UnreadRequest};
use axum::Json;
use axum::extract::State;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
struct EmbedRequest {
    model: String,
    /// The predecessor calls it `prompt`.
    #[serde(alias = "prompt")]
    input: Texts,
    dimensions: Option<u64>,
    keep_alive: Option<Value>,
    #[serde(flatten)]
    _others: IgnoredFields,
}

#[derive(Deserialize, Debug)]
#[serde(untagged, expecting = "expected a string or an array of strings")]
enum Texts {
    One(String),
    Many(Vec<String>),
}

/// Returns the embeddings, their usage and the model's name.
async fn vectors(
    app: &Arc<App>,
    asked: UnreadRequest,
) -> Result<(Vec<Vec<f32>>, Usage, String), RequestError> {
    let (read, client, received) = asked.json(app).await?;
    let ready = app.run_blocking(client, move |models| {
        let request: EmbedRequest = body::parse(&read)?;
        let preprocessor = Preprocessor::for_model(models, Some(&request.model))?;
        if request
            .dimensions
            .is_some_and(|dimensions| dimensions != preprocessor.served.about.width as u64)
        {
            let message = format!(
                "dimensions can only be {}, the width of the model",
                preprocessor.served.about.width
            );
            return Err(RequestError::parameter("dimensions", message));
        }
        let stay = keep_alive::parse(request.keep_alive.as_ref())?;
        let texts = match request.input {
            Texts::One(text) => vec![text],
            Texts::Many(texts) => texts,
        };
        let (texts, origin) = (
            texts.into_iter().map(PromptText::Text).collect(),
            Origin { client, received },
        );
        let (mut request, outputs) = preprocessor.prepare_embeddings(origin, texts, "input")?;
        request.stay = stay;
        Ok((request, outputs, preprocessor))
    });
    let (request, outputs, preprocessor) = ready.await?;
    let prompts = request.prompts.len();
    preprocessor.submit(request)?;
    let (vectors, usage) = embeddings(outputs, prompts).await?;
    Ok((vectors, usage, preprocessor.model.name().to_owned()))
}

/// `/api/embed`: embeddings of one or more texts.
///
/// # Errors
/// When the request is invalid or the model fails to compute the embeddings.
pub async fn embed(
    State(app): State<Arc<App>>,
    asked: UnreadRequest,
) -> Result<Json<Value>, RequestError> {
    let (embeddings, usage, model) = vectors(&app, asked).await?;
    Ok(Json(json!({
        "model": model, "embeddings": embeddings, "total_duration": nanoseconds(usage.prompt_time),
        "load_duration": 0, "prompt_eval_count": usage.prompt,
    })))
}

/// `/api/embeddings`: the embedding of one text.
///
/// # Errors
/// The same as for `/api/embed`.
pub async fn embed_one(
    State(app): State<Arc<App>>,
    asked: UnreadRequest,
) -> Result<Json<Value>, RequestError> {
    let (mut embeddings, ..) = vectors(&app, asked).await?;
    Ok(Json(json!({ "embedding": embeddings.swap_remove(0) })))
}
