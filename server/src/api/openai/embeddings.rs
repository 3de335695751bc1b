//! `/v1/embeddings`: vectors of texts, by the pooling of the model.

use super::completions::RequestPrompt;
use crate::api::fields::KnownFields;
use crate::app::App;
use crate::core::client::Origin;
use crate::core::error::RequestError;
use crate::core::output::pooled;
use crate::core::pooled_inputs::{Fit, check_dimensions, cut};
use crate::core::preprocess::Preprocessor;
use crate::net::body::{self, UnreadRequest};
use crate::net::ignored;
use crate::net::lenient::Count;
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Fields of `/v1/embeddings`.
const FIELDS: KnownFields = KnownFields {
    at: "",
    declared: &["model", "input", "encoding_format", "dimensions"],
    silent: &["user", "metadata"],
    refused: &[],
};

#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
struct EmbeddingRequest {
    model: Option<String>,
    input: RequestPrompt,
    encoding_format: Option<Encoding>,
    dimensions: Option<Count>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    Float,
    Base64,
}

/// An embedding of the response, serialised without a JSON tree.
#[derive(Serialize)]
struct Embedding<'a> {
    object: &'static str,
    index: usize,
    embedding: Vector<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector<'a> {
    Numbers(&'a [f32]),
    Base64(String),
}

impl Vector<'_> {
    fn new(values: &[f32], encoding: Encoding) -> Vector<'_> {
        match encoding {
            Encoding::Float => Vector::Numbers(values),
            Encoding::Base64 => {
                let bytes: Vec<u8> = values
                    .iter()
                    .flat_map(|value| value.to_le_bytes())
                    .collect();
                Vector::Base64(BASE64_STANDARD.encode(bytes))
            }
        }
    }
}

#[derive(Serialize)]
struct Embeddings<'a> {
    object: &'static str,
    data: Vec<Embedding<'a>>,
    model: &'a str,
    usage: Value,
}

/// `/v1/embeddings`.
///
/// # Errors
/// When the request is invalid or the model fails to compute the embeddings.
pub async fn embed(
    State(app): State<Arc<App>>,
    asked: UnreadRequest,
) -> Result<Response, RequestError> {
    let (read, client, received) = asked.json(&app).await?;
    let ready = app.run_blocking(client, move |models| {
        let request: EmbeddingRequest = body::parse(&read)?;
        let preprocessor = Preprocessor::for_model(models, request.model.as_deref())?;
        let encoding = request.encoding_format.unwrap_or(Encoding::Float);
        let origin = Origin { client, received };
        let ignored = FIELDS.ignored(&request.others)?;
        let wanted = request.dimensions.map(|dimensions| dimensions.0);
        let dimensions = check_dimensions(wanted, preprocessor.served.about.width)?;
        let texts = request.input.list();
        let (request, outputs) =
            preprocessor.prepare_embeddings(origin, texts, "input", Fit::Refuse)?;
        let form = (encoding, dimensions, ignored);
        Ok((form, request, outputs, preprocessor))
    });
    let ((encoding, dimensions, ignored), request, outputs, preprocessor) = ready.await?;
    let prompts = request.prompts.len();
    preprocessor.submit(request)?;
    let (mut vectors, usage) = pooled(outputs, prompts).await?;
    vectors
        .iter_mut()
        .for_each(|vector| cut(vector, dimensions));
    let data = vectors.iter().enumerate().map(|(index, values)| Embedding {
        object: "embedding",
        index,
        embedding: Vector::new(values, encoding),
    });
    let mut response = Json(Embeddings {
        object: "list",
        data: data.collect(),
        model: preprocessor.model.name(),
        usage: json!({ "prompt_tokens": usage.prompt, "total_tokens": usage.prompt }),
    })
    .into_response();
    ignored::name(&mut response, &ignored);
    Ok(response)
}
