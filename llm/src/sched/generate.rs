//! Generation of one sequence on a batcher, from prompt to last token: for `run`, `chat` and tests.

use super::batcher::Batcher;
use super::error::Error;
use super::generation::{Finish, Generation};
use super::sequence::{SequenceId, SequenceOptions};
use gristmill_uop::clock::Instant;
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::time::Duration;

/// Statistics of a prompt's prefill.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PrefillStats {
    /// Tokens found in the prefix cache.
    pub reused: usize,
    /// Tokens that were computed.
    pub run: usize,
    /// Duration of the prefill.
    pub time: Duration,
    /// Whether the whole prompt was run; false if the caller stopped it.
    pub complete: bool,
}

/// Statistics of a finished answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Generated {
    /// Prefill of its prompt.
    pub prefill: PrefillStats,
    /// Generated tokens, without the end-of-text token.
    pub tokens: usize,
    /// Duration of decode steps and sampling, without the caller's time.
    pub time: Duration,
    /// Decode steps in that time; the first token comes from the prompt's logits.
    pub steps: usize,
    /// Reason for the end.
    pub finish: Finish,
}

/// Runs a prompt and generates an answer. `progress` gets, before every chunk, the prompt tokens
/// computed so far and in total, without reused ones; `each` gets each token as it is chosen. Both
/// may stop the generation. The sequence ends with the call; its pages stay in the prefix cache.
///
/// # Errors
/// When the prompt does not fit, or the model, sampling or the constraint fails.
pub fn generate(
    batcher: &mut Batcher,
    prompt: &[u32],
    options: SequenceOptions,
    generation: Generation<'_>,
    progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
    each: &mut dyn FnMut(u32) -> ControlFlow<()>,
) -> Result<Generated, Error> {
    let id = batcher.add(prompt, options)?;
    let mut run = GenerateLoop {
        id,
        generation: RefCell::new(generation),
        vocabulary: batcher.engine().model().vocabulary(),
        prefill: PrefillStats::default(),
        time: Duration::ZERO,
        steps: 0,
    };
    match run.finish(batcher, prompt.len(), progress, each) {
        Ok(finish) => {
            batcher.remove(id);
            let tokens = run.generation.borrow().tokens();
            Ok(Generated {
                prefill: run.prefill,
                tokens,
                time: run.time,
                steps: run.steps,
                finish,
            })
        }
        Err(error) => {
            batcher.discard(id);
            Err(error)
        }
    }
}

struct GenerateLoop<'g> {
    id: SequenceId,
    generation: RefCell<Generation<'g>>,
    vocabulary: usize,
    prefill: PrefillStats,
    time: Duration,
    steps: usize,
}

impl GenerateLoop<'_> {
    fn finish(
        &mut self,
        batcher: &mut Batcher,
        prompt: usize,
        progress: &mut dyn FnMut(usize, usize) -> ControlFlow<()>,
        each: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Finish, Error> {
        loop {
            if !self.prefill.complete {
                let found = batcher.scheduler().reused_tokens(self.id).unwrap_or(0);
                let done = batcher.scheduler().computed(self.id).saturating_sub(found);
                if progress(done, prompt - found).is_break() {
                    return Ok(Finish::Stopped);
                }
            }
            if let Some(finish) = self.step(batcher, prompt, each)? {
                return Ok(finish);
            }
        }
    }
    /// Runs a step and takes the token that it produces.
    fn step(
        &mut self,
        batcher: &mut Batcher,
        prompt: usize,
        each: &mut dyn FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Option<Finish>, Error> {
        let start = Instant::now();
        let (id, vocabulary, generation) = (self.id, self.vocabulary, &self.generation);
        let mut asking = |sequence, history: &[u32]| {
            (sequence == id).then(|| generation.borrow_mut().row_params(history, vocabulary))?
        };
        let mut drawing = |sequence| (sequence == id).then(|| generation.borrow().sampling())?;
        let stepped = batcher
            .step_with(&mut asking, &mut drawing)
            .map_err(|failed| failed.error)?;
        let Some(&of) = stepped.iter().find(|of| of.sequence == id) else {
            self.record_prefill(batcher, prompt, start.elapsed());
            return Ok(None);
        };
        let decoded = self.prefill.complete;
        if !decoded {
            self.record_prefill(batcher, prompt, start.elapsed());
        }
        let chosen = Instant::now();
        let step = batcher.choose(of, &mut self.generation.borrow_mut(), &mut |_| ())?;
        if let (Some(token), None) = (step.token, step.finish) {
            batcher.push(id, token);
        }
        self.time += if decoded {
            start.elapsed()
        } else {
            chosen.elapsed()
        };
        self.steps += usize::from(decoded);
        let stopped = step
            .token
            .is_some_and(|token| each(token).is_break())
            .then_some(Finish::Stopped);
        Ok(stopped.or(step.finish))
    }
    /// Updates the prefill statistics after a step of the prompt.
    fn record_prefill(&mut self, batcher: &Batcher, prompt: usize, time: Duration) {
        let found = batcher.scheduler().reused_tokens(self.id).unwrap_or(0);
        let computed = batcher.scheduler().computed(self.id).max(found);
        self.prefill = PrefillStats {
            reused: found,
            run: computed.min(prompt) - found.min(prompt),
            time: self.prefill.time + time,
            complete: computed >= prompt,
        };
    }
}
