//! Many answers at a time: each step of the model has a token of every answer that is under way, and a piece of one prompt.
//!
//! A request is taken from the queue, in whose order clients take turns, as soon as a sequence has room; its other answers begin when its prompt has been run, whose pages they
//! share. A request of several prompts waits for another turn after each. Between two steps those go whom nobody waits for.

use crate::core::answering::{Broken, LONG, Mean, flow, note};
use crate::core::condition::Condition;
use crate::core::error::RequestError;
use crate::core::event::{Chosen, Event, Usage};
use crate::core::generation::{Generation, failed, failed_step};
use crate::core::job::{Answers, Job, Task};
use crate::core::models::entry::{LoadError, Model};
use crate::core::models::policy::Stay;
use crate::core::probabilities::probabilities;
use gristmill_llm::arch::Logits;
use gristmill_llm::engine::Engine;
use gristmill_llm::generation::Given;
use gristmill_llm::sched::{Batcher, Failed, SequenceId, Stepped, Steps};
use gristmill_llm::session::{self, rows_at_a_time};
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// What answers many at a time.
pub struct Together {
    batcher: Batcher,
    model: Arc<Model>,
    condition: Condition,
    ongoing: Vec<Ongoing>,
    /// How long the model stays when nobody asks.
    stay: Stay,
    /// How often a sequence had given its pages up when that was last told.
    preempted: u64,
    /// Steps, when they were last told.
    steps: Steps,
}

/// A request, and the answers to one of its prompts.
struct Ongoing {
    job: Job,
    answers: Arc<Answers>,
    /// What this prompt and its answers took.
    usage: Usage,
    begun: Instant,
    /// Has the prompt been run?
    read: bool,
    /// Tokens of it that were told to have been run.
    told: usize,
    under_way: Vec<UnderWay>,
}

/// Runs the piece of a prompt that begins at a position.
type RunPiece<'r> = dyn FnMut(&mut Engine, &[u32], usize) -> Result<(), session::Error> + 'r;

/// What has begun of a request.
enum Begun {
    /// The first of these answers.
    Answers(Arc<Answers>, Box<UnderWay>),
    /// All there is to do, which took that.
    Done(Usage),
}

/// An answer that is being made.
struct UnderWay {
    sequence: SequenceId,
    generation: Generation,
    nth: usize,
    /// When it had its first token.
    first: Option<Instant>,
}

