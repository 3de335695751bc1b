//! `/api/embed`, and its predecessor `/api/embeddings`.

use super::encoder::nanoseconds;
use super::keep_alive;
use crate::api::fields::KnownFields;
use crate::app::App;
use crate::core::client::Origin;
use crate::core::engine_request::EngineRequest;
use crate::core::error::RequestError;
use crate::core::event::Usage;
use crate::core::output::{Outputs, pooled};
use crate::core::pooled_inputs::{Fit, check_dimensions, cut};
use crate::core::preprocess::Preprocessor;
use crate::core::request::PromptText;
use crate::net::body::{self, UnreadRequest};
use crate::net::ignored;
use crate::net::lenient::Count;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::sync::Arc;

#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
struct EmbedRequest {
    model: String,
    input: Option<Texts>,
    /// The predecessor's name of `input`.
    prompt: Option<Texts>,
    dimensions: Option<Count>,
    /// Whether texts are cut to the context; true by default.
    truncate: Option<bool>,
    /// Options of generation, which change no embedding.
    #[serde(rename = "options")]
    _options: Option<Value>,
    keep_alive: Option<Value>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Deserialize, Debug)]
#[serde(untagged, expecting = "expected a string or an array of strings")]
enum Texts {
    One(String),
    Many(Vec<String>),
}

impl Texts {
    /// Returns the texts. An empty text has no embedding.
    fn list(self) -> Vec<PromptText> {
        let texts = match self {
            Texts::One(text) if text.is_empty() => Vec::new(),
            Texts::One(text) => vec![text],
            Texts::Many(texts) => texts,
        };
        texts.into_iter().map(PromptText::Text).collect()
    }
}

/// Fields of the endpoints; options of generation change no embedding.
const FIELDS: KnownFields = KnownFields {
    at: "",
    declared: &[
        "model",
        "input",
        "prompt",
        "dimensions",
        "truncate",
        "options",
        "keep_alive",
    ],
    silent: &[],
    refused: &[],
};

/// Embeddings of a request.
struct Embedded {
    vectors: Vec<Vec<f32>>,
    usage: Usage,
    model: String,
    ignored: Vec<String>,
}

impl EmbedRequest {
    fn prepare(
        self,
        preprocessor: &Preprocessor,
        origin: Origin,
    ) -> Result<Option<(EngineRequest, Outputs)>, RequestError> {
        let stay = keep_alive::parse(self.keep_alive.as_ref())?;
        let texts = self.input.or(self.prompt).map_or(Vec::new(), Texts::list);
        if texts.is_empty() {
            return Ok(None);
        }
        let fit = match self.truncate {
            Some(false) => Fit::Refuse,
            _ => Fit::Truncate,
        };
        let (mut request, outputs) =
            preprocessor.prepare_embeddings(origin, texts, "input", fit)?;
        request.stay = stay;
        Ok(Some((request, outputs)))
    }
}

async fn vectors(app: &Arc<App>, asked: UnreadRequest) -> Result<Embedded, RequestError> {
    let (read, client, received) = asked.json(app).await?;
    let ready = app.run_blocking(client, move |models| {
        let request: EmbedRequest = body::parse(&read)?;
        let preprocessor = Preprocessor::for_model(models, Some(&request.model))?;
        let ignored = FIELDS.ignored(&request.others)?;
        let wanted = request.dimensions.map(|dimensions| dimensions.0);
        let dimensions = check_dimensions(wanted, preprocessor.served.about.width)?;
        let ready = request.prepare(&preprocessor, Origin { client, received })?;
        Ok((ready, dimensions, ignored, preprocessor))
    });
    let (ready, dimensions, ignored, preprocessor) = ready.await?;
    let model = preprocessor.model.name().to_owned();
    let (mut vectors, usage) = match ready {
        None => Default::default(),
        Some((request, outputs)) => {
            let prompts = request.prompts.len();
            preprocessor.submit(request)?;
            pooled(outputs, prompts).await?
        }
    };
    vectors
        .iter_mut()
        .for_each(|vector| cut(vector, dimensions));
    Ok(Embedded {
        vectors,
        usage,
        model,
        ignored,
    })
}

/// Body of the response of `/api/embed`, serialised without a JSON tree.
#[derive(Serialize)]
struct EmbedResponse<'a> {
    model: &'a str,
    embeddings: &'a [Vec<f32>],
    total_duration: u64,
    load_duration: u64,
    prompt_eval_count: usize,
}

/// `/api/embed`: embeddings of one or more texts.
///
/// # Errors
/// When the request is invalid or the model fails to compute the embeddings.
pub async fn embed(
    State(app): State<Arc<App>>,
    asked: UnreadRequest,
) -> Result<Response, RequestError> {
    let embedded = vectors(&app, asked).await?;
    let mut response = Json(EmbedResponse {
        model: &embedded.model,
        embeddings: &embedded.vectors,
        total_duration: nanoseconds(embedded.usage.prompt_time),
        load_duration: 0,
        prompt_eval_count: embedded.usage.prompt,
    })
    .into_response();
    ignored::name(&mut response, &embedded.ignored);
    Ok(response)
}

/// `/api/embeddings`: the embedding of one text, or none of an empty one.
///
/// # Errors
/// The same as for `/api/embed`.
pub async fn embed_one(
    State(app): State<Arc<App>>,
    asked: UnreadRequest,
) -> Result<Response, RequestError> {
    let embedded = vectors(&app, asked).await?;
    let first = embedded.vectors.into_iter().next().unwrap_or_default();
    let mut response = Json(json!({ "embedding": first })).into_response();
    ignored::name(&mut response, &embedded.ignored);
    Ok(response)
}
