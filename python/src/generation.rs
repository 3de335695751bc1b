//! Generation of one text on the model's thread.

use crate::error::{Failure, Result};
use crate::stream::Piece;
use gristmill_llm::chat::markup::Markup;
use gristmill_llm::chat::reply::{Begins, Reply, ReplyPart};
use gristmill_llm::generation::{Finish, Generation};
use gristmill_llm::sampling::{Sampler, SamplingParams, StopMatcher};
use gristmill_llm::sched::{Batcher, SequenceOptions, generate};
use gristmill_llm::tokenizer::{Decoder, TokenKind, Tokenizer};
use std::cell::RefCell;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::ops::ControlFlow;
use std::sync::mpsc::Sender;

/// Sampling parameters of a call; one that is None is the model file's.
#[derive(Default)]
pub struct Sampling {
    pub temperature: Option<f32>,
    pub top_k: Option<usize>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repeat_penalty: Option<f32>,
    pub seed: Option<u64>,
}

impl Sampling {
    /// Returns a sampler with these parameters over those of the model file.
    pub fn sampler(&self, base: &SamplingParams) -> Result<Sampler> {
        let any_seed = || RandomState::new().build_hasher().finish();
        let params = SamplingParams {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(base.repeat_penalty),
            seed: self.seed.unwrap_or_else(any_seed),
            ..base.clone()
        };
        params.validate().map_err(|error| {
            let hint = error.hint().unwrap_or_default();
            Failure::usage(&error, hint)
        })?;
        Ok(Sampler::new(params)?)
    }
}

/// Prompt and limits of a generation.
pub struct GenerateJob {
    pub prompt: Vec<u32>,
    pub sampler: Sampler,
    /// Maximum number of tokens.
    pub limit: usize,
    pub stop: Vec<String>,
    /// Markup of the reply, and its state after the prompt; None for plain text.
    pub markup: Option<(&'static Markup, Begins)>,
}

/// Generates a text, and sends its pieces while there is a receiver.
pub fn run(
    batcher: &mut Batcher,
    tokenizer: &Tokenizer,
    job: GenerateJob,
    pieces: &Sender<Result<Piece>>,
) -> Result<()> {
    let ends = |id| tokenizer.is_eog(id);
    let generation = Generation::new(job.sampler, job.limit, ends);
    let writer = RefCell::new(Writer::new(tokenizer, job.markup, job.stop, pieces));
    let finish = generate(
        batcher,
        &job.prompt,
        SequenceOptions::default(),
        generation,
        &mut |_, _| writer.borrow_mut().flow(),
        &mut |id| writer.borrow_mut().push(id),
    )?
    .finish;
    let writer = writer.into_inner();
    writer.finish(finish);
    Ok(())
}

/// Turns tokens into pieces.
struct Writer<'t> {
    tokenizer: &'t Tokenizer,
    /// Special tokens that are parts of the markup are text to `reply`.
    decoder: Decoder<'t>,
    markers: Vec<u32>,
    reply: Option<Reply>,
    stop: StopMatcher,
    pieces: &'t Sender<Result<Piece>>,
    left: bool,
}

impl<'t> Writer<'t> {
    fn new(
        tokenizer: &'t Tokenizer,
        markup: Option<(&'static Markup, Begins)>,
        stop: Vec<String>,
        pieces: &'t Sender<Result<Piece>>,
    ) -> Writer<'t> {
        let markers = markup.iter().flat_map(|(markup, _)| markup.markers());
        Writer {
            markers: markers
                .filter_map(|text| tokenizer.token_id(text))
                .collect(),
            decoder: Decoder::new(tokenizer).show_special(markup.is_some()),
            reply: markup.map(|(markup, begins)| Reply::new(markup, begins, None, false)),
            stop: StopMatcher::new(stop),
            tokenizer,
            pieces,
            left: false,
        }
    }
    fn flow(&self) -> ControlFlow<()> {
        match self.left || self.stop.stopped().is_some() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
    /// Decodes a token; its text may become certain only with a later one.
    fn push(&mut self, id: u32) -> ControlFlow<()> {
        let kind = self.tokenizer.token_kind(id);
        let is_text = matches!(kind, Some(TokenKind::Normal | TokenKind::UserDefined));
        if is_text || self.reply.is_none() || self.markers.contains(&id) {
            let text = self.decoder.push(id);
            self.parse(&text);
        } else {
            // Without text, to notice that the receiver is gone.
            self.send(Piece::Text(String::new()));
        }
        self.flow()
    }
    /// Sends the parts of a text.
    fn parse(&mut self, text: &str) {
        let parts = match &mut self.reply {
            Some(reply) => reply.push(text),
            None => vec![ReplyPart::Content(text.to_owned())],
        };
        self.send_parts(parts);
    }
    fn send_parts(&mut self, parts: Vec<ReplyPart>) {
        for part in parts {
            match part {
                ReplyPart::Reasoning(text) => self.send(Piece::Reasoning(text)),
                // Without tools, calls are content.
                ReplyPart::Content(text) | ReplyPart::Call(text) | ReplyPart::Arguments(text) => {
                    let text = self.stop.push(&text);
                    self.send(Piece::Text(text));
                }
            }
        }
    }
    fn send(&mut self, piece: Piece) {
        self.left |= self.pieces.send(Ok(piece)).is_err();
    }
    /// Sends the text that was held back, and the end.
    fn finish(mut self, finish: Finish) {
        let rest = self.decoder.finish();
        self.parse(&rest);
        let cut = finish != Finish::EndOfText;
        let parts = self.reply.as_mut().map(|reply| reply.finish(cut));
        self.send_parts(parts.unwrap_or_default());
        let rest = self.stop.finish();
        self.send(Piece::Text(rest));
        self.send(Piece::End(finish));
    }
}
