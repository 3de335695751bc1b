//! Envelope of OpenAI's responses and stream chunks.

use super::settings::Telling;
use super::usage::{timings_json, usage_json};
use crate::core::event::Usage;
use crate::core::id::fresh_id;
use crate::core::model::{Served, now};
use axum::Json;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value};

/// Fields that the response to a request, or all chunks of its stream, share.
pub struct Frame {
    /// Unique identifier of the response.
    id: String,
    /// `object` of a whole response.
    whole: &'static str,
    /// `object` of a stream chunk.
    piece: &'static str,
    /// Time of the request, in seconds since the Unix epoch.
    created: u64,
    /// Name of the model as clients use it.
    model: String,
    /// Whether the stream ends with a chunk that has the usage.
    include_usage: bool,
}

/// A whole response. Choices are serialised directly, so that log-probabilities need no JSON tree.
#[derive(Serialize)]
struct Whole<C> {
    #[serde(flatten)]
    envelope: Map<String, Value>,
    choices: Vec<C>,
    usage: Value,
    timings: Value,
}

impl Frame {
    /// Envelope with a fresh identifier.
    pub fn new(
        prefix: &str,
        whole: &'static str,
        piece: &'static str,
        served: &Served,
        telling: &Telling,
    ) -> Frame {
        Frame {
            id: fresh_id(prefix),
            whole,
            piece,
            created: now(),
            model: served.name.clone(),
            include_usage: telling.include_usage,
        }
    }
    fn envelope(&self, object: &str) -> Map<String, Value> {
        let fingerprint = concat!("gristmill-", env!("CARGO_PKG_VERSION"));
        let fields: [(&str, Value); 5] = [
            ("id", self.id.as_str().into()),
            ("object", object.into()),
            ("created", self.created.into()),
            ("model", self.model.as_str().into()),
            ("system_fingerprint", fingerprint.into()),
        ];
        fields
            .map(|(name, value)| (name.to_owned(), value))
            .into_iter()
            .collect()
    }
    /// Returns the whole response with its usage.
    pub fn whole<C: Serialize>(&self, choices: impl Iterator<Item = C>, usage: &Usage) -> Response {
        let envelope = self.envelope(self.whole);
        let (choices, usage, timings) = (choices.collect(), usage_json(usage), timings_json(usage));
        Json(Whole {
            envelope,
            choices,
            usage,
            timings,
        })
        .into_response()
    }
    /// Returns a stream chunk with the given choices.
    pub fn piece(&self, choices: Value) -> Value {
        let mut piece = self.envelope(self.piece);
        piece.insert("choices".into(), choices);
        if self.include_usage {
            piece.insert("usage".into(), Value::Null);
        }
        piece.into()
    }
    /// Returns the last chunk, which has the usage of all choices, if the client asked for it.
    pub fn end(&self, usage: &Usage) -> Option<Value> {
        self.include_usage.then(|| {
            let mut piece = self.piece(Value::Array(Vec::new()));
            piece["usage"] = usage_json(usage);
            piece["timings"] = timings_json(usage);
            piece
        })
    }
}
