//! Fields that a request's type does not declare: ignored ones are named in the response, near
//! misses of a known name are refused.

use crate::core::error::RequestError;
use serde_json::{Map, Value};
use strsim::damerau_levenshtein;

/// Fields that an interface knows.
#[derive(Clone, Copy, Debug)]
pub struct KnownFields {
    /// Path of the object that has the fields, with a dot at its end; empty for the body.
    pub at: &'static str,
    /// Names that the request's type declares.
    pub declared: &'static [&'static str],
    /// Names of clients' labels and hints, which change no answer; they are not named.
    pub silent: &'static [&'static str],
    /// Names without which the answer would be wrong, with the reason of the refusal.
    pub refused: &'static [(&'static str, &'static str)],
}

/// Fields of vLLM, llama.cpp, Ollama and others that have no effect here. They are listed as some
/// are near to the name of a supported field (`min_tokens` to `max_tokens`).
const FOREIGN: &[&str] = &[
    "min_tokens",
    "min_keep",
    "min_length",
    "max_length",
    "max_time",
    "max_new_tokens",
    "max_thinking_tokens",
    "n_predict",
    "n_keep",
    "n_discard",
    "n_indent",
    "n_probs",
    "n_cmpl",
    "num_beams",
    "num_ctx",
    "num_keep",
    "num_predict",
    "top_a",
    "top_n",
    "top_n_sigma",
    "typical",
    "typ_p",
    "typical_p",
    "tfs",
    "tfs_z",
    "epsilon_cutoff",
    "eta_cutoff",
    "dynatemp_range",
    "dynatemp_exponent",
    "smoothing_factor",
    "xtc_probability",
    "xtc_threshold",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "mirostat_mode",
    "penalty_alpha",
    "penalty_last_n",
    "penalize_nl",
    "penalty_prompt",
    "length_penalty",
    "encoder_repetition_penalty",
    "repetition_penalty_range",
    "rep_pen",
    "temperature_last",
    "samplers",
    "sampler_order",
    "sampler_priority",
    "sampler_seed",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
    "stop_token_ids",
    "best_of",
    "echo",
    "early_stopping",
    "prompts",
    "prompt",
    "input",
    "messages",
    "system",
    "think",
    "thinking",
    "reasoning",
    "enable_thinking",
    "reasoning_format",
    "thinking_forced_open",
    "verbosity",
    "format",
    "text",
    "options",
    "suffix",
    "priority",
    "logprobs",
    "prompt_logprobs",
    "return_tokens",
    "return_token_ids",
    "return_progress",
    "return_tokens_as_token_ids",
    "post_sampling_probs",
    "request_id",
    "cache_salt",
    "id_slot",
    "slot_id",
    "t_max_predict_ms",
    "t_max_prompt_ms",
    "truncate_prompt_tokens",
    "documents",
    "chat_template",
    "guided_decoding_backend",
    "guided_whitespace_pattern",
    "grammar_lazy",
    "grammar_triggers",
    "preserved_tokens",
    "kv_transfer_params",
    "vllm_xargs",
    "seeds",
    "stops",
    "tool",
    "provider",
    "route",
    "transforms",
    "models",
    "plugins",
    "usage",
];

/// Maximum undeclared fields that are compared and named; a request has no more honest ones.
const MAX_FIELDS: usize = 64;
/// Maximum bytes of a name that is compared.
const MAX_NAME: usize = 40;

