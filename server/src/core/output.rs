//! What becomes of a request, told as it happens: what an interface's encoder is given.

use crate::core::channel::Receiver;
use crate::core::error::RequestError;
use crate::core::event::{Chosen, Event, Finish, Usage};
use crate::core::loading::LoadStep;
use gristmill_llm::chat::reply::{Reply, ReplyPart};
use std::collections::VecDeque;
use std::time::Duration;

/// One of it.
#[derive(Debug)]
pub enum StreamItem {
    /// The request waits behind so many others.
    Waiting(usize),
    /// The model is being loaded first.
    Loading(LoadStep),
    /// So many tokens of the prompt have been run, of how many.
    Reading(usize, usize),
    /// The prompt of the answers that follow has been run.
    Prompt(Usage),
    /// The vector of that prompt.
    Embedding(usize, Vec<f32>),
    /// Of that answer.
    Output(usize, OutputEvent),
    /// All that one telling brought: what belongs together has come.
    Together,
    /// The end of all.
    End(Usage),
    /// It cannot go on.
    Failed(RequestError),
}

/// More of an answer.
#[derive(Clone, PartialEq, Debug)]
pub enum OutputEvent {
    /// Tokens of the answer up to here, and the time they took: before what they made.
    Progress(usize, Duration),
    /// The prompt's tokens and how probable they were.
    PromptLogprobs(Vec<Chosen>),
    /// The tokens of what follows, and how probable they were.
    Logprobs(Vec<Chosen>),
    /// Reasoning.
    Reasoning(String),
    /// Text.
    Text(String),
    /// A call of that tool begins.
    ToolCall(String),
    /// More of the arguments of that call, JSON.
    ToolArguments(String),
    /// The end of the answer.
    Finished(Finish),
}

/// What comes, as events.
pub struct Outputs {
    events: Receiver,
    /// Of each answer, what takes it apart; none where text is told as it is.
    replies: Vec<Option<Reply>>,
    /// May an answer have several calls? What follows the first is left out otherwise.
    several: bool,
    /// Calls of each answer.
    calls: Vec<usize>,
    ready: VecDeque<StreamItem>,
}

impl Outputs {
    /// Of a channel, with what takes each answer apart; `several` calls of each are told, or one.
    pub fn new(events: Receiver, replies: Vec<Option<Reply>>, several: bool) -> Outputs {
        let calls = vec![0; replies.len()];
        Outputs { events, replies, several, calls, ready: VecDeque::new() }
    }
    /// The next event; none behind the last one.
    pub async fn next(&mut self) -> Option<StreamItem> {
        loop {
            if let Some(told) = self.ready.pop_front() {
                return Some(told);
            }
            let event = self.events.recv().await?;
            self.take(event);
        }
    }
    fn take(&mut self, event: Event) {
        match event {
            Event::Waiting(ahead) => self.ready.push_back(StreamItem::Waiting(ahead)),
            Event::Loading(step) => self.ready.push_back(StreamItem::Loading(step)),
            Event::Reading(done, total) => self.ready.push_back(StreamItem::Reading(done, total)),
            Event::Embedding { prompt, values } => self.ready.push_back(StreamItem::Embedding(prompt, values)),
            Event::Prompt(usage) => self.ready.push_back(StreamItem::Prompt(usage)),
            Event::PromptLogprobs { choice, tokens } => {
                self.ready.push_back(StreamItem::Output(choice, OutputEvent::PromptLogprobs(tokens)));
            }
            Event::Delta(delta) => {
                let choice = delta.choice;
                self.push(choice, OutputEvent::Progress(delta.so_far, delta.time));
                if !delta.tokens.is_empty() {
                    self.push(choice, OutputEvent::Logprobs(delta.tokens));
                }
                let parts = match &mut self.replies[choice] {
                    Some(reply) => reply.push(&delta.text),
                    None if delta.text.is_empty() => Vec::new(),
                    None => vec![ReplyPart::Content(delta.text)],
                };
                parts.into_iter().for_each(|part| self.push(choice, part.into()));
                self.ready.push_back(StreamItem::Together);
            }
            Event::Finish { choice, reason } => {
                let cut = reason == Finish::Length;
                let parts = self.replies[choice].as_mut().map(|reply| reply.finish(cut)).unwrap_or_default();
                parts.into_iter().for_each(|part| self.push(choice, part.into()));
                self.push(choice, OutputEvent::Finished(reason));
                self.ready.push_back(StreamItem::Together);
            }
            Event::End(usage) => self.ready.push_back(StreamItem::End(usage)),
            Event::Failed(error) => self.ready.push_back(StreamItem::Failed(error)),
        }
    }
    fn push(&mut self, choice: usize, event: OutputEvent) {
        let calls = &mut self.calls[choice];
        *calls += usize::from(matches!(event, OutputEvent::ToolCall(_)));
        let of_call = matches!(event, OutputEvent::ToolCall(_) | OutputEvent::ToolArguments(_));
        if of_call && *calls > 1 && !self.several {
            return;
        }
        self.ready.push_back(StreamItem::Output(choice, event));
    }
    /// Waits for all of it.
    ///
    /// # Errors
    /// When it fails.
    pub async fn collect(mut self) -> Result<(Vec<FinishedReply>, Usage), RequestError> {
        let mut answers: Vec<FinishedReply> = self.replies.iter().map(|_| FinishedReply::default()).collect();
        loop {
            match self.next().await {
                Some(StreamItem::Output(choice, event)) => answers[choice].take(event),
                Some(
                    StreamItem::Waiting(_)
                    | StreamItem::Loading(_)
                    | StreamItem::Reading(..)
                    | StreamItem::Prompt(_)
                    | StreamItem::Embedding(..)
                    | StreamItem::Together,
                ) => {}
                Some(StreamItem::End(usage)) => return Ok((answers, usage)),
                Some(StreamItem::Failed(error)) => return Err(error),
                None => return Err(RequestError::closing()),
            }
        }
    }
}

