//! Messages of `vllm.grpc.engine`, the worker protocol of vLLM.

use prost::{Message, Oneof};
use std::collections::HashMap;

#[derive(Clone, PartialEq, Message)]
pub struct SamplingParams {
    /// Absent: the model's default.
    #[prost(float, optional, tag = "1")]
    pub temperature: Option<f32>,
    /// 0 counts as absent.
    #[prost(float, tag = "2")]
    pub top_p: f32,
    /// 0 keeps all tokens.
    #[prost(uint32, tag = "3")]
    pub top_k: u32,
    /// From 0 to 1.
    #[prost(float, tag = "4")]
    pub min_p: f32,
    /// From −2 to 2.
    #[prost(float, tag = "5")]
    pub frequency_penalty: f32,
    /// From −2 to 2.
    #[prost(float, tag = "6")]
    pub presence_penalty: f32,
    /// 0 counts as absent.
    #[prost(float, tag = "7")]
    pub repetition_penalty: f32,
    /// Maximum tokens of each output; absent: the rest of the context.
    #[prost(uint32, optional, tag = "8")]
    pub max_tokens: Option<u32>,
    /// Not supported above 0.
    #[prost(uint32, tag = "9")]
    pub min_tokens: u32,
    /// Strings that end an output.
    #[prost(string, repeated, tag = "10")]
    pub stop: Vec<String>,
    /// Tokens that end an output.
    #[prost(uint32, repeated, tag = "11")]
    pub stop_token_ids: Vec<u32>,
    /// Whether tokens that end a sequence do not end the output.
    #[prost(bool, tag = "14")]
    pub ignore_eos: bool,
    /// Number of outputs; 0 counts as 1.
    #[prost(uint32, tag = "15")]
    pub n: u32,
    /// Alternatives with the log-probability of each token.
    #[prost(int32, optional, tag = "22")]
    pub logprobs: Option<i32>,
    /// Alternatives with the log-probability of each prompt token.
    #[prost(int32, optional, tag = "23")]
    pub prompt_logprobs: Option<i32>,
    /// Seed of the sampler; random if absent.
    #[prost(int32, optional, tag = "24")]
    pub seed: Option<i32>,
    /// Biases of tokens, from −100 to 100.
    #[prost(map = "int32, float", tag = "26")]
    pub logit_bias: HashMap<i32, f32>,
    #[prost(int32, optional, tag = "27")]
    pub truncate_prompt_tokens: Option<i32>,
    /// Constraint on the outputs.
    #[prost(oneof = "Constraint", tags = "16, 17, 18, 19, 20, 21")]
    pub constraint: Option<Constraint>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Constraint {
    #[prost(string, tag = "16")]
    JsonSchema(String),
    #[prost(string, tag = "17")]
    Regex(String),
    /// A grammar: GBNF, or Lark.
    #[prost(string, tag = "18")]
    Grammar(String),
    #[prost(string, tag = "19")]
    StructuralTag(String),
    #[prost(bool, tag = "20")]
    JsonObject(bool),
    /// One of the listed texts.
    #[prost(message, tag = "21")]
    Choice(ChoiceConstraint),
}

/// Texts one of which an output is.
#[derive(Clone, PartialEq, Message)]
pub struct ChoiceConstraint {
    #[prost(string, repeated, tag = "1")]
    pub choices: Vec<String>,
}

/// A prompt as tokens.
#[derive(Clone, PartialEq, Message)]
pub struct TokenizedInput {
    /// Ids of the tokens.
    #[prost(uint32, repeated, tag = "2")]
    pub input_ids: Vec<u32>,
}

/// Presence of a message whose content is not read.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Present {}

/// Request for outputs to a prompt.
#[derive(Clone, PartialEq, Message)]
pub struct GenerateRequest {
    /// Name by which the request can be aborted.
    #[prost(string, tag = "1")]
    pub request_id: String,
    #[prost(oneof = "PromptInput", tags = "2, 3")]
    pub input: Option<PromptInput>,
    /// Sampling parameters and limits.
    #[prost(message, optional, tag = "4")]
    pub sampling_params: Option<SamplingParams>,
    /// Whether tokens are sent as they are generated.
    #[prost(bool, tag = "5")]
    pub stream: bool,
    /// Transfer of a KV cache; not supported.
    #[prost(message, optional, tag = "6")]
    pub kv_transfer_params: Option<Present>,
    #[prost(message, optional, tag = "7")]
    pub mm_inputs: Option<Present>,
    /// Transfer of a KV cache; not supported.
    #[prost(string, optional, tag = "8")]
    pub kv_transfer_params_json: Option<String>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum PromptInput {
    #[prost(message, tag = "2")]
    Tokenized(TokenizedInput),
    #[prost(string, tag = "3")]
    Text(String),
}

/// Log-probabilities of output tokens.
#[derive(Clone, PartialEq, Message)]
pub struct OutputLogProbs {
    /// Log-probability of each token.
    #[prost(float, repeated, tag = "1")]
    pub token_logprobs: Vec<f32>,
    /// Ids of the tokens.
    #[prost(uint32, repeated, tag = "2")]
    pub token_ids: Vec<u32>,
    /// Alternatives to each token.
    #[prost(message, repeated, tag = "3")]
    pub top_logprobs: Vec<TopLogProbs>,
}

/// Log-probabilities of prompt tokens.
#[derive(Clone, PartialEq, Message)]
pub struct InputLogProbs {
    /// Log-probability of each token; the first has none.
    #[prost(message, repeated, tag = "1")]
    pub token_logprobs: Vec<InputTokenLogProb>,
    /// Ids of the tokens.
    #[prost(uint32, repeated, tag = "2")]
    pub token_ids: Vec<u32>,
    /// Alternatives to each token.
    #[prost(message, repeated, tag = "3")]
    pub top_logprobs: Vec<TopLogProbs>,
}

/// Log-probability of a prompt token.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct InputTokenLogProb {
    /// `None` for the first token.
    #[prost(float, optional, tag = "1")]
    pub value: Option<f32>,
}

/// Most probable tokens at a position.
#[derive(Clone, PartialEq, Message)]
pub struct TopLogProbs {
    #[prost(float, repeated, tag = "1")]
    pub values: Vec<f32>,
    #[prost(uint32, repeated, tag = "2")]
    pub token_ids: Vec<u32>,
}

/// Part of the response to a [`GenerateRequest`].
#[derive(Clone, PartialEq, Message)]
pub struct GenerateResponse {
    /// Kind of the part.
    #[prost(oneof = "GenerateResponsePart", tags = "1, 2")]
    pub response: Option<GenerateResponsePart>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum GenerateResponsePart {
    /// More tokens of an output.
    #[prost(message, tag = "1")]
    Chunk(GenerateStreamChunk),
    /// The end of an output.
    #[prost(message, tag = "2")]
    Complete(GenerateComplete),
}

/// More tokens of an output.
#[derive(Clone, PartialEq, Message)]
pub struct GenerateStreamChunk {
    #[prost(uint32, repeated, tag = "1")]
    pub token_ids: Vec<u32>,
    /// Tokens of the prompt.
    #[prost(uint32, tag = "2")]
    pub prompt_tokens: u32,
    /// Number of the new tokens.
    #[prost(uint32, tag = "3")]
    pub completion_tokens: u32,
    /// Prompt tokens found in the prefix cache.
    #[prost(uint32, tag = "4")]
    pub cached_tokens: u32,
    /// Log-probabilities of the new tokens.
    #[prost(message, optional, tag = "5")]
    pub output_logprobs: Option<OutputLogProbs>,
    /// Log-probabilities of the prompt, in the first chunk.
    #[prost(message, optional, tag = "6")]
    pub input_logprobs: Option<InputLogProbs>,
    /// Index of the output.
    #[prost(uint32, tag = "7")]
    pub index: u32,
}

/// The end of an output.
#[derive(Clone, PartialEq, Message)]
pub struct GenerateComplete {
    /// All tokens of the output.
    #[prost(uint32, repeated, tag = "1")]
    pub output_ids: Vec<u32>,
    /// `stop`, `length` or `abort`.
    #[prost(string, tag = "2")]
    pub finish_reason: String,
    /// Tokens of the prompt.
    #[prost(uint32, tag = "3")]
    pub prompt_tokens: u32,
    /// Tokens of the output.
    #[prost(uint32, tag = "4")]
    pub completion_tokens: u32,
    /// Prompt tokens found in the prefix cache.
    #[prost(uint32, tag = "5")]
    pub cached_tokens: u32,
    /// Log-probabilities of all tokens, unless they were streamed.
    #[prost(message, optional, tag = "6")]
    pub output_logprobs: Option<OutputLogProbs>,
    /// Log-probabilities of the prompt, unless they were streamed.
    #[prost(message, optional, tag = "7")]
    pub input_logprobs: Option<InputLogProbs>,
    /// Index of the output.
    #[prost(uint32, tag = "8")]
    pub index: u32,
    /// The stop string that ended it.
    #[prost(string, optional, tag = "11")]
    pub matched_stop_str: Option<String>,
}

/// Request for the worker's health.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct HealthCheckRequest {}

/// The worker's health.
#[derive(Clone, PartialEq, Message)]
pub struct HealthCheckResponse {
    /// Whether requests are accepted.
    #[prost(bool, tag = "1")]
    pub healthy: bool,
    /// State of the worker.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// Request to end requests.
#[derive(Clone, PartialEq, Message)]
pub struct AbortRequest {
    /// Their names; unknown ones are ignored.
    #[prost(string, repeated, tag = "1")]
    pub request_ids: Vec<String>,
}

/// Response to an [`AbortRequest`].
#[derive(Clone, Copy, PartialEq, Message)]
pub struct AbortResponse {}

/// Request for facts about the model.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct GetModelInfoRequest {}

/// Facts about the model.
#[derive(Clone, PartialEq, Message)]
pub struct GetModelInfoResponse {
    /// Whether it generates text.
    #[prost(bool, tag = "2")]
    pub is_generation: bool,
    /// Context length in tokens.
    #[prost(uint32, tag = "3")]
    pub max_context_length: u32,
    /// Number of token ids.
    #[prost(uint32, tag = "4")]
    pub vocab_size: u32,
    /// Name of the model for clients.
    #[prost(string, tag = "6")]
    pub served_model_name: String,
    /// Architecture of the model.
    #[prost(string, tag = "8")]
    pub model_type: String,
    /// Tokens that end a sequence.
    #[prost(int32, repeated, tag = "10")]
    pub eos_token_ids: Vec<i32>,
    /// Token that pads sequences; 0 for none.
    #[prost(int32, tag = "11")]
    pub pad_token_id: i32,
    /// Token that begins a sequence; 0 for none.
    #[prost(int32, tag = "12")]
    pub bos_token_id: i32,
    /// Maximum tokens of a prompt.
    #[prost(int32, tag = "13")]
    pub max_req_input_len: i32,
}

/// Request for facts about the server.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct GetServerInfoRequest {}

/// Facts about the server.
#[derive(Clone, PartialEq, Message)]
pub struct GetServerInfoResponse {
    /// Running and queued requests.
    #[prost(uint32, tag = "1")]
    pub active_requests: u32,
    /// Time since the port was opened, in seconds.
    #[prost(double, tag = "4")]
    pub uptime_seconds: f64,
    /// Name of the protocol's implementation.
    #[prost(string, tag = "5")]
    pub server_type: String,
    /// Data-parallel ranks; replicas are one rank.
    #[prost(int32, tag = "9")]
    pub data_parallel_size: i32,
}

/// Request for the load.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct GetLoadsRequest {}

#[derive(Clone, PartialEq, Message)]
pub struct GetLoadsResponse {
    /// Version of the server.
    #[prost(string, tag = "2")]
    pub version: String,
    #[prost(int32, tag = "3")]
    pub dp_rank_count: i32,
    /// Load of each rank.
    #[prost(message, repeated, tag = "4")]
    pub loads: Vec<SchedulerLoad>,
}

/// Load of a rank.
#[derive(Clone, PartialEq, Message)]
pub struct SchedulerLoad {
    /// Number of the rank.
    #[prost(int32, tag = "1")]
    pub dp_rank: i32,
    #[prost(int32, tag = "2")]
    pub num_running_reqs: i32,
    #[prost(int32, tag = "3")]
    pub num_waiting_reqs: i32,
    /// Running and queued requests.
    #[prost(int32, tag = "4")]
    pub num_total_reqs: i32,
    /// KV cache tokens of running requests.
    #[prost(int32, tag = "5")]
    pub num_used_tokens: i32,
    /// KV cache capacity in tokens.
    #[prost(int32, tag = "6")]
    pub max_total_num_tokens: i32,
    /// Used share of the KV cache, from 0 to 1.
    #[prost(double, tag = "7")]
    pub token_usage: f64,
    #[prost(int32, tag = "11")]
    pub max_running_requests: i32,
}
