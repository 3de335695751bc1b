//! Preprocessing: from a request as an interface parsed it to the queue of its model.

use crate::core::adapters::{self, AdapterChoice};
use crate::core::budget::{self, ReplySize};
use crate::core::channel::channel;
use crate::core::client::Origin;
use crate::core::constraint::compile::compile;
use crate::core::constraint::grammar::{OutputConstraint, OutputFormat};
use crate::core::constraint::mask::Constraint;
use crate::core::engine_request::{EngineRequest, GenerationParams, ReasoningBound, Task};
use crate::core::error::RequestError;
use crate::core::event::{Event, Usage};
use crate::core::field_names::FieldNames;
use crate::core::limits::{
    Limits, MAX_PROMPTS, MAX_REASONING_MESSAGE, MAX_STOP_TOKENS, MAX_STOPS, MAX_TOP_LOGPROBS,
};
use crate::core::model::Served;
use crate::core::models::entry::ModelEntry;
use crate::core::models::pool::Models;
use crate::core::output::Outputs;
use crate::core::prompt::{self, Prompt};
use crate::core::queue::QueueError;
use crate::core::request::{GenerateRequest, Input, PromptText, ReasoningLimit};
use crate::core::sampling::whole;
use crate::core::tools::ToolSet;
use gristmill_llm::arch::AdapterScales;
use gristmill_llm::chat::closing_tokens;
use gristmill_llm::chat::reply::{Begins, Reply, Schemas};
use gristmill_llm::sched::SequenceOptions;
use std::sync::Arc;

/// Preprocesses the requests of one model.
pub struct Preprocessor {
    pub(super) models: Arc<Models>,
    /// The model that the request names.
    pub model: Arc<ModelEntry>,
    /// Text side of the model.
    pub served: Arc<Served>,
    /// Name by which the request asked for it.
    asked: Option<String>,
}

/// Parsing of a request's choices.
#[derive(Default)]
pub(super) struct Replies {
    /// Choices of all prompts.
    count: usize,
    /// State in which the replies of a conversation begin; `None` for text that is streamed as it
    /// is.
    conversation: Option<Conversation>,
}

struct Conversation {
    begins: Begins,
    schemas: Option<Schemas>,
    forced: bool,
    several: bool,
}

impl Conversation {
    fn new(begins: Begins, tools: &ToolSet, several: bool) -> Conversation {
        Conversation {
            begins,
            schemas: tools.schemas(),
            forced: tools.is_forced(),
            several,
        }
    }
}

