//! The way in: from a request to the queue of its model.

use crate::core::budget::{self, Wanted};
use crate::core::channel::{Receiver, channel};
use crate::core::constraint::bounds::refers;
use crate::core::constraint::grammar::{Form, OutputConstraint, grammar};
use crate::core::constraint::mask::Constraint;
use crate::core::error::RequestError;
use crate::core::event::{Event, Usage};
use crate::core::job::{Answers, Job, Task};
use crate::core::limits::{Limits, PROMPTS, STOPS, TOP};
use crate::core::model::Served;
use crate::core::models::entry::Model;
use crate::core::models::policy::Stay;
use crate::core::models::pool::Models;
use crate::core::names::FieldNames;
use crate::core::output::Outputs;
use crate::core::prompt::{self, Prompt};
use crate::core::queue::Refused;
use crate::core::request::{GenerateRequest, Input, PromptText};
use crate::core::sampling::whole;
use crate::core::tools::ToolSet;
use gristmill_llm::chat::reply::{Begins, Reply, Schemas};
use gristmill_llm::sched::SequenceOptions;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

/// The way in to one model.
pub struct Intake {
    models: Arc<Models>,
    /// The model.
    pub model: Arc<Model>,
    /// How it reads and writes.
    pub served: Arc<Served>,
}

/// A request, checked.
pub struct Prepared {
    task: Task,
    options: SequenceOptions,
    prompts: Vec<Vec<u32>>,
    replies: Replies,
    stay: Option<Stay>,
}

/// What takes the answers of a request apart.
struct Replies {
    served: Arc<Served>,
    /// In all.
    count: usize,
    /// Of a conversation; none where text is told as it is.
    conversation: Option<Conversation>,
}

struct Conversation {
    begins: Begins,
    schemas: Option<Schemas>,
    forced: bool,
    several: bool,
}

impl Prepared {
    /// The same, after which the model stays that long.
    pub fn staying(self, stay: Option<Stay>) -> Prepared {
        Prepared { stay, ..self }
    }
    /// How many prompts it has.
    pub fn prompts(&self) -> usize {
        self.prompts.len()
    }
}

impl Replies {
    fn of(self, events: Receiver) -> Outputs {
        let one = |_| {
            let Conversation { begins, schemas, forced, .. } = self.conversation.as_ref()?;
            Some(Reply::new(self.served.markup, *begins, schemas.clone(), *forced))
        };
        let several = self.conversation.as_ref().is_none_or(|conversation| conversation.several);
        Outputs::new(events, (0..self.count).map(one).collect(), several)
    }
}