/// Waits for the vectors of so many prompts.
///
/// # Errors
/// When it fails.
pub async fn embeddings(mut outputs: Outputs, prompts: usize) -> Result<(Vec<Vec<f32>>, Usage), RequestError> {
    let mut vectors = vec![Vec::new(); prompts];
    loop {
        match outputs.next().await {
            Some(StreamItem::Embedding(prompt, values)) => vectors[prompt] = values,
            Some(StreamItem::End(usage)) => return Ok((vectors, usage)),
            Some(StreamItem::Failed(error)) => return Err(error),
            Some(_) => {}
            None => return Err(RequestError::closing()),
        }
    }
}

impl From<ReplyPart> for OutputEvent {
    fn from(part: ReplyPart) -> OutputEvent {
        match part {
            ReplyPart::Reasoning(text) => OutputEvent::Reasoning(text),
            ReplyPart::Content(text) => OutputEvent::Text(text),
            ReplyPart::Call(name) => OutputEvent::ToolCall(name),
            ReplyPart::Arguments(text) => OutputEvent::ToolArguments(text),
        }
    }
}

/// An answer, whole.
#[derive(Clone, Debug, Default)]
pub struct FinishedReply {
    /// What was thought.
    pub reasoning: String,
    /// What was said.
    pub text: String,
    /// What was called.
    pub calls: Vec<ToolCall>,
    /// The prompt's tokens, where their probabilities were asked for.
    pub prompt: Vec<Chosen>,
    /// Its own, likewise.
    pub tokens: Vec<Chosen>,
    /// Why it ended.
    pub finish: Option<Finish>,
}

/// A call of a tool.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ToolCall {
    /// The tool's name.
    pub name: String,
    /// JSON.
    pub arguments: String,
}

impl FinishedReply {
    fn take(&mut self, event: OutputEvent) {
        match event {
            OutputEvent::Progress(..) => {}
            OutputEvent::PromptLogprobs(tokens) => self.prompt.extend(tokens),
            OutputEvent::Logprobs(tokens) => self.tokens.extend(tokens),
            OutputEvent::Reasoning(text) => self.reasoning += &text,
            OutputEvent::Text(text) => self.text += &text,
            OutputEvent::ToolCall(name) => self.calls.push(ToolCall { name, arguments: String::new() }),
            OutputEvent::ToolArguments(text) => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments += &text;
                }
            }
            OutputEvent::Finished(finish) => self.finish = Some(finish),
        }
    }
}
