//! Output of a request as a stream of items, the input of an interface's encoder.

use crate::core::channel::Receiver;
use crate::core::error::RequestError;
use crate::core::event::{Chosen, Event, Finish, Usage};
use crate::core::loading::LoadStep;
use gristmill_llm::chat::reply::{Reply, ReplyPart};
use std::collections::VecDeque;
use std::time::Duration;

/// An item of the output stream.
#[derive(Debug)]
pub enum StreamItem {
    /// The number of queued requests before this one.
    Waiting(usize),
    /// The model is being loaded first.
    Loading(LoadStep),
    /// Prefill progress: tokens computed, and tokens to compute.
    Reading(usize, usize),
    /// The prompt of the following choices has been prefilled.
    Prompt(Usage),
    /// Index of a prompt, and its embedding or score.
    Pooled(usize, Vec<f32>),
    /// Index of a choice, and more of its output.
    Output(usize, OutputEvent),
    /// All items of one engine event have been sent.
    Together,
    /// The end of the request, with its usage.
    End(Usage),
    /// The request failed; no items follow.
    Failed(RequestError),
}

/// More output of a choice.
#[derive(Clone, PartialEq, Debug)]
pub enum OutputEvent {
    /// Tokens of the choice so far and their generation time; sent before their text.
    Progress(usize, Duration),
    /// The prompt's tokens with their log-probabilities.
    PromptLogprobs(Vec<Chosen>),
    /// The tokens of the text that follows, with their log-probabilities.
    Logprobs(Vec<Chosen>),
    /// Text of the reasoning.
    Reasoning(String),
    /// Text of the answer.
    Text(String),
    /// A call of the named tool begins.
    ToolCall(String),
    /// More of the arguments of the current call, as JSON text.
    ToolArguments(String),
    /// The end of the choice.
    Finished(Finish),
}

/// Count of a choice's reasoning tokens. Tokens without text yet belong to the text that follows.
#[derive(Clone, Copy, Default)]
struct ReasoningCount {
    /// Tokens that have been assigned, of either kind.
    assigned: usize,
    /// Tokens of the choice so far.
    so_far: usize,
    /// Tokens of the reasoning.
    reasoning: usize,
    /// The same, where the sequence counts them.
    counted: Option<usize>,
}

impl ReasoningCount {
    fn take(&mut self, so_far: usize, parts: &[ReplyPart]) {
        self.so_far = so_far.max(self.so_far);
        self.finish(parts);
    }
    fn total(&self) -> usize {
        self.counted.unwrap_or(self.reasoning)
    }
    /// Assigns the tokens so far by the parts that they became.
    fn finish(&mut self, parts: &[ReplyPart]) {
        let Some(first) = parts.first() else { return };
        if matches!(first, ReplyPart::Reasoning(_)) {
            self.reasoning += self.so_far - self.assigned;
        }
        self.assigned = self.so_far;
    }
}

/// Stream of a request's outputs, parsed from the engine's events.
pub struct Outputs {
    events: Receiver,
    /// Parser of each choice's text; `None` for text that is passed on as it is.
    replies: Vec<Option<Reply>>,
    /// Whether a choice may have several calls; otherwise calls after the first are dropped.
    several: bool,
    /// Number of calls of each choice.
    calls: Vec<usize>,
    /// Count of each choice's reasoning tokens.
    reasoning: Vec<ReasoningCount>,
    ready: VecDeque<StreamItem>,
}