impl Intake {
    /// That to the model which a client calls so. How it reads and writes is read where nobody has needed it, which takes a while.
    ///
    /// # Errors
    /// When there is no such model, or it cannot be read.
    pub fn of(models: &Arc<Models>, asked: Option<&str>) -> Result<Intake, RequestError> {
        let model = models.find(asked)?;
        let served = model.served().map_err(|error| error.told(model.name()))?;
        Ok(Intake { models: models.clone(), model: model.clone(), served })
    }
    fn limits(&self) -> &Limits {
        &self.models.shared.limits
    }
    /// Checks a request, and makes tokens of its prompts and a grammar of what it asks of an answer.
    ///
    /// # Errors
    /// The first thing that cannot be honoured.
    pub fn prepare(&self, request: GenerateRequest) -> Result<Prepared, RequestError> {
        let served = &self.served;
        let names = request.names;
        let choices = whole(names.choices, request.choices, 1, self.limits().choices as u64)? as usize;
        let sampling = request.sampling.resolve(&served.sampling)?;
        let bias = request.sampling.bias(served.tokenizer.n_tokens())?;
        let stop = stops(request.stop, names.stop)?;
        for top in [request.logprobs, request.prompt_logprobs].into_iter().flatten() {
            whole("logprobs", top as u64, 0, TOP)?;
        }
        let tools = ToolSet::new(&request.tools, &request.tool_choice, request.several_calls, names)?;
        let is_conversation = matches!(request.input, Input::Conversation { .. });
        let prompts = self.prompts(request.input, &tools, names)?;
        // A conversation has one prompt, and what has several begins with anything.
        let begins = prompts.first().map_or(Begins::Open, |prompt| prompt.begins);
        let count = choices * prompts.len();
        let limit = request.limit.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
        if !request.stream {
            let prompt = prompts.iter().map(|prompt| prompt.tokens.len()).max().unwrap_or(0);
            let (logprobs, prompt_logprobs) = (request.logprobs, request.prompt_logprobs);
            let wanted = Wanted { prompt, choices: count, limit, logprobs, prompt_logprobs };
            budget::check(&wanted, served, self.limits().answer, names.limit)?;
        }
        let constraint = tools.constraint(request.form.as_ref(), names).map(|(constraint, field)| {
            let compiled = self.compile(&constraint, begins);
            let what = if request.form.as_ref().is_none_or(|(_, form)| is_schema(form)) { "schema" } else { "grammar" };
            compiled.map_err(|why| RequestError::parameter(field, format!("this {what} is not possible: {why}")))
        });
        let conversation = is_conversation.then(|| Conversation {
            begins,
            schemas: tools.schemas(),
            forced: tools.is_forced(),
            several: request.several_calls,
        });
        let answers = Answers {
            bias,
            constraint: constraint.transpose()?,
            choices,
            limit: limit.unwrap_or(usize::MAX),
            room: (!request.stream).then(|| budget::room(count, self.limits().answer)),
            stop,
            ignore_eos: request.ignore_eos,
            markers: is_conversation,
            logprobs: request.logprobs,
            prompt_logprobs: request.prompt_logprobs,
            stream: request.stream,
            sampling,
        };
        Ok(Prepared {
            options: request.sampling.sequence_options(self.models.shared.batch_invariant),
            task: Task::Answers(Arc::new(answers)),
            prompts: prompts.into_iter().map(|prompt| prompt.tokens).collect(),
            replies: Replies { served: served.clone(), count, conversation },
            stay: None,
        })
    }
    /// Makes tokens of texts whose vectors are wanted.
    ///
    /// # Errors
    /// When there are none or too many, or one does not fit.
    pub fn prepare_embeddings(&self, texts: Vec<PromptText>, name: &str) -> Result<Prepared, RequestError> {
        let prompts = self.texts(texts, name)?.into_iter().map(|prompt| prompt.tokens).collect();
        let replies = Replies { served: self.served.clone(), count: 0, conversation: None };
        Ok(Prepared { task: Task::Embedding, options: SequenceOptions::default(), prompts, replies, stay: None })
    }
    /// The tokens of what an answer follows.
    ///
    /// # Errors
    /// When it makes no sense or does not fit.
    pub fn prompts(&self, input: Input, tools: &ToolSet, names: &FieldNames) -> Result<Vec<Prompt>, RequestError> {
        match input {
            Input::Conversation { messages, thinking } => {
                Ok(vec![prompt::chat(&self.served, messages, &tools.to_json(), thinking, names)?])
            }
            Input::Prompts(texts) => self.texts(texts, names.input),
        }
    }
    fn texts(&self, texts: Vec<PromptText>, name: &str) -> Result<Vec<Prompt>, RequestError> {
        if texts.is_empty() || texts.len() > PROMPTS {
            let message = format!("there are {} prompts; there must be 1 to {PROMPTS}", texts.len());
            return Err(RequestError::parameter(name, message));
        }
        let prompt = |text| match text {
            PromptText::Text(text) => prompt::text(&self.served, &text, name),
            PromptText::Tokens(tokens) => prompt::tokens(&self.served, tokens, name),
        };
        texts.into_iter().map(prompt).collect()
    }
    /// What an answer must be, compiled.
    fn compile(&self, constraint: &OutputConstraint, begins: Begins) -> Result<Constraint, String> {
        let served = &self.served;
        let compile = |constraint: &OutputConstraint, begins: Begins| {
            let grammar = grammar(constraint, served.markup, begins, &served.tokenizer)?;
            let thinking = (begins == Begins::Reasoning).then_some(served.markup.think[1]);
            served.grammars.compile(grammar, thinking)
        };
        let compiled = compile(constraint, begins)?;
        // Whether anything can follow is seen where a schema begins, and arguments begin in the middle of a call.
        for parameters in constraint.calls.iter().filter_map(|call| call.parameters).filter(|it| refers(it)) {
            let form = Form::Schema(parameters.clone());
            compile(&OutputConstraint { form: Some(&form), ..OutputConstraint::default() }, Begins::Answer)?;
        }
        Ok(compiled)
    }
    /// Has a request wait for its turn; what becomes of it.
    ///
    /// # Errors
    /// When there is no room for it, or no engine.
    pub fn submit(&self, client: IpAddr, asked: Instant, prepared: Prepared) -> Result<Outputs, RequestError> {
        if let Some(why) = self.models.shared.condition.failure() {
            return Err(RequestError::failed(why));
        }
        if self.models.is_draining() {
            return Err(RequestError::closing());
        }
        let Prepared { task, options, prompts, replies, stay } = prepared;
        let (events, receiver) = channel(self.limits().unread);
        let (served, answered, usage, events) = (self.served.clone(), 0, Usage::default(), Arc::new(events));
        let job = Job { client, asked, task, served, options, prompts, answered, usage, stay, events };
        if let Some(step) = self.model.loading.step() {
            let _ = job.events.send(Event::Loading(step));
        }
        match self.model.queue.push(job) {
            Ok(()) => {
                self.model.metrics.requests.inc();
                self.models.want(&self.model);
                Ok(replies.of(receiver))
            }
            Err(Refused::Full(waiting)) => {
                self.model.metrics.refused.inc();
                Err(RequestError::busy(waiting))
            }
            Err(Refused::Closed) => Err(RequestError::closing()),
        }
    }
    /// What has the model loaded, and does nothing with it.
    pub fn prepare_nothing(&self) -> Prepared {
        let replies = Replies { served: self.served.clone(), count: 0, conversation: None };
        Prepared { task: Task::Nothing, options: SequenceOptions::default(), prompts: Vec::new(), replies, stay: None }
    }
}

fn is_schema(form: &Form) -> bool {
    matches!(form, Form::Schema(_))
}

fn stops(texts: Vec<String>, name: &str) -> Result<Vec<String>, RequestError> {
    let (many, long) = STOPS;
    if texts.len() > many || texts.iter().any(|text| text.len() > long) {
        let message = format!("{name} may have at most {many} texts of at most {long} bytes");
        return Err(RequestError::parameter(name, message));
    }
    Ok(texts)
}
