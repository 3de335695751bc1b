//! The response to a generation request: a task that turns the server's outputs into messages.

use crate::error::status;
use crate::messages::vllm::{
    GenerateComplete, GenerateResponse, GenerateResponsePart, GenerateStreamChunk, InputLogProbs,
    InputTokenLogProb, OutputLogProbs, TopLogProbs,
};
use gristmill_server::worker::{
    Chosen, Finish, OutputEvent, Outputs, RequestError, StreamItem, Usage,
};
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::oneshot;
use tonic::Status;

/// Messages of a response that the client has not read yet. The server bounds further outputs by
/// their bytes.
const MAX_UNREAD: usize = 4;

/// Message of a response, or the status that ends it.
type Message = Result<GenerateResponse, Status>;

/// How a response is sent.
#[derive(Clone, Copy, Debug)]
pub struct Delivery {
    /// Whether tokens are sent as they are generated.
    pub stream: bool,
    /// Whether log-probabilities of the tokens are sent.
    pub logprobs: bool,
    /// Maximum time that the client may stop reading.
    pub write_time: Duration,
}

/// An output of the request.
#[derive(Clone, Default)]
struct Output {
    tokens: Vec<u32>,
    /// Tokens that were not sent in a chunk, with their log-probabilities.
    unsent: Vec<Chosen>,
    /// Tokens of the prompt, until they are sent.
    prompt: Vec<Chosen>,
    is_finished: bool,
}

struct Response {
    delivery: Delivery,
    outputs: Vec<Output>,
    usage: Usage,
    messages: Sender<Message>,
}

/// Sends the outputs to the returned channel until they end, `aborted` is used, or the client is
/// gone or does not read. The request is then cancelled.
pub fn respond<G: Send + 'static>(
    outputs: Outputs,
    delivery: Delivery,
    aborted: oneshot::Receiver<()>,
    guard: G,
) -> Receiver<Message> {
    let (messages, receiver) = channel(MAX_UNREAD);
    let response = Response {
        delivery,
        outputs: Vec::new(),
        usage: Usage::default(),
        messages,
    };
    tokio::spawn(async move {
        let _guard = guard;
        // The client is gone or reads too slowly: there is no channel for an error.
        let _ = response.run(outputs, aborted).await;
    });
    receiver
}

/// The client is gone or does not read.
struct Gone;

