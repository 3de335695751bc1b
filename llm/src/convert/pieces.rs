//! `tokenizer.model`: a SentencePiece model, a message of Protocol Buffers.

use super::error::ConvertError;
use super::folder::{CheckpointFolder, Object};
use super::token_table::{Added, NORMAL, SETTINGS, UNUSED_SCORE, USER_DEFINED, Vocab};
use prost::Message;
use serde_json::Value as Json;

/// Longest file in bytes: Gemma's has 5 MB. A piece takes two bytes there and 60 in memory.
const LONGEST: usize = 16 << 20;
/// Value of `model_type` for BPE; the default is a unigram model.
const BPE: i32 = 2;

/// Fields of `sentencepiece_model.proto`.
#[derive(Clone, PartialEq, Message)]
struct ModelProto {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    trainer: Option<TrainerSpec>,
    #[prost(message, optional, tag = "3")]
    normalizer: Option<NormalizerSpec>,
}

#[derive(Clone, PartialEq, Message)]
struct Piece {
    #[prost(string, optional, tag = "1")]
    text: Option<String>,
    #[prost(float, optional, tag = "2")]
    score: Option<f32>,
    /// As in `tokenizer.ggml.token_type`.
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct TrainerSpec {
    #[prost(int32, optional, tag = "3")]
    model_type: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct NormalizerSpec {
    #[prost(bool, optional, tag = "3")]
    add_dummy_prefix: Option<bool>,
}

/// A SentencePiece model, and the tokens of `added_tokens.json`.
pub(super) struct Pieces {
    model: ModelProto,
    /// `added_tokens.json`: ids by text.
    added: Object,
}

impl Pieces {
    /// Reads the file; `None` if there is none.
    pub fn read(folder: &CheckpointFolder, name: &str) -> Result<Option<Pieces>, ConvertError> {
        let Some(bytes) = folder.bytes(name)? else {
            return Ok(None);
        };
        if bytes.len() > LONGEST {
            let problem = format!("it has {} bytes, more than {LONGEST}", bytes.len());
            return Err(ConvertError::malformed(name, problem));
        }
        let model = ModelProto::decode(&bytes[..]);
        let model = model.map_err(|error| {
            ConvertError::malformed(name, format!("no SentencePiece model: {error}"))
        })?;
        let kind = model
            .trainer
            .as_ref()
            .and_then(|trainer| trainer.model_type);
        if kind != Some(BPE) {
            return Err(ConvertError::unsupported(
                "a SentencePiece model that is not of type BPE",
                "models of type BPE, such as those of Llama and Gemma, are converted",
            ));
        }
        Ok(Some(Pieces {
            model,
            added: folder.object("added_tokens.json")?.unwrap_or_default(),
        }))
    }
    /// The vocabulary of an embedding of `rows` rows; `added` are the tokens of `tokenizer.json`
    /// that were added.
    pub fn vocab(
        &self,
        settings: &Object,
        added: Vec<Added>,
        rows: usize,
    ) -> Result<Vocab, ConvertError> {
        let name = "tokenizer.model";
        let mut vocab = Vocab::unused("llama", rows);
        let mut scores = vec![UNUSED_SCORE; rows];
        for (id, piece) in self.model.pieces.iter().enumerate() {
            let text = piece.text.as_deref().unwrap_or_default();
            let kind = piece.kind.unwrap_or(NORMAL);
            // Texts that users write have plain spaces.
            let text = match kind {
                USER_DEFINED => text.replace('\u{2581}', " "),
                _ => text.to_owned(),
            };
            vocab.set(name, id, &text, kind)?;
            scores[id] = piece.score.unwrap_or(0.0);
        }
        vocab.scores = Some(scores);
        for (text, id) in &self.added {
            // Some files list a token beyond the embedding, which no reply can have.
            let Some(id) = id.as_u64().filter(|&id| id < rows as u64) else {
                continue;
            };
            let token = Added {
                id: id as usize,
                text: text.clone(),
                special: false,
            };
            vocab.add("added_tokens.json", &token)?;
        }
        let declared = declared(settings)?.unwrap_or(added);
        for token in declared.iter().filter(|token| token.id < rows) {
            vocab.add(SETTINGS, token)?;
        }
        let setting = settings.get("add_prefix_space").and_then(Json::as_bool);
        let normalizer = self.model.normalizer.as_ref();
        let dummy = normalizer.and_then(|normalizer| normalizer.add_dummy_prefix);
        vocab.space_prefix = setting.or(dummy);
        vocab.pre = Some("default");
        Ok(vocab)
    }
}

/// Tokens that `tokenizer_config.json` adds; `None` if it does not list them.
fn declared(settings: &Object) -> Result<Option<Vec<Added>>, ConvertError> {
    let Some(Json::Object(decoder)) = settings.get("added_tokens_decoder") else {
        return Ok(None);
    };
    let token = |(id, json): (&String, &Json)| {
        Some(Added {
            id: id.parse().ok()?,
            text: json.get("content")?.as_str()?.to_owned(),
            special: json.get("special").and_then(Json::as_bool) == Some(true),
        })
    };
    let all: Option<Vec<_>> = decoder.iter().map(token).collect();
    let problem = "added_tokens_decoder has another form";
    all.ok_or_else(|| ConvertError::malformed(SETTINGS, problem))
        .map(Some)
}
