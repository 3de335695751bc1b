//! Generation requests of the protocol as those of the server.

use crate::messages::vllm::{Constraint, GenerateRequest, PromptInput, SamplingParams};
use gristmill_server::worker::{self, BiasKey, FieldNames, Input, OutputFormat, PromptText};
use gristmill_server::worker::{RequestError, SamplingOptions};
use serde_json::{Value, json};

const NAMES: FieldNames = FieldNames {
    input: "input_ids",
    tools: "tools",
    tool_choice: "tool_choice",
    limit: "max_tokens",
    choices: "n",
    stop: "stop",
};

/// Converts a request.
///
/// # Errors
/// When the prompt is missing, or the request has a field that is not supported.
pub fn convert(request: GenerateRequest) -> Result<worker::GenerateRequest, RequestError> {
    let transfers =
        request.kv_transfer_params.is_some() || request.kv_transfer_params_json.is_some();
    if transfers {
        return Err(unsupported("kv_transfer_params"));
    }
    if request.mm_inputs.is_some() {
        return Err(unsupported("mm_inputs"));
    }
    let prompt = match request.input {
        Some(PromptInput::Tokenized(prompt)) => PromptText::Tokens(prompt.input_ids),
        Some(PromptInput::Text(text)) => PromptText::Text(text),
        None => return Err(RequestError::missing("input")),
    };
    let mut to = worker::GenerateRequest::new(&NAMES, Input::Prompts(vec![prompt]));
    (to.token_ids, to.stream) = (true, request.stream);
    sampling(request.sampling_params.unwrap_or_default(), &mut to)?;
    Ok(to)
}

fn unsupported(field: &'static str) -> RequestError {
    let message = format!("{field} is not supported by this server; leave it out");
    RequestError::parameter(field, message)
}

fn sampling(from: SamplingParams, to: &mut worker::GenerateRequest) -> Result<(), RequestError> {
    if from.min_tokens > 0 {
        return Err(unsupported("min_tokens"));
    }
    if from.truncate_prompt_tokens.is_some_and(|most| most > 0) {
        return Err(unsupported("truncate_prompt_tokens"));
    }
    // A number without presence is 0 where the client left it out.
    let given = |value: f32| (value != 0.0).then_some(f64::from(value));
    let bias = from.logit_bias.into_iter();
    to.sampling = SamplingOptions {
        seed: from.seed.map(i64::from),
        temperature: from.temperature.map(f64::from),
        top_p: given(from.top_p),
        top_k: Some(i64::from(from.top_k)),
        min_p: Some(f64::from(from.min_p)),
        frequency_penalty: Some(f64::from(from.frequency_penalty)),
        presence_penalty: Some(f64::from(from.presence_penalty)),
        repetition_penalty: given(from.repetition_penalty),
        logit_bias: bias
            .map(|(token, value)| (BiasKey::Token(token.to_string()), json!(value)))
            .collect(),
        ..SamplingOptions::default()
    };
    to.limit = from.max_tokens.map(u64::from);
    to.stop = from.stop;
    to.stop_tokens = from.stop_token_ids;
    to.ignore_eos = from.ignore_eos;
    to.choices = u64::from(from.n.max(1));
    to.logprobs = alternatives("logprobs", from.logprobs)?;
    to.prompt_logprobs = alternatives("prompt_logprobs", from.prompt_logprobs)?;
    to.form = from.constraint.map(format).transpose()?.flatten();
    Ok(())
}

/// Returns a number of alternatives. The server checks its maximum.
fn alternatives(field: &'static str, number: Option<i32>) -> Result<Option<usize>, RequestError> {
    let converted = number.map(usize::try_from).transpose();
    converted.map_err(|_| unsupported(field))
}

fn format(from: Constraint) -> Result<Option<(&'static str, OutputFormat)>, RequestError> {
    Ok(Some(match from {
        Constraint::JsonSchema(text) => {
            let schema: Value = serde_json::from_str(&text).map_err(|error| {
                RequestError::parameter("json_schema", format!("it is not JSON: {error}"))
            })?;
            ("json_schema", OutputFormat::Schema(schema))
        }
        Constraint::Regex(text) => ("regex", OutputFormat::Regex(text)),
        // As in vLLM, both forms are accepted: GBNF defines rules with `::=`, Lark with a colon.
        Constraint::Grammar(text) if text.contains("::=") => ("grammar", OutputFormat::Gbnf(text)),
        Constraint::Grammar(text) => ("grammar", OutputFormat::Lark(text)),
        Constraint::StructuralTag(_) => return Err(unsupported("structural_tag")),
        Constraint::JsonObject(true) => {
            let schema = json!({ "type": "object" });
            ("json_object", OutputFormat::Schema(schema))
        }
        Constraint::JsonObject(false) => return Ok(None),
        Constraint::Choice(choice) => ("choice", OutputFormat::Choice(choice.choices)),
    }))
}
