//! `/v1/rerank` and `/v2/rerank`: scores of documents for a query, in the shapes of Jina's and
//! Cohere's interfaces.

use crate::api::fields::KnownFields;
use crate::app::App;
use crate::core::client::Origin;
use crate::core::error::RequestError;
use crate::core::id::fresh_id;
use crate::core::output::pooled;
use crate::core::preprocess::Preprocessor;
use crate::net::body::{self, UnreadRequest};
use crate::net::ignored;
use crate::net::lenient::{Count, Switch};
use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Fields of the endpoints.
const FIELDS: KnownFields = KnownFields {
    at: "",
    declared: &["model", "query", "documents", "top_n", "return_documents"],
    silent: &["user", "metadata"],
    refused: &[(
        "rank_fields",
        "send each document as a string or as {\"text\": …}",
    )],
};

#[derive(Deserialize, Debug)]
#[serde(expecting = "an object")]
struct RerankRequest {
    model: Option<String>,
    query: Document,
    documents: Vec<Document>,
    /// Maximum results; all documents by default.
    top_n: Option<Count>,
    return_documents: Option<Switch>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// A text, alone or in an object.
#[derive(Deserialize, Debug)]
#[serde(untagged, expecting = "expected a string or an object with `text`")]
enum Document {
    Text(String),
    Object { text: String },
}

impl Document {
    fn into_text(self) -> String {
        match self {
            Document::Text(text) | Document::Object { text } => text,
        }
    }
}

/// Form of a response.
struct Form {
    /// Maximum results, `top_n` of the request.
    most: usize,
    /// The documents, if they are returned.
    documents: Option<Vec<String>>,
    ignored: Vec<String>,
}

/// Returns the results in descending order of scores; equal scores keep the order of documents.
fn results(scores: &[f32], form: &Form) -> Vec<Value> {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    order.truncate(form.most);
    let result = |index: usize| {
        let mut result = json!({ "index": index, "relevance_score": scores[index] });
        if let Some(documents) = &form.documents {
            result["document"] = json!({ "text": documents[index] });
        }
        result
    };
    order.into_iter().map(result).collect()
}

/// `/v1/rerank` and `/v2/rerank`.
///
/// # Errors
/// When the request is invalid, the model is no reranker, or it fails to compute the scores.
pub async fn rerank(
    State(app): State<Arc<App>>,
    asked: UnreadRequest,
) -> Result<Response, RequestError> {
    let (read, client, received) = asked.json(&app).await?;
    let ready = app.run_blocking(client, move |models| {
        let request: RerankRequest = body::parse(&read)?;
        let preprocessor = Preprocessor::for_model(models, request.model.as_deref())?;
        let ignored = FIELDS.ignored(&request.others)?;
        let most = request.top_n.map_or(u64::MAX, |most| most.0);
        if most == 0 {
            return Err(RequestError::parameter(
                "top_n",
                "top_n is 0; it must be at least 1",
            ));
        }
        let query = request.query.into_text();
        let documents: Vec<String> = request
            .documents
            .into_iter()
            .map(Document::into_text)
            .collect();
        let origin = Origin { client, received };
        let (prepared, outputs) = preprocessor.prepare_scores(origin, &query, &documents)?;
        let returns = request.return_documents.is_some_and(|returns| returns.0);
        let form = Form {
            most: usize::try_from(most).unwrap_or(usize::MAX),
            documents: returns.then_some(documents),
            ignored,
        };
        Ok((form, prepared, outputs, preprocessor))
    });
    let (form, request, outputs, preprocessor) = ready.await?;
    let prompts = request.prompts.len();
    preprocessor.submit(request)?;
    let (scores, usage) = pooled(outputs, prompts).await?;
    let scores: Vec<f32> = scores.into_iter().flatten().collect();
    let mut response = Json(json!({
        "id": fresh_id("rerank-"),
        "object": "list",
        "model": preprocessor.model.name(),
        "results": results(&scores, &form),
        "usage": { "prompt_tokens": usage.prompt, "total_tokens": usage.prompt },
        "meta": {
            "api_version": { "version": "2" },
            "billed_units": { "search_units": 1 },
            "tokens": { "input_tokens": usage.prompt },
        },
    }))
    .into_response();
    ignored::name(&mut response, &form.ignored);
    Ok(response)
}
