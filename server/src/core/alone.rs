//! One answer at a time, for an engine whose cache is one sequence's: it takes a request, makes its answers, takes the next. A request of several prompts has a turn for
//! each.

use crate::core::answering::{Broken, LONG, Mean, flow, note};
use crate::core::condition::Condition;
use crate::core::error::RequestError;
use crate::core::event::{Chosen, Event, Usage};
use crate::core::generation::{Generation, failed};
use crate::core::job::{Answers, Job, Task};
use crate::core::models::entry::Model;
use crate::core::models::policy::Stay;
use crate::core::probabilities::probabilities;
use gristmill_llm::session::{Fed, Session};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What answers one by one.
pub struct Alone {
    /// The model and what its cache holds.
    pub session: Session,
    /// Who waits for it, and what was counted.
    pub model: Arc<Model>,
    /// Whether the engine can answer at all.
    pub condition: Condition,
}

impl Alone {
    /// Works until the queue is closed, the model is told to leave, or nobody has asked for as long as it stays: what was last said about that counts.
    pub fn run(mut self) {
        let mut stay = Stay::default();
        while let Some(mut job) = self.model.queue.next(stay) {
            stay = job.stay.unwrap_or(stay);
            if let Some(why) = self.condition.failure() {
                let _ = job.events.send(Event::Failed(RequestError::failed(why)));
                continue;
            }
            self.model.metrics.running.set(1);
            if job.answered == 0 {
                self.model.metrics.queue_time.observe(job.asked.elapsed().as_secs_f64());
            }
            // A fault of ours in one answer must not end all others.
            let outcome = catch_unwind(AssertUnwindSafe(|| self.answer(&job)));
            match outcome {
                Ok(Ok(usage)) => {
                    job.usage.add(&usage);
                    job.answered += 1;
                    self.model.metrics.kept_bytes.set(self.session.kept_bytes() as i64);
                    self.model.metrics.running.set(0);
                    if job.answered < job.prompts.len() {
                        self.model.queue.push_again(job);
                        continue;
                    }
                    note(&job);
                    let _ = job.events.send(Event::End(job.usage));
                }
                Ok(Err(Broken::Off)) => {
                    self.model.metrics.abandoned.inc();
                    let _ = job.events.send(Event::Failed(RequestError::closing()));
                }
                Ok(Err(Broken::Failed(error))) => {
                    self.model.metrics.failed.inc();
                    if error.is_lost() {
                        // Nothing that is asked of this engine will succeed again: `/health` says so from now on.
                        self.condition.fail(error.to_string());
                    }
                    let _ = job.events.send(Event::Failed(failed(error)));
                }
                Err(_) => {
                    self.model.metrics.failed.inc();
                    self.session.reset();
                    let _ = job
                        .events
                        .send(Event::Failed(RequestError::internal("the answer failed; the server's log says why")));
                }
            }
            self.model.metrics.request_time.observe(job.asked.elapsed().as_secs_f64());
            self.model.metrics.kept_bytes.set(self.session.kept_bytes() as i64);
            self.model.metrics.running.set(0);
        }
    }
    /// The next prompt of a job.
    fn answer(&mut self, job: &Job) -> Result<Usage, Broken> {
        match &job.task {
            Task::Answers(answers) => self.generate(job, answers),
            Task::Embedding => self.embed(job),
            Task::Nothing => Ok(Usage::default()),
        }
    }
    fn generate(&mut self, job: &Job, answers: &Arc<Answers>) -> Result<Usage, Broken> {
        let prompt = &job.prompts[job.answered];
        let fed = match answers.prompt_logprobs {
            Some(top) => self.score(job, answers, top)?,
            None => {
                let queue = &self.model.queue;
                self.session.feed_with(prompt, job.reuse, &mut |done, total| {
                    if done > 0 && total > LONG {
                        let _ = job.events.send(Event::Reading(done, total));
                    }
                    flow(job, queue)
                })?
            }
        };
        let mut usage = self.fed(prompt, &fed)?;
        let _ = job.events.send(Event::Prompt(usage));
        // Other answers begin where the first one did.
        let logits = if answers.choices > 1 { self.session.logits().to_vec() } else { Vec::new() };
        for nth in 0..answers.choices {
            if nth > 0 {
                self.session.rewind(prompt.len(), &logits);
            }
            self.generate_one(job, answers, nth, &mut usage)?;
        }
        Ok(usage)
    }
    /// What a prompt took.
    fn fed(&self, prompt: &[u32], fed: &Fed) -> Result<Usage, Broken> {
        self.model.metrics.prompt_tokens.inc_by(fed.run as u64);
        self.model.metrics.cached_tokens.inc_by(fed.reused as u64);
        match fed.complete {
            true => Ok(Usage { prompt: prompt.len(), cached: fed.reused, prompt_time: fed.time, ..Usage::default() }),
            false => Err(Broken::Off),
        }
    }
    /// Runs a prompt, and tells how probable its tokens were.
    fn score(&mut self, job: &Job, answers: &Answers, top: usize) -> Result<Fed, Broken> {
        let prompt = &job.prompts[job.answered];
        let queue = &self.model.queue;
        let first = Chosen { token: prompt[0], logprob: None, top: Vec::new() };
        let mut tokens = vec![first];
        let fed = self.session.score(prompt, &mut |at, logits| {
            tokens.push(probabilities(logits, prompt[at], top));
            flow(job, queue)
        })?;
        for nth in 0..answers.choices {
            let choice = job.answered * answers.choices + nth;
            let _ = job.events.send(Event::PromptLogprobs { choice, tokens: tokens.clone() });
        }
        Ok(fed)
    }
    fn generate_one(&mut self, job: &Job, answers: &Arc<Answers>, nth: usize, usage: &mut Usage) -> Result<(), Broken> {
        let Alone { session, model, .. } = self;
        let (queue, metrics) = (&model.queue, &model.metrics);
        let choice = job.answered * answers.choices + nth;
        let mut generation = Generation::new(job, answers, nth)?;
        let start = Instant::now();
        let mut first = Duration::ZERO;
        let ended = loop {
            if flow(job, queue).is_break() {
                break Err(Broken::Off);
            }
            let end = generation.step(session);
            if generation.tokens() == 1 && first.is_zero() {
                first = start.elapsed();
                // Whoever asked waits for the first answer's; those of the others come when it has long begun.
                if choice == 0 {
                    metrics.first_token_time.observe(job.asked.elapsed().as_secs_f64());
                }
            }
            match end {
                Ok(None) => {}
                Ok(Some(_)) => break Ok(()),
                Err(error) => break Err(Broken::Failed(error)),
            }
        };
        session.finish()?;
        let (tokens, time) = (generation.tokens(), start.elapsed());
        metrics.answer_tokens.inc_by(tokens as u64);
        if tokens > 1 {
            metrics.token_time.observe((time - first).as_secs_f64() / (tokens - 1) as f64);
        }
        usage.answer += tokens;
        usage.answer_time += time;
        ended
    }
    /// The mean of a prompt's hidden rows behind the last layer, each of length 1, and itself of length 1.
    fn embed(&mut self, job: &Job) -> Result<Usage, Broken> {
        let prompt = &job.prompts[job.answered];
        let (queue, width) = (&self.model.queue, self.session.engine().model().width());
        let mut mean = Mean::new(width);
        let fed = self.session.hidden(prompt, &mut |rows| {
            mean.add(rows);
            flow(job, queue)
        })?;
        let usage = self.fed(prompt, &fed)?;
        let values = mean.values();
        let _ = job.events.send(Event::Embedding { prompt: job.answered, values });
        Ok(usage)
    }
}