impl Response {
    async fn run(mut self, outputs: Outputs, aborted: oneshot::Receiver<()>) -> Result<(), Gone> {
        let closed = self.messages.clone();
        let forwarded = self.forward(outputs);
        tokio::select! {
            forwarded = forwarded => return forwarded,
            () = closed.closed() => return Err(Gone),
            () = used(aborted) => {}
        }
        self.abort().await
    }
    /// Sends the outputs until they end.
    async fn forward(&mut self, mut outputs: Outputs) -> Result<(), Gone> {
        loop {
            match outputs.next().await {
                Some(StreamItem::Output(index, event)) => self.take(index, event).await?,
                Some(StreamItem::Prompt(usage)) => self.usage = usage,
                Some(StreamItem::Together) => self.flush().await?,
                Some(StreamItem::End(_)) => return Ok(()),
                Some(StreamItem::Failed(error)) => return self.send(Err(status(&error))).await,
                Some(_) => {}
                None => return self.send(Err(status(&RequestError::closing()))).await,
            }
        }
    }
    async fn take(&mut self, index: usize, event: OutputEvent) -> Result<(), Gone> {
        if index >= self.outputs.len() {
            self.outputs.resize_with(index + 1, Output::default);
        }
        let output = &mut self.outputs[index];
        match event {
            OutputEvent::Logprobs(tokens) => {
                output
                    .tokens
                    .extend(tokens.iter().map(|chosen| chosen.token));
                output.unsent.extend(tokens);
            }
            OutputEvent::PromptLogprobs(tokens) => output.prompt = tokens,
            OutputEvent::Finished(reason) => {
                self.flush().await?;
                return self.finish(index, Some(&reason)).await;
            }
            // The client has the tokens of the text.
            _ => {}
        }
        Ok(())
    }
    /// Sends the new tokens of all outputs.
    async fn flush(&mut self) -> Result<(), Gone> {
        if !self.delivery.stream {
            return Ok(());
        }
        for index in 0..self.outputs.len() {
            let output = &mut self.outputs[index];
            if output.unsent.is_empty() {
                continue;
            }
            let unsent = std::mem::take(&mut output.unsent);
            let prompt = std::mem::take(&mut output.prompt);
            let chunk = GenerateStreamChunk {
                token_ids: unsent.iter().map(|chosen| chosen.token).collect(),
                prompt_tokens: count(self.usage.prompt),
                completion_tokens: count(unsent.len()),
                cached_tokens: count(self.usage.cached),
                output_logprobs: self.delivery.logprobs.then(|| of_output(&unsent)),
                input_logprobs: of_prompt(&prompt),
                index: count(index),
            };
            self.send_part(GenerateResponsePart::Chunk(chunk)).await?;
        }
        Ok(())
    }
    /// Sends the end of an output; without a reason, it was aborted.
    async fn finish(&mut self, index: usize, reason: Option<&Finish>) -> Result<(), Gone> {
        let output = &mut self.outputs[index];
        output.is_finished = true;
        let (unsent, prompt) = (
            std::mem::take(&mut output.unsent),
            std::mem::take(&mut output.prompt),
        );
        let (finish_reason, matched_stop_str) = match reason {
            Some(Finish::Stop) => ("stop", None),
            Some(Finish::StopText(text)) => ("stop", Some(text.clone())),
            Some(Finish::Length) => ("length", None),
            None => ("abort", None),
        };
        let complete = GenerateComplete {
            completion_tokens: count(output.tokens.len()),
            output_ids: std::mem::take(&mut output.tokens),
            finish_reason: finish_reason.into(),
            prompt_tokens: count(self.usage.prompt),
            cached_tokens: count(self.usage.cached),
            output_logprobs: (self.delivery.logprobs && !self.delivery.stream)
                .then(|| of_output(&unsent)),
            input_logprobs: of_prompt(&prompt),
            index: count(index),
            matched_stop_str,
        };
        self.send_part(GenerateResponsePart::Complete(complete))
            .await
    }
    /// Ends the outputs that are not finished.
    async fn abort(&mut self) -> Result<(), Gone> {
        if self.outputs.is_empty() {
            self.outputs.push(Output::default());
        }
        for index in 0..self.outputs.len() {
            if !self.outputs[index].is_finished {
                self.finish(index, None).await?;
            }
        }
        Ok(())
    }
    async fn send_part(&self, part: GenerateResponsePart) -> Result<(), Gone> {
        let response = Some(part);
        self.send(Ok(GenerateResponse { response })).await
    }
    async fn send(&self, message: Message) -> Result<(), Gone> {
        let sent = tokio::time::timeout(self.delivery.write_time, self.messages.send(message));
        sent.await.map_err(|_| Gone)?.map_err(|_| Gone)
    }
}

/// Completes when the sender is used, not when it is dropped.
async fn used(receiver: oneshot::Receiver<()>) {
    if receiver.await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Converts a number of tokens.
fn count(tokens: usize) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}

fn top(chosen: &Chosen) -> TopLogProbs {
    let (token_ids, values) = chosen.top.iter().copied().unzip();
    TopLogProbs { values, token_ids }
}

fn of_output(tokens: &[Chosen]) -> OutputLogProbs {
    let logprob = |chosen: &Chosen| chosen.logprob.unwrap_or_default();
    OutputLogProbs {
        token_logprobs: tokens.iter().map(logprob).collect(),
        token_ids: tokens.iter().map(|chosen| chosen.token).collect(),
        top_logprobs: tokens.iter().map(top).collect(),
    }
}

fn of_prompt(tokens: &[Chosen]) -> Option<InputLogProbs> {
    let value = |chosen: &Chosen| InputTokenLogProb {
        value: chosen.logprob,
    };
    (!tokens.is_empty()).then(|| InputLogProbs {
        token_logprobs: tokens.iter().map(value).collect(),
        token_ids: tokens.iter().map(|chosen| chosen.token).collect(),
        top_logprobs: tokens.iter().map(top).collect(),
    })
}
