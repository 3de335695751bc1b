//! What answers are told in: whole ones, and the pieces of streams.

use super::settings::Telling;
use super::usage::{timings_json, usage_json};
use crate::core::event::Usage;
use crate::core::id::fresh_id;
use crate::core::model::{Served, now};
use axum::Json;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value};

/// What all answers to a request, and their pieces, begin with.
pub struct Frame {
    /// An identifier that no other request has.
    id: String,
    /// What the interface calls a whole answer.
    whole: &'static str,
    /// And a piece of one.
    piece: &'static str,
    /// When it was asked: seconds since 1970.
    created: u64,
    /// What clients call the model.
    model: String,
    /// Does a stream end with the numbers of tokens?
    include_usage: bool,
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
    /// A fresh one.
    pub fn new(prefix: &str, whole: &'static str, piece: &'static str, served: &Served, telling: &Telling) -> Frame {
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