impl KnownFields {
    /// Returns the paths of the ignored fields among the undeclared ones.
    ///
    /// # Errors
    /// The first field that is refused, or nearly has the name of a declared one.
    pub fn ignored(&self, others: &Map<String, Value>) -> Result<Vec<String>, RequestError> {
        for (name, why) in self.refused {
            if others.get(*name).is_some_and(is_set) {
                let message = format!("{name} is not supported here: {why}");
                return Err(RequestError::parameter(
                    format!("{}{name}", self.at),
                    message,
                ));
            }
        }
        let is_silent = |name: &str| {
            self.silent.contains(&name) || self.refused.iter().any(|row| row.0 == name)
        };
        let mut ignored = Vec::new();
        for (name, _) in others
            .iter()
            .filter(|(name, _)| !is_silent(name))
            .take(MAX_FIELDS)
        {
            if let Some(nearest) = self.nearest(name) {
                return Err(RequestError::misspelt(
                    &format!("{}{name}", self.at),
                    &format!("{}{nearest}", self.at),
                ));
            }
            ignored.push(format!("{}{name}", self.at));
        }
        Ok(ignored)
    }
    /// Returns the declared name that a client most likely misspelt as `name`.
    fn nearest(&self, name: &str) -> Option<&'static str> {
        if name.len() > MAX_NAME || FOREIGN.contains(&name) {
            return None;
        }
        let asked = plain(name);
        let near = |known: &&'static str| {
            let known = plain(known);
            let distance = damerau_levenshtein(&known, &asked);
            // Short names are near to each other by chance.
            let most = match known.len().min(asked.len()) {
                0..5 => 0,
                5..10 => 1,
                _ => 2,
            };
            (distance <= most).then_some(distance)
        };
        let near = self
            .declared
            .iter()
            .filter_map(|known| Some((near(known)?, *known)));
        near.min_by_key(|(distance, _)| *distance)
            .map(|(_, known)| known)
    }
}

/// Returns whether a value asks for something: not null, false, 0 or empty.
pub fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Bool(true) => true,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(map) => !map.is_empty(),
        Value::Number(number) => number.as_f64() != Some(0.0),
    }
}

/// Reduces a name to lower case without separators, so that `maxTokens` is `max_tokens`.
fn plain(name: &str) -> String {
    name.chars()
        .filter(|c| !"_- ".contains(*c))
        .flat_map(char::to_lowercase)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const FIELDS: KnownFields = KnownFields {
        at: "",
        declared: &[
            "max_tokens",
            "max_completion_tokens",
            "temperature",
            "top_p",
            "top_k",
            "stop",
            "stream",
            "seed",
            "tools",
            "grammar",
        ],
        silent: &["user"],
        refused: &[("audio", "text only")],
    };

    fn ignored(body: Value) -> Result<Vec<String>, RequestError> {
        FIELDS.ignored(body.as_object().unwrap())
    }

    #[test]
    fn only_near_misses_are_refused() {
        for (name, nearest) in [
            ("max_token", "max_tokens"),
            ("maxTokens", "max_tokens"),
            ("max-tokens", "max_tokens"),
            ("max_completion_token", "max_completion_tokens"),
            ("temprature", "temperature"),
            ("Temperature", "temperature"),
            ("topP", "top_p"),
            ("steam", "stream"),
            ("gramar", "grammar"),
        ] {
            let error = ignored(json!({ name: 1 })).unwrap_err();
            assert!(error.message.ends_with(&format!("did you mean {nearest}?")));
            assert_eq!(error.field.as_deref(), Some(name));
        }
        for name in FOREIGN
            .iter()
            .chain(&["top_x", "step", "sees", "x", "", "é"])
        {
            assert_eq!(ignored(json!({ *name: 1 })), Ok(vec![name.to_string()]));
        }
    }

    #[test]
    fn set_fields_that_change_the_answer_are_refused() {
        assert_eq!(ignored(json!({ "user": "me", "audio": {} })), Ok(vec![]));
        let error = ignored(json!({ "audio": { "voice": "a" } })).unwrap_err();
        assert_eq!(error.field.as_deref(), Some("audio"));
        let many: Map<String, Value> = (0..100_000)
            .map(|i| (format!("{i}"), Value::Null))
            .collect();
        assert_eq!(FIELDS.ignored(&many).unwrap().len(), MAX_FIELDS);
    }
}
