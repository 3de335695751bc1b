//! Generation whose tokens stay on the device: a step ends with the choice of the token that the next one starts with.
//!
//! What the host does for a token is one launch and one read of four bytes; where steps run beside it, it starts step t + 1 before it reads
//! the token of step t. A step that turns out to be one too many has written one row of the cache, which the next step there writes
//! again, and nothing else that anybody reads.

use super::captured::Captured;
use super::class::Class;
use super::error::{Error, Progress};
use super::executor::{Decoding, Engine};
use crate::arch::Logits;
use crate::sampling::{self, Choice, NUMBERS, Random, Sampler};
use gristmill_runtime::Buffer;
use gristmill_tensor::jit::Call;

/// How tokens are chosen.
#[derive(Clone, PartialEq, Debug)]
pub struct Draw {
    /// The way.
    pub choice: Choice,
    /// Its numbers.
    pub numbers: [f32; NUMBERS],
    /// The random numbers of its seed: each token has that of the position it is chosen for.
    pub random: Random,
}

impl Draw {
    /// As that sampler chooses; `None` where a device cannot.
    pub fn of(sampler: &Sampler) -> Option<Draw> {
        Some(Draw { choice: sampler.choice()?, numbers: sampler.numbers(), random: sampler.random() })
    }
    /// The largest logit's token.
    pub fn greedy() -> Draw {
        Draw { choice: Choice::Greedy, numbers: [0.0; NUMBERS], random: Random::new(0) }
    }
}

impl Engine {
    /// Does it pay to leave this choice to the device? The largest always; to draw is a matter of many small kernels, which a host that
    /// would have to run them itself does better in one pass.
    pub fn decides(&self, choice: Choice) -> bool {
        choice == Choice::Greedy || self.device().overlaps()
    }

    /// Compiles and captures steps of that depth that end with this choice; else that happens when the first starts.
    pub(super) fn prepare_choice(
        &mut self,
        choice: Choice,
        depth: usize,
        progress: &dyn Fn(Progress),
    ) -> Result<(), Error> {
        if self.decoders.contains_key(&(choice, depth)) {
            return Ok(());
        }
        let class = Class { tokens: 1, batch: false, others: 0, logits: Logits::Last, depth };
        let plan = self.model.plan(&self.options(class), &mut self.functions);
        let function = sampling::function(choice, self.model.vocabulary(), self.cache.rows);
        let function = self.functions.share(function);
        let sample = self.ready(&[&function], progress)?.remove(0);
        let mut calls = self.calls(&plan, progress)?;
        let mut args: Vec<Buffer> = vec![self.logits.clone()];
        if choice.draws() {
            args.extend([self.request.clone(), self.random.clone()]);
        }
        args.extend([self.chosen.clone(), self.tokens.clone()]);
        calls.push(Call { function: sample, args });
        let captured = self.capture(&calls)?;
        self.decoders.insert((choice, depth), captured);
        Ok(())
    }

    /// Begins a generation: `token` at `position`, then what is chosen, `steps` steps at most. With `ahead` a step is started before
    /// the token of the one before is read: the tokens are the same.
    ///
    /// # Errors
    /// When there is no such token, the steps do not fit the context, or the device fails.
    pub fn decode(&mut self, token: u32, position: usize, steps: usize, draw: &Draw, ahead: bool) -> Result<(), Error> {
        self.check(&[token])?;
        let Some(end) = position.checked_add(steps).filter(|&end| end <= self.context) else {
            return Err(Error::Full(self.context));
        };
        self.finish()?;
        self.prepare_choice(draw.choice, self.depth(position), &|_| ())?;
        self.set_tokens(&[token])?;
        if draw.choice.draws() {
            // What a step chooses stands one position after the token that it runs.
            let random = draw.random.all(position + 1..end + 1);
            self.device().write(&self.request, 0, bytemuck::cast_slice(&draw.numbers))?;
            self.device().write(&self.random, 4 * position, bytemuck::cast_slice(&random))?;
        }
        let (next, waited, read) = (position, position, position);
        self.decoding = Some(Decoding { choice: draw.choice, ahead, next, waited, read, end });
        Ok(())
    }

    /// The next token of the generation; `None` where none can be chosen: a logit is not a number or infinite, or all are −∞.
    ///
    /// # Errors
    /// When no generation is under way, all its steps have been made, or the device fails; a failure ends the generation, and nothing
    /// runs any more.
    pub fn next_token(&mut self) -> Result<Option<u32>, Error> {
        let now = self.decoding.filter(|d| d.read < d.end).ok_or(Error::NoGeneration)?;
        let token = self.read_token(now);
        if token.is_err() {
            // The first failure is what there is to tell; those that ending meets follow from it.
            let _ = self.finish();
        }
        token
    }

    fn read_token(&mut self, now: Decoding) -> Result<Option<u32>, Error> {
        let wanted = (now.read + 1 + usize::from(now.ahead)).min(now.end);
        for position in now.next..wanted {
            self.start(now.choice, position)?;
        }
        self.wait_for(now.read + 1)?;
        let mut id = [0u8; 4];
        // The step ahead writes the next token of this list.
        self.device().read_settled(&self.chosen, 4 * now.read, &mut id)?;
        if let Some(decoding) = &mut self.decoding {
            decoding.read += 1;
        }
        Ok(u32::try_from(i32::from_le_bytes(id)).ok())
    }

    /// Ends the generation, if there is one: waits for all that was started. Whatever else is asked of the engine does so first.
    ///
    /// # Errors
    /// The first failure of a step. Nothing runs any more, all the same.
    pub fn finish(&mut self) -> Result<(), Error> {
        let ended = self.wait_for(usize::MAX);
        self.decoding = None;
        let rows = self.finish_rows();
        ended.and(rows)
    }

    fn start(&mut self, choice: Choice, position: usize) -> Result<(), Error> {
        if position >= self.rope_filled {
            // The table is written while nothing reads it.
            self.wait_for(usize::MAX)?;
            self.fill_rope(position + 1)?;
        }
        let depth = self.depth(position);
        if !self.decoders.contains_key(&(choice, depth)) {
            self.wait_for(usize::MAX)?;
            self.prepare_choice(choice, depth, &|_| ())?;
        }
        let Some(captured) = self.decoders.get_mut(&(choice, depth)) else {
            unreachable!("{choice:?} at depth {depth} was prepared")
        };
        self.seen.step(position..position + 1);
        captured.replay.start(&[("pos", position as i64), ("n", 1)])?;
        if let Some(decoding) = &mut self.decoding {
            decoding.next = position + 1;
        }
        Ok(())
    }

    /// Waits for the steps before that position, as far as they were started: for all of them, lest a later wait takes one step's end for
    /// another's. The first failure is told.
    fn wait_for(&mut self, position: usize) -> Result<(), Error> {
        let mut ended = Ok(());
        while let Some(Decoding { choice, waited, next, .. }) = self.decoding
            && waited < next.min(position)
        {
            if let Some(decoding) = &mut self.decoding {
                decoding.waited += 1;
            }
            let key = (choice, self.depth(waited));
            if let Some(Captured { replay, .. }) = self.decoders.get_mut(&key) {
                ended = ended.and(replay.wait());
            }
        }
        Ok(ended?)
    }
}