impl Outputs {
    /// Outputs of a channel with a parser for each choice; unless `several`, each choice has at
    /// most one call.
    pub fn new(events: Receiver, replies: Vec<Option<Reply>>, several: bool) -> Outputs {
        let calls = vec![0; replies.len()];
        let reasoning = vec![ReasoningCount::default(); replies.len()];
        Outputs {
            events,
            replies,
            several,
            calls,
            reasoning,
            ready: VecDeque::new(),
        }
    }
    /// Returns the next item; `None` once the channel is closed.
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
            Event::Pooled { prompt, values } => {
                self.ready.push_back(StreamItem::Pooled(prompt, values))
            }
            Event::Prompt(usage) => self.ready.push_back(StreamItem::Prompt(usage)),
            Event::PromptLogprobs { choice, tokens } => {
                self.ready.push_back(StreamItem::Output(
                    choice,
                    OutputEvent::PromptLogprobs(tokens),
                ));
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
                self.reasoning[choice].counted = delta.reasoning;
                self.reasoning[choice].take(delta.so_far, &parts);
                parts
                    .into_iter()
                    .for_each(|part| self.push(choice, part.into()));
                self.ready.push_back(StreamItem::Together);
            }
            Event::Finish { choice, reason } => {
                let cut = reason == Finish::Length;
                let parts = self.replies[choice]
                    .as_mut()
                    .map(|reply| reply.finish(cut))
                    .unwrap_or_default();
                self.reasoning[choice].finish(&parts);
                parts
                    .into_iter()
                    .for_each(|part| self.push(choice, part.into()));
                self.push(choice, OutputEvent::Finished(reason));
                self.ready.push_back(StreamItem::Together);
            }
            Event::End(usage) => {
                let reasoning = self.reasoning.iter().map(ReasoningCount::total).sum();
                self.ready
                    .push_back(StreamItem::End(Usage { reasoning, ..usage }));
            }
            Event::Failed(error) => self.ready.push_back(StreamItem::Failed(error)),
        }
    }
    fn push(&mut self, choice: usize, event: OutputEvent) {
        let calls = &mut self.calls[choice];
        *calls += usize::from(matches!(event, OutputEvent::ToolCall(_)));
        let of_call = matches!(
            event,
            OutputEvent::ToolCall(_) | OutputEvent::ToolArguments(_)
        );
        if of_call && *calls > 1 && !self.several {
            return;
        }
        self.ready.push_back(StreamItem::Output(choice, event));
    }
    /// Collects all choices and the usage.
    ///
    /// # Errors
    /// When the request fails.
    pub async fn collect(mut self) -> Result<(Vec<FinishedReply>, Usage), RequestError> {
        let mut answers: Vec<FinishedReply> = self
            .replies
            .iter()
            .map(|_| FinishedReply::default())
            .collect();
        loop {
            match self.next().await {
                Some(StreamItem::Output(choice, event)) => answers[choice].take(event),
                Some(
                    StreamItem::Waiting(_)
                    | StreamItem::Loading(_)
                    | StreamItem::Reading(..)
                    | StreamItem::Prompt(_)
                    | StreamItem::Pooled(..)
                    | StreamItem::Together,
                ) => {}
                Some(StreamItem::End(usage)) => return Ok((answers, usage)),
                Some(StreamItem::Failed(error)) => return Err(error),
                None => return Err(RequestError::closing()),
            }
        }
    }
}

/// Collects the embeddings or scores of `prompts` prompts and the usage.
///
/// # Errors
/// When the request fails.
pub async fn pooled(
    mut outputs: Outputs,
    prompts: usize,
) -> Result<(Vec<Vec<f32>>, Usage), RequestError> {
    let mut vectors = vec![Vec::new(); prompts];
    loop {
        match outputs.next().await {
            Some(StreamItem::Pooled(prompt, values)) => vectors[prompt] = values,
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

/// A complete choice with all of its output.
#[derive(Clone, Debug, Default)]
pub struct FinishedReply {
    /// Text of the reasoning.
    pub reasoning: String,
    /// Text of the answer.
    pub text: String,
    /// Tool calls in order.
    pub calls: Vec<ToolCall>,
    /// The prompt's tokens, if their log-probabilities are requested.
    pub prompt: Vec<Chosen>,
    /// The generated tokens, if their log-probabilities are requested.
    pub tokens: Vec<Chosen>,
    /// Reason why the choice ended.
    pub finish: Option<Finish>,
}

/// Call of a tool.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ToolCall {
    /// Name of the tool.
    pub name: String,
    /// JSON text, incomplete if the answer was cut off.
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
            OutputEvent::ToolCall(name) => self.calls.push(ToolCall {
                name,
                arguments: String::new(),
            }),
            OutputEvent::ToolArguments(text) => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments += &text;
                }
            }
            OutputEvent::Finished(finish) => self.finish = Some(finish),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_count_as_reasoning_by_their_text() {
        let mut count = ReasoningCount::default();
        let reasoning = [ReplyPart::Reasoning("a".into())];
        let content = [ReplyPart::Content("b".into())];
        count.take(1, &[]);
        count.take(3, &reasoning);
        count.take(4, &[]);
        count.take(6, &content);
        count.take(7, &reasoning);
        count.take(8, &[]);
        count.finish(&reasoning);
        assert_eq!(count.reasoning, 5);
        count.finish(&content);
        assert_eq!(count.reasoning, 5);
    }
}