impl Preprocessor {
    /// Creates the preprocessor of the named model; it may have to read the model's tokenizer and
    /// template, which takes a while.
    ///
    /// # Errors
    /// When there is no such model, or it cannot be read.
    pub fn for_model(
        models: &Arc<Models>,
        name: Option<&str>,
    ) -> Result<Preprocessor, RequestError> {
        let model = models.find(name)?;
        let served = model
            .served()
            .map_err(|error| error.to_request_error(model.name()))?;
        Ok(Preprocessor {
            models: models.clone(),
            model: model.clone(),
            served,
            asked: name.map(str::to_owned),
        })
    }
    /// Factors of adapters that a request chooses, by its field `lora` or its name of the model.
    pub(super) fn adapters(
        &self,
        lora: Option<&[AdapterChoice]>,
    ) -> Result<AdapterScales, RequestError> {
        adapters::chosen(&self.model.adapters, self.asked.as_deref(), lora)
    }
    fn limits(&self) -> &Limits {
        &self.models.shared.limits
    }
    /// Checks a request, tokenises its prompts and compiles its grammar.
    ///
    /// # Errors
    /// The first parameter that is invalid or not supported.
    pub fn prepare(
        &self,
        origin: Origin,
        mut request: GenerateRequest,
    ) -> Result<(EngineRequest, Outputs), RequestError> {
        let served = &self.served;
        self.check_generates()?;
        let names = request.names;
        let choices = self.choices(request.choices, names.choices)?;
        let sampling = request.sampling.resolve(&served.sampling)?;
        let bias = request.sampling.bias(&served.tokenizer)?;
        let stop = stops(request.stop, &request.stop_tokens, names.stop)?;
        check_logprobs([request.logprobs, request.prompt_logprobs])?;
        let tools = ToolSet::new(
            &request.tools,
            &request.tool_choice,
            request.several_calls,
            names,
        )?;
        let is_conversation = matches!(request.input, Input::Conversation { .. });
        let reasoning = self.reasoning_limit(&mut request.input)?;
        let prompts = self.prompts(request.input, &tools, names)?;
        // A conversation has one prompt; requests of several prompts always begin open.
        let begins = prompts.first().map_or(Begins::Open, |prompt| prompt.begins);
        let count = choices * prompts.len();
        let limit = request.limit.map(saturated);
        if !request.stream {
            let logprobs = [request.logprobs, request.prompt_logprobs];
            let wanted = reply_size(&prompts, count, limit, logprobs);
            budget::check(&wanted, served, self.limits().answer, names.limit)?;
        }
        let form = request.form.as_ref();
        let constraint = tools
            .constraint(form, names)
            .map(|(constraint, field)| self.constraint(&constraint, begins, form, field));
        let conversation =
            is_conversation.then(|| Conversation::new(begins, &tools, request.several_calls));
        let options = SequenceOptions {
            adapters: self.adapters(request.sampling.lora.as_deref())?,
            ..request
                .sampling
                .sequence_options(self.models.shared.batch_invariant)
        };
        let params = GenerationParams {
            reasoning: is_conversation.then(|| self.reasoning_bound(reasoning, begins, &tools)),
            bias,
            constraint: constraint.transpose()?,
            choices,
            limit: limit.unwrap_or(usize::MAX),
            room: (!request.stream).then(|| budget::reply_limit(count, self.limits().answer)),
            stop,
            stop_tokens: request.stop_tokens,
            ignore_eos: request.ignore_eos,
            markers: is_conversation,
            logprobs: request.logprobs,
            token_ids: request.token_ids,
            prompt_logprobs: request.prompt_logprobs,
            stream: request.stream,
            sampling,
        };
        let replies = Replies {
            count,
            conversation,
        };
        let task = Task::Generate(Arc::new(params));
        Ok(self.engine_request(origin, task, prompts, options, replies))
    }
    /// Refuses to generate text by a text encoder.
    fn check_generates(&self) -> Result<(), RequestError> {
        if !self.served.pooling.is_of_encoder() {
            return Ok(());
        }
        let message = format!(
            "{} is a text encoder, which generates no text: send texts to /v1/embeddings",
            self.model.name()
        );
        Err(RequestError::parameter("model", message))
    }
    /// Maximum tokens of the reasoning of an input, and the message at its end; `None` is
    /// unlimited. With 0, reasoning is switched off where the template can.
    fn reasoning_limit(
        &self,
        input: &mut Input,
    ) -> Result<Option<(usize, Option<String>)>, RequestError> {
        let Input::Conversation { thinking, .. } = input else {
            return Ok(None);
        };
        let message = thinking.message.take();
        let bytes = message.as_ref().map_or(0, String::len);
        if bytes > MAX_REASONING_MESSAGE {
            let name = "reasoning_budget_message";
            let why = format!("{name} has {bytes} bytes, more than {MAX_REASONING_MESSAGE}");
            return Err(RequestError::parameter(name, why));
        }
        let tokens = match thinking.budget {
            Some(ReasoningLimit::Tokens(tokens)) => Some(tokens),
            Some(ReasoningLimit::Unlimited) => None,
            None => self.limits().reasoning,
        };
        if tokens == Some(0) {
            thinking.switch.get_or_insert(false);
        }
        let message = message.or_else(|| self.limits().reasoning_message.clone());
        Ok(tokens.map(|tokens| (tokens, message)))
    }
    /// Bounds the reasoning of a reply; without a limit its tokens are counted all the same.
    fn reasoning_bound(
        &self,
        limit: Option<(usize, Option<String>)>,
        begins: Begins,
        tools: &ToolSet,
    ) -> ReasoningBound {
        let Served {
            markup, tokenizer, ..
        } = &*self.served;
        let may_call = tools.schemas().is_some();
        let (tokens, closing) = match limit {
            Some((tokens, message)) => {
                let message = message.as_deref();
                let closing = closing_tokens(markup, tokenizer, tokens, message, may_call);
                (tokens, closing)
            }
            None => (usize::MAX, Vec::new()),
        };
        ReasoningBound {
            tokens,
            begun: begins == Begins::Reasoning,
            closing,
        }
    }
    /// Checks the number of choices of each prompt; `name` is its parameter.
    fn choices(&self, choices: u64, name: &str) -> Result<usize, RequestError> {
        Ok(whole(name, choices, 1, self.limits().choices as u64)? as usize)
    }
    /// Compiles the constraint of a request; `field` is the parameter that errors name.
    fn constraint(
        &self,
        constraint: &OutputConstraint,
        begins: Begins,
        form: Option<&(&'static str, OutputFormat)>,
        field: &str,
    ) -> Result<Constraint, RequestError> {
        let compiled = compile(&self.served, constraint, begins);
        let what = if form.is_none_or(|(_, form)| is_schema(form)) {
            "schema"
        } else {
            "grammar"
        };
        compiled.map_err(|why| {
            RequestError::parameter(field, format!("this {what} is not possible: {why}"))
        })
    }
    /// Creates a tokenised request and the outputs that its events become.
    pub(super) fn engine_request(
        &self,
        origin: Origin,
        task: Task,
        prompts: Vec<Prompt>,
        options: SequenceOptions,
        replies: Replies,
    ) -> (EngineRequest, Outputs) {
        let (events, receiver) = channel(self.limits().unread);
        let Origin { client, received } = origin;
        let request = EngineRequest {
            client,
            received,
            task,
            served: self.served.clone(),
            options,
            prompts: prompts.into_iter().map(|prompt| prompt.tokens).collect(),
            prefix: Vec::new(),
            answered: 0,
            usage: Usage::default(),
            stay: None,
            events: Arc::new(events),
        };
        let reply = |_| {
            let Conversation {
                begins,
                schemas,
                forced,
                ..
            } = replies.conversation.as_ref()?;
            Some(Reply::new(
                self.served.markup,
                *begins,
                schemas.clone(),
                *forced,
            ))
        };
        let several = replies
            .conversation
            .as_ref()
            .is_none_or(|conversation| conversation.several);
        (
            request,
            Outputs::new(receiver, (0..replies.count).map(reply).collect(), several),
        )
    }
    /// Renders and tokenises the prompts.
    ///
    /// # Errors
    /// When a prompt is invalid or does not fit into the context.
    pub fn prompts(
        &self,
        input: Input,
        tools: &ToolSet,
        names: &FieldNames,
    ) -> Result<Vec<Prompt>, RequestError> {
        match input {
            Input::Conversation { messages, thinking } => Ok(vec![prompt::chat(
                &self.served,
                messages,
                &tools.to_json(),
                thinking,
                names,
            )?]),
            Input::Prompts(texts) => self.texts(texts, names.input, MAX_PROMPTS),
        }
    }
    /// Tokenises 1 to `most` texts.
    fn texts(
        &self,
        texts: Vec<PromptText>,
        name: &str,
        most: usize,
    ) -> Result<Vec<Prompt>, RequestError> {
        if texts.is_empty() || texts.len() > most {
            let message = format!(
                "there are {} prompts; there must be 1 to {most}",
                texts.len()
            );
            return Err(RequestError::parameter(name, message));
        }
        let prompt = |text| match text {
            PromptText::Text(text) => prompt::text(&self.served, &text, name),
            PromptText::Tokens(tokens) => prompt::tokens(&self.served, tokens, name),
            PromptText::Mixed(pieces) => prompt::mixed(&self.served, &pieces, name),
        };
        texts.into_iter().map(prompt).collect()
    }
    /// Creates a request that only loads the model.
    pub fn prepare_load(&self, origin: Origin) -> (EngineRequest, Outputs) {
        self.engine_request(
            origin,
            Task::Load,
            Vec::new(),
            SequenceOptions::default(),
            Replies::default(),
        )
    }
    /// Queues a request.
    ///
    /// # Errors
    /// When the queue is full or closed, or the engine failed for good.
    pub fn submit(&self, mut request: EngineRequest) -> Result<(), RequestError> {
        if let Some(why) = self.models.shared.devices.failure() {
            return Err(RequestError::failed(why));
        }
        if self.models.is_draining() {
            return Err(RequestError::closing());
        }
        if let Some(step) = self.model.loading.step() {
            let _ = request.events.send(Event::Loading(step));
        }
        if self.model.replicas.len() > 1 {
            request.hash_prefix();
        }
        match self.model.queue.push(request) {
            Ok(()) => {
                self.model.metrics.requests.inc();
                self.models.request_load(&self.model);
                Ok(())
            }
            Err(QueueError::Full(waiting)) => {
                self.model.metrics.refused.inc();
                Err(RequestError::busy(waiting))
            }
            Err(QueueError::Closed) => Err(RequestError::closing()),
        }
    }
}

fn check_logprobs(tops: [Option<usize>; 2]) -> Result<(), RequestError> {
    for top in tops.into_iter().flatten() {
        whole("logprobs", top as u64, 0, MAX_TOP_LOGPROBS)?;
    }
    Ok(())
}

fn saturated(limit: u64) -> usize {
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Returns the size of a response of `choices` choices to the longest prompt.
fn reply_size(
    prompts: &[Prompt],
    choices: usize,
    limit: Option<usize>,
    [logprobs, prompt_logprobs]: [Option<usize>; 2],
) -> ReplySize {
    let lengths = prompts.iter().map(|prompt| prompt.tokens.len());
    ReplySize {
        prompt: lengths.max().unwrap_or(0),
        choices,
        limit,
        logprobs,
        prompt_logprobs,
    }
}

fn is_schema(form: &OutputFormat) -> bool {
    matches!(form, OutputFormat::Schema(_))
}

/// Checks what ends an answer; `name` is the parameter of the texts.
fn stops(texts: Vec<String>, tokens: &[u32], name: &str) -> Result<Vec<String>, RequestError> {
    if tokens.len() > MAX_STOP_TOKENS {
        let message = format!("stop_token_ids may have at most {MAX_STOP_TOKENS} tokens");
        return Err(RequestError::parameter("stop_token_ids", message));
    }
    let (many, long) = MAX_STOPS;
    if texts.len() > many || texts.iter().any(|text| text.len() > long) {
        let message = format!("{name} may have at most {many} texts of at most {long} bytes");
        return Err(RequestError::parameter(name, message));
    }
    Ok(texts)
}
