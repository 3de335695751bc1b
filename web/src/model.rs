//! An open model and its present answer.

use crate::event::{Ask, PageEvent, PageFailure, Stats};
use crate::writer::AnswerWriter;
use gristmill_backend::Opened;
use gristmill_llm::arch;
use gristmill_llm::chat::reply::Begins;
use gristmill_llm::chat::{ChatTemplate, Isolation, Message, RenderOptions, TextSpan};
use gristmill_llm::engine::{Engine, Progress, Settings};
use gristmill_llm::file::ModelFile;
use gristmill_llm::generation::{Finish, Generation};
use gristmill_llm::language;
use gristmill_llm::sampling::{Sampler, SamplingParams};
use gristmill_llm::sched::{Batcher, SequenceId, SequenceOptions};
use gristmill_llm::tokenizer::Tokenizer;
use std::cell::RefCell;
use std::time::{Duration, SystemTime};

/// Longest first prompt that the kernels compiled before the first answer serve, tokens.
const FIRST_PROMPT: usize = 64;

/// Longest conversation without a model's own limit, tokens: its KV cache shares the page's memory.
const CONTEXT: usize = 4096;

/// A model on a device, with its tokenizer, chat template and present answer.
pub struct OpenModel {
    tokenizer: &'static Tokenizer,
    template: ChatTemplate,
    sampling: SamplingParams,
    batcher: Batcher,
    answer: Option<OngoingAnswer>,
}

/// An answer that is being made.
struct OngoingAnswer {
    id: SequenceId,
    generation: RefCell<Generation<'static>>,
    writer: AnswerWriter<'static>,
    prompt: usize,
    is_prefilled: bool,
    stats: Stats,
}

/// Returns the present time in seconds.
pub type Clock = fn() -> f64;

impl OpenModel {
    /// Opens a model on a device, and reports its progress as events.
    ///
    /// The tokenizer stays for ever: a worker opens one model.
    ///
    /// # Errors
    /// When the file is no model, is not supported, or does not fit into memory.
    pub fn open(
        file: &ModelFile,
        opened: Opened,
        tell: &dyn Fn(PageEvent),
    ) -> Result<OpenModel, PageFailure> {
        file.check_weights()?;
        let metadata = file.metadata();
        let described = arch::load(metadata, file)?;
        let tokenizer: &'static Tokenizer = Box::leak(Box::new(language::tokenizer(metadata)?));
        // The worker itself isolates the template from the page.
        let isolation = Isolation::InProcess;
        let (template, reason) = language::template(metadata, tokenizer, &isolation)?;
        let (sampling, ignored) = language::sampling(metadata);
        let device = opened.device.describe().join(", ");
        let settings = Settings {
            context: Some(described.context().min(CONTEXT)),
            first_prompt: Some(FIRST_PROMPT),
            ..Settings::default()
        };
        let engine = Engine::load(file, opened, settings, &|step| tell(progress(step)))?;
        let name = metadata.str("general.name").ok().flatten();
        tell(PageEvent::Ready {
            name: name.map_or_else(
                || file.architecture().unwrap_or("model").into(),
                str::to_owned,
            ),
            device,
            bytes: file.size(),
            context: engine.context(),
            warnings: tokenizer
                .warnings()
                .iter()
                .map(ToString::to_string)
                .chain(reason)
                .chain(ignored.iter().map(ToString::to_string))
                .collect(),
        });
        Ok(OpenModel {
            tokenizer,
            template,
            sampling,
            batcher: Batcher::new(engine),
            answer: None,
        })
    }
    /// Begins an answer; the one before it must have ended.
    ///
    /// # Errors
    /// When the conversation cannot be rendered, is too long, or a parameter is wrong.
    pub fn ask(&mut self, ask: &Ask) -> Result<(), PageFailure> {
        self.stop();
        let messages: Vec<Message> = ask.messages.iter().map(|m| m.message()).collect();
        let options = RenderOptions {
            add_generation_prompt: true,
            enable_thinking: ask.thinking,
            now: Some(SystemTime::UNIX_EPOCH + Duration::from_millis(ask.now)),
            ..RenderOptions::default()
        };
        let spans = self.template.render(&messages, &options)?;
        let markup = self.template.markup();
        let last = spans.iter().rev().find(|span| !span.text.trim().is_empty());
        let begins = match last {
            Some(span) if span.trusted && span.text.trim_end().ends_with(markup.think[0]) => {
                Begins::Reasoning
            }
            _ => Begins::Open,
        };
        let prompt = self.tokenizer.encode_spans(&TextSpan::pairs(&spans), true);
        let sampler = self.sampler(ask)?;
        let tokenizer = self.tokenizer;
        let limit = ask.limit.unwrap_or(usize::MAX);
        let generation = Generation::new(sampler, limit, move |id| tokenizer.is_eog(id));
        let id = self.batcher.add(&prompt, SequenceOptions::default())?;
        self.answer = Some(OngoingAnswer {
            id,
            generation: RefCell::new(generation),
            writer: AnswerWriter::new(tokenizer, markup, begins),
            prompt: prompt.len(),
            is_prefilled: false,
            stats: Stats::default(),
        });
        Ok(())
    }
    fn sampler(&self, ask: &Ask) -> Result<Sampler, PageFailure> {
        let params = SamplingParams {
            temperature: ask.temperature.unwrap_or(self.sampling.temperature),
            top_p: ask.top_p.unwrap_or(self.sampling.top_p),
            seed: ask.seed,
            ..self.sampling.clone()
        };
        let wrong = |error| PageFailure::new(error, "reset the settings");
        params.validate().map_err(wrong)?;
        Sampler::new(params).map_err(wrong)
    }
    /// Runs a step of the present answer; returns its events, and whether more steps follow.
    ///
    /// # Errors
    /// When the step fails; the answer has then ended.
    pub fn step(&mut self, clock: Clock) -> Result<(Vec<PageEvent>, bool), PageFailure> {
        let Some(mut answer) = self.answer.take() else {
            return Ok((vec![], false));
        };
        match answer.step(&mut self.batcher, clock) {
            Ok((mut events, None)) => {
                if let Some(limit) = self.context_reached(&answer) {
                    events.extend(self.end(answer, limit));
                    return Ok((events, false));
                }
                self.answer = Some(answer);
                Ok((events, true))
            }
            Ok((mut events, Some(finish))) => {
                events.extend(self.end(answer, finish));
                Ok((events, false))
            }
            Err(failure) => {
                self.batcher.discard(answer.id);
                Err(failure)
            }
        }
    }
    fn context_reached(&self, answer: &OngoingAnswer) -> Option<Finish> {
        let is_full = answer.is_prefilled && self.batcher.is_full(answer.id);
        is_full.then_some(Finish::ContextFull)
    }
    /// Ends an answer; its pages stay in the prefix cache.
    fn end(&mut self, answer: OngoingAnswer, finish: Finish) -> Vec<PageEvent> {
        self.batcher.remove(answer.id);
        let stats = Stats {
            tokens: answer.generation.borrow().tokens(),
            ..answer.stats
        };
        let mut events = answer.writer.finish(finish != Finish::EndOfText);
        events.push(PageEvent::End {
            why: finish.describe().to_owned(),
            stats,
        });
        events
    }
    /// Stops the present answer, if there is one; returns its last events.
    pub fn stop(&mut self) -> Vec<PageEvent> {
        match self.answer.take() {
            Some(answer) => self.end(answer, Finish::Stopped),
            None => vec![],
        }
    }
}

