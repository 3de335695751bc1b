//! What answers are told in: whole ones, and the pieces of streams.

use super::{timings_json, usage_json};
use crate::event::Usage;
use axum::Json;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value};

/// What all answers to a request, and their pieces, begin with.
pub struct Frame {
    /// An identifier that no other request has.
    pub id: String,
    /// What the interface calls a whole answer.
    pub whole: &'static str,
    /// And a piece of one.
    pub piece: &'static str,
    /// When it was asked: seconds since 1970.
    pub created: u64,
    /// What clients call the model.
    pub model: String,
    /// Does a stream end with the numbers of tokens?
    pub include_usage: bool,
}

/// A whole answer. What its choices say of probabilities is only written.
#[derive(Serialize)]
struct Whole<C> {
    #[serde(flatten)]
    envelope: Map<String, Value>,
    choices: Vec<C>,
    usage: Value,
    timings: Value,
}

impl Frame {
    fn envelope(&self, object: &str) -> Map<String, Value> {
        let fingerprint = concat!("gristmill-", env!("CARGO_PKG_VERSION"));
        let fields: [(&str, Value); 5] = [
            ("id", self.id.as_str().into()),
            ("object", object.into()),
            ("created", self.created.into()),
            ("model", self.model.as_str().into()),
            ("system_fingerprint", fingerprint.into()),
        ];
        fields.map(|(name, value)| (name.to_owned(), value)).into_iter().collect()
    }
    /// All of an answer, and what it took.
    pub fn whole<C: Serialize>(&self, choices: impl Iterator<Item = C>, usage: &Usage) -> Response {
        let envelope = self.envelope(self.whole);
        let (choices, usage, timings) = (choices.collect(), usage_json(usage), timings_json(usage));
        Json(Whole { envelope, choices, usage, timings }).into_response()
    }
    /// A piece of one.
    pub fn piece(&self, choices: Value) -> Value {
        let mut piece = self.envelope(self.piece);
        piece.insert("choices".into(), choices);
        if self.include_usage {
            piece.insert("usage".into(), Value::Null);
        }
        piece.into()
    }
    /// The last piece, where it is wanted: what all of them took.
    pub fn end(&self, usage: &Usage) -> Option<Value> {
        self.include_usage.then(|| {
            let mut piece = self.piece(Value::Array(Vec::new()));
            piece["usage"] = usage_json(usage);
            piece["timings"] = timings_json(usage);
            piece
        })
    }
}