impl Together {
    /// Creates the worker of a loaded engine; at most `keep` bytes of host memory hold pages that leave its KV cache.
    ///
    /// # Errors
    /// When the engine's KV cache has no pages.
    pub fn for_engine(
        engine: Engine,
        keep: usize,
        model: Arc<Model>,
        condition: Condition,
    ) -> Result<Together, LoadError> {
        let Ok(batcher) = Batcher::new(engine) else {
            return Err(LoadError { message: "its KV cache has no pages".into(), ..LoadError::default() });
        };
        // Pages of several sequences hold other conversations too; those of one sequence hold one context.
        let engine = batcher.engine();
        let swaps = !engine.cache_is_the_hosts() || engine.most_sequences() == 1;
        let batcher = if swaps { batcher.keeping(keep) } else { batcher };
        let (sequences, pages) = (batcher.engine().most_sequences(), batcher.load().total_pages);
        tracing::info!(model = model.name(), sequences, pages, "serves with continuous batching");
        Ok(Together::new(batcher, model, condition))
    }
    /// With a model that nobody has asked yet.
    fn new(batcher: Batcher, model: Arc<Model>, condition: Condition) -> Together {
        Together {
            batcher,
            model,
            condition,
            ongoing: Vec::new(),
            stay: Stay::default(),
            preempted: 0,
            steps: Steps::default(),
        }
    }
    /// Works until the queue is closed, the model is told to leave, or nobody has asked for as long as it stays: what was last said about that counts.
    pub fn run(mut self) {
        loop {
            self.measure();
            if self.ongoing.is_empty() {
                let Some(job) = self.model.queue.next(self.stay) else { return };
                self.begin(job);
            }
            while self.batcher.scheduler().has_room()
                && let Some(job) = self.model.queue.next_now()
            {
                self.begin(job);
            }
            self.break_off();
            if !self.ongoing.is_empty() {
                self.step();
            }
        }
    }
    /// Tells whoever watches.
    fn measure(&mut self) {
        let (load, metrics) = (self.batcher.load(), &self.model.metrics);
        metrics.running.set(self.ongoing.len() as i64);
        metrics.kept_bytes.set(self.batcher.kept_bytes() as i64);
        metrics.pages.set(load.pages as i64);
        metrics.pages_total.set(load.total_pages as i64);
        load.leaked.into_iter().for_each(|pages| _ = metrics.pages_leaked.set(pages as i64));
        metrics.slots.set(self.batcher.engine().most_sequences() as i64);
        // A fault begins the scheduler's count anew.
        metrics.preempted.inc_by(load.preempted.checked_sub(self.preempted).unwrap_or(load.preempted));
        self.preempted = load.preempted;
        let (steps, before) = (self.batcher.steps(), std::mem::replace(&mut self.steps, self.batcher.steps()));
        metrics.pages_away.set(load.away_pages as i64);
        if self.batcher.engine().cache_is_the_hosts() {
            let bytes = load.away_pages * self.batcher.engine().page_bytes();
            self.model.swapped_bytes.fetch_max(bytes as u64, Ordering::Relaxed);
        }
        metrics.brought_back.inc_by(steps.brought_back - before.brought_back);
        let counted = [steps.all - before.all, steps.mixed - before.mixed, steps.ahead - before.ahead];
        metrics.steps.iter().zip(counted).for_each(|(counter, n)| _ = counter.inc_by(n));
    }
    /// Takes a request in.
    fn begin(&mut self, job: Job) {
        self.stay = job.stay.unwrap_or(self.stay);
        if let Some(why) = self.condition.failure() {
            let _ = job.events.send(Event::Failed(RequestError::failed(why)));
            return;
        }
        self.model.metrics.running.set(self.ongoing.len() as i64 + 1);
        if job.answered == 0 {
            self.model.metrics.queue_time.observe(job.asked.elapsed().as_secs_f64());
        }
        // A fault of ours in one answer must not end all others.
        let begun = catch_unwind(AssertUnwindSafe(|| self.first(&job)));
        match begun {
            Ok(Ok(Begun::Answers(answers, first))) => self.ongoing.push(Ongoing {
                usage: Usage { prompt: job.prompts[job.answered].len(), ..Usage::default() },
                job,
                answers,
                begun: Instant::now(),
                read: false,
                told: 0,
                under_way: vec![*first],
            }),
            Ok(Ok(Begun::Done(usage))) => {
                let mut job = job;
                job.usage.add(&usage);
                self.ended(job);
            }
            Ok(Err(broken)) => self.broken(job, broken),
            Err(_) => self.fault(job),
        }
    }
    /// What is done at once for the next prompt of a job, and the first of its answers.
    fn first(&mut self, job: &Job) -> Result<Begun, Broken> {
        match &job.task {
            Task::Answers(answers) => {
                if let Some(top) = answers.prompt_logprobs {
                    let usage = self.score(job, answers, top)?;
                    // Of a prompt that is scored alone nothing else is asked.
                    if answers.limit == 0 {
                        return self.no_answers(job, answers, usage);
                    }
                }
                Ok(Begun::Answers(answers.clone(), Box::new(self.answer(job, answers, 0)?)))
            }
            Task::Embedding => self.embed(job).map(Begun::Done),
            Task::Nothing => Ok(Begun::Done(Usage::default())),
        }
    }
    /// Tells the ends of answers of no tokens.
    fn no_answers(&self, job: &Job, answers: &Arc<Answers>, usage: Usage) -> Result<Begun, Broken> {
        let _ = job.events.send(Event::Prompt(usage));
        for nth in 0..answers.choices {
            Generation::new(job, answers, nth)?.take(Given::Logits(&[]), &[], usize::MAX)?;
        }
        Ok(Begun::Done(usage))
    }
    /// The answer of that number to the next prompt begins.
    fn answer(&mut self, job: &Job, answers: &Arc<Answers>, nth: usize) -> Result<UnderWay, Broken> {
        let generation = Generation::new(job, answers, nth)?;
        let sequence = self.batcher.add(&job.prompts[job.answered], job.options)?;
        Ok(UnderWay { sequence, generation, nth, first: None })
    }
    /// Ends those that nobody waits for.
    fn break_off(&mut self) {
        let queue = &self.model.queue;
        let gone = |ongoing: &mut Ongoing| flow(&ongoing.job, queue).is_break();
        let gone: Vec<Ongoing> = self.ongoing.extract_if(.., gone).collect();
        gone.into_iter().for_each(|ongoing| self.end_early(ongoing, Broken::Off));
    }
    /// A request comes to no end of its own.
    fn end_early(&mut self, ongoing: Ongoing, why: Broken) {
        for answer in &ongoing.under_way {
            self.batcher.remove(answer.sequence);
        }
        self.count(&ongoing);
        self.broken(ongoing.job, why);
    }
    /// Counts the tokens of answers that were under way.
    fn count(&self, ongoing: &Ongoing) {
        ongoing.under_way.iter().for_each(|answer| self.count_answer(answer));
    }
    fn count_answer(&self, answer: &UnderWay) {
        let (tokens, metrics) = (answer.generation.tokens(), &self.model.metrics);
        metrics.answer_tokens.inc_by(tokens as u64);
        if let Some(first) = answer.first.filter(|_| tokens > 1) {
            metrics.token_time.observe(first.elapsed().as_secs_f64() / (tokens - 1) as f64);
        }
    }
    fn broken(&mut self, job: Job, why: Broken) {
        let error = match why {
            Broken::Off => {
                self.model.metrics.abandoned.inc();
                RequestError::closing()
            }
            Broken::Failed(error) => {
                self.model.metrics.failed.inc();
                if error.is_lost() {
                    // Nothing that is asked of this engine will succeed again: `/health` says so from now on.
                    self.condition.fail(error.to_string());
                }
                failed(error)
            }
        };
        self.model.metrics.request_time.observe(job.asked.elapsed().as_secs_f64());
        let _ = job.events.send(Event::Failed(error));
    }
    fn fault(&mut self, job: Job) {
        self.model.metrics.failed.inc();
        self.model.metrics.request_time.observe(job.asked.elapsed().as_secs_f64());
        let _ = job.events.send(Event::Failed(RequestError::internal("the answer failed; the server's log says why")));
    }
    /// A prompt of a job is answered: it waits for its next turn, or ends.
    fn ended(&mut self, mut job: Job) {
        job.answered += 1;
        if job.answered < job.prompts.len() {
            self.model.queue.push_again(job);
            return;
        }
        note(&job);
        self.measure();
        let _ = job.events.send(Event::End(job.usage));
        self.model.metrics.request_time.observe(job.asked.elapsed().as_secs_f64());
    }
    /// Runs a step, and has everyone whose turn it is choose a token.
    fn step(&mut self) {
        // A piece of a prompt takes so long that what is held back would come late.
        if self.ongoing.iter().any(|ongoing| !ongoing.read) {
            let answers = self.ongoing.iter_mut().flat_map(|ongoing| &mut ongoing.under_way);
            answers.for_each(|answer| answer.generation.tell_all());
        }
        let Together { batcher, ongoing, .. } = self;
        let vocabulary = batcher.engine().model().vocabulary();
        let ongoing = RefCell::new(ongoing);
        let mut asking = |sequence, history: &[u32]| {
            let mut ongoing = ongoing.borrow_mut();
            let all = ongoing.iter_mut().flat_map(|ongoing| &mut ongoing.under_way);
            let answer = all.into_iter().find(|answer| answer.sequence == sequence)?;
            // A fault of one is met again where its token is chosen.
            catch_unwind(AssertUnwindSafe(|| answer.generation.ask(history, vocabulary))).ok().flatten()
        };
        let mut drawing = |sequence| {
            let ongoing = ongoing.borrow();
            let all = ongoing.iter().flat_map(|ongoing| &ongoing.under_way);
            all.into_iter().find(|answer| answer.sequence == sequence)?.generation.draws()
        };
        let stepped = catch_unwind(AssertUnwindSafe(|| batcher.step_with(&mut asking, &mut drawing)));
        match stepped {
            Ok(Ok(stepped)) => {
                self.tell_progress();
                stepped.into_iter().for_each(|of| self.choose(of));
            }
            Ok(Err(Failed { error, sequences })) => self.step_failed(error, &sequences),
            Err(_) => {
                self.batcher.reset();
                for ongoing in std::mem::take(&mut self.ongoing) {
                    self.count(&ongoing);
                    self.fault(ongoing.job);
                }
            }
        }
    }
    /// Those whose sequences ended with a step end, each with the same reason.
    fn step_failed(&mut self, error: session::Error, sequences: &[SequenceId]) {
        let told = failed_step(&error);
        if error.is_lost() {
            self.condition.fail(error.to_string());
        }
        let hit = |o: &mut Ongoing| o.under_way.iter().any(|answer| sequences.contains(&answer.sequence));
        for ongoing in self.ongoing.extract_if(.., hit).collect::<Vec<_>>() {
            ongoing.under_way.iter().for_each(|answer| self.batcher.remove(answer.sequence));
            self.count(&ongoing);
            self.model.metrics.failed.inc();
            self.model.metrics.request_time.observe(ongoing.job.asked.elapsed().as_secs_f64());
            let _ = ongoing.job.events.send(Event::Failed(told.clone()));
        }
    }
    /// Tells those whose prompts are long how far they are.
    fn tell_progress(&mut self) {
        for ongoing in self.ongoing.iter_mut().filter(|ongoing| !ongoing.read) {
            let Some(first) = ongoing.under_way.first() else { continue };
            let scheduler = self.batcher.scheduler();
            let found = scheduler.found(first.sequence).unwrap_or(0);
            let (done, total) = (
                scheduler.computed(first.sequence).saturating_sub(found),
                ongoing.job.prompts[ongoing.job.answered].len() - found,
            );
            if done > ongoing.told && done < total && total > LONG {
                ongoing.told = done;
                let _ = ongoing.job.events.send(Event::Reading(done, total));
            }
        }
    }
    /// A sequence's next token.
    fn choose(&mut self, of: Stepped) {
        let its = |o: &Ongoing| o.under_way.iter().position(|answer| answer.sequence == of.sequence);
        let Some((at, nth)) = self.ongoing.iter().enumerate().find_map(|(at, o)| Some((at, its(o)?))) else { return };
        if !self.ongoing[at].read
            && let Err(broken) = self.read(at)
        {
            let ongoing = self.ongoing.swap_remove(at);
            return self.end_early(ongoing, broken);
        }
        let chosen = catch_unwind(AssertUnwindSafe(|| self.take(of, at, nth)));
        match chosen {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => self.answered(at, nth),
            Ok(Err(error)) => {
                self.batcher.spoil(of.sequence);
                let ongoing = self.ongoing.swap_remove(at);
                self.end_early(ongoing, Broken::Failed(error));
            }
            Err(_) => {
                let ongoing = self.ongoing.swap_remove(at);
                ongoing.under_way.iter().for_each(|answer| self.batcher.spoil(answer.sequence));
                self.count(&ongoing);
                self.fault(ongoing.job);
            }
        }
    }
    /// A prompt has been run: that is told, and its other answers begin.
    fn read(&mut self, at: usize) -> Result<(), Broken> {
        let Ongoing { job, answers, usage, begun, under_way, read, .. } = &mut self.ongoing[at];
        *read = true;
        let found = self.batcher.scheduler().found(under_way[0].sequence).unwrap_or(0);
        // One that was scored has been run whole.
        let cached = if answers.prompt_logprobs.is_some() { 0 } else { found };
        usage.cached = cached;
        usage.prompt_time = begun.elapsed();
        let metrics = &self.model.metrics;
        metrics.prompt_tokens.inc_by((usage.prompt - cached) as u64);
        metrics.cached_tokens.inc_by(cached as u64);
        let _ = job.events.send(Event::Prompt(*usage));
        *begun = Instant::now();
        for nth in 1..answers.choices {
            let generation = Generation::new(job, answers, nth)?;
            let sequence = self.batcher.add(&job.prompts[job.answered], job.options)?;
            under_way.push(UnderWay { sequence, generation, nth, first: None });
        }
        Ok(())
    }
    /// Chooses the next token of an answer. Does the answer go on?
    fn take(&mut self, of: Stepped, at: usize, nth: usize) -> Result<bool, session::Error> {
        let ongoing = &mut self.ongoing[at];
        let answer = &mut ongoing.under_way[nth];
        let context = self.batcher.engine().context();
        let history = self.batcher.scheduler().tokens(of.sequence).to_vec();
        let token = match (self.batcher.drawn(of), self.batcher.ranked(of)) {
            (Some(token), _) => Some(token),
            (None, Some(ranked)) => answer.generation.choose_ranked(ranked, &history),
            (None, None) if answer.generation.is_greedy() => self.batcher.most_probable(of)?,
            (None, None) => None,
        };
        let finish = match token {
            Some(token) => answer.generation.take(Given::Token(token), &history, context)?,
            None => {
                self.model.metrics.logit_rows.inc();
                let logits = self.batcher.logits(of)?;
                answer.generation.take(Given::Logits(logits), &history, context)?
            }
        };
        if answer.first.is_none() && answer.generation.tokens() > 0 {
            answer.first = Some(Instant::now());
            // Whoever asked waits for the first answer's; those of the others come when it has long begun.
            if answer.nth == 0 && ongoing.job.answered == 0 {
                self.model.metrics.first_token_time.observe(ongoing.job.asked.elapsed().as_secs_f64());
            }
        }
        match (finish, answer.generation.last()) {
            (None, Some(token)) => {
                self.batcher.push(of.sequence, token);
                Ok(true)
            }
            _ => Ok(false),
        }
    }
    /// An answer has come to its end.
    fn answered(&mut self, at: usize, nth: usize) {
        let answer = self.ongoing[at].under_way.swap_remove(nth);
        self.batcher.remove(answer.sequence);
        self.count_answer(&answer);
        let ongoing = &mut self.ongoing[at];
        ongoing.usage.answer += answer.generation.tokens();
        // Answers are made beside one another: what they took is what the last of them did.
        ongoing.usage.answer_time = ongoing.usage.answer_time.max(ongoing.begun.elapsed());
        if ongoing.under_way.is_empty() {
            let Ongoing { mut job, usage, .. } = self.ongoing.swap_remove(at);
            job.usage.add(&usage);
            self.ended(job);
        }
    }
    /// Tells how probable the tokens of a prompt were, all of which are run.
    fn score(&mut self, job: &Job, answers: &Answers, top: usize) -> Result<Usage, Broken> {
        let prompt = &job.prompts[job.answered];
        let vocabulary = self.batcher.engine().model().vocabulary();
        let most = rows_at_a_time(vocabulary, self.batcher.engine().chunk());
        let mut tokens = vec![Chosen { token: prompt[0], logprob: None, top: Vec::new() }];
        let usage = self.apart(job, most, &mut |engine, piece, at| {
            let rows = engine.forward_with(piece, at, Logits::All)?;
            for (row, &token) in rows.chunks(vocabulary).zip(&prompt[at + 1..]) {
                tokens.push(probabilities(row, token, top));
            }
            Ok(())
        })?;
        for nth in 0..answers.choices {
            let choice = job.answered * answers.choices + nth;
            let _ = job.events.send(Event::PromptLogprobs { choice, tokens: tokens.clone() });
        }
        Ok(usage)
    }
    /// The mean of a prompt's hidden rows behind the last layer.
    fn embed(&mut self, job: &Job) -> Result<Usage, Broken> {
        let mut mean = Mean::new(self.batcher.engine().model().width());
        let most = self.batcher.engine().chunk();
        let mut rows =
            |engine: &mut Engine, piece: &[u32], at| Ok(engine.hidden_rows(piece, at, &mut |rows| mean.add(rows))?);
        let usage = self.apart(job, most, &mut rows)?;
        let _ = job.events.send(Event::Embedding { prompt: job.answered, values: mean.values() });
        self.model.metrics.prompt_tokens.inc_by(usage.prompt as u64);
        Ok(usage)
    }
    /// Runs a prompt whose every token counts, while all others wait; those that are under way have their pages first.
    fn apart(&mut self, job: &Job, most: usize, run: &mut RunPiece) -> Result<Usage, Broken> {
        let (prompt, model) = (&job.prompts[job.answered], self.model.clone());
        loop {
            let begun = Instant::now();
            let done = self.batcher.apart(prompt, most, &mut |engine, piece, at| {
                run(engine, piece, at)?;
                Ok(flow(job, &model.queue))
            })?;
            match done {
                Some(ControlFlow::Continue(())) => {
                    return Ok(Usage { prompt: prompt.len(), prompt_time: begun.elapsed(), ..Usage::default() });
                }
                Some(ControlFlow::Break(())) => return Err(Broken::Off),
                None => {
                    self.break_off();
                    self.step();
                }
            }
            if flow(job, &model.queue).is_break() {
                return Err(Broken::Off);
            }
        }
    }
}