impl OngoingAnswer {
    fn step(
        &mut self,
        batcher: &mut Batcher,
        clock: Clock,
    ) -> Result<(Vec<PageEvent>, Option<Finish>), PageFailure> {
        let start = clock();
        let vocabulary = batcher.engine().model().vocabulary();
        let (id, generation) = (self.id, &self.generation);
        let mut asking = |sequence, history: &[u32]| {
            (sequence == id).then(|| generation.borrow_mut().row_params(history, vocabulary))?
        };
        let mut drawing = |sequence| (sequence == id).then(|| generation.borrow().sampling())?;
        let stepped = batcher.step_with(&mut asking, &mut drawing);
        let stepped = stepped.map_err(|failed| failed.error)?;
        let Some(&of) = stepped.iter().find(|of| of.sequence == id) else {
            self.stats.prefill += clock() - start;
            return Ok((vec![], None));
        };
        let reused = batcher.scheduler().reused_tokens(id).unwrap_or(0);
        let step = batcher.choose(of, &mut self.generation.borrow_mut(), &mut |_| ())?;
        if let (Some(token), None) = (step.token, step.finish) {
            batcher.push(id, token);
        }
        let seconds = clock() - start;
        if self.is_prefilled {
            self.stats.steps += 1;
            self.stats.seconds += seconds;
        } else {
            self.is_prefilled = true;
            self.stats.prompt = self.prompt - reused.min(self.prompt);
            self.stats.prefill += seconds;
        }
        let events = step.token.map(|token| self.writer.push(token));
        Ok((events.unwrap_or_default(), step.finish))
    }
}

fn progress(step: Progress) -> PageEvent {
    let (stage, done, total) = match step {
        Progress::Planning(done, total) => ("planning", done as u64, total as u64),
        Progress::Compiling(done, total) => ("compiling", done as u64, total as u64),
        Progress::Loading(done, total) => ("loading", done, total),
    };
    PageEvent::Progress { stage, done, total }
}
