//! How busy a model is, for routers and whoever else watches.

use crate::core::event::{Delta, Event};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a model does at a moment, and what it has room for.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Load {
    /// Requests that are being answered.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Most requests that are answered at a time.
    pub slots: usize,
    /// Tokens in the cache of requests that are not over. Prefixes that are kept for later make room and do not count.
    pub used: usize,
    /// Tokens that the cache has room for, or will have once the model is loaded.
    pub room: usize,
}

impl Load {
    /// Requests that are being answered or wait.
    pub fn requests(&self) -> usize {
        self.running + self.waiting
    }
    /// The part of the cache that is used, from 0 to 1.
    pub fn usage(&self) -> f64 {
        if self.room == 0 { 0.0 } else { (self.used as f64 / self.room as f64).min(1.0) }
    }
    /// Together with that of another model.
    pub fn plus(self, other: Load) -> Load {
        Load {
            running: self.running + other.running,
            waiting: self.waiting + other.waiting,
            slots: self.slots + other.slots,
            used: self.used + other.used,
            room: self.room + other.room,
        }
    }
}

/// Tokens in a model's cache of requests that are not over. Copies count the same ones.
#[derive(Clone, Default, Debug)]
pub struct Tokens(Arc<AtomicUsize>);

impl Tokens {
    /// How many.
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
    /// The part of a request that has none yet.
    pub fn part(&self) -> Part {
        Part { all: self.clone(), prompt: AtomicUsize::new(0), own: AtomicUsize::new(0) }
    }
}

/// One request's part of them, as its events tell it; given back when it is dropped.
#[derive(Default, Debug)]
pub struct Part {
    all: Tokens,
    /// Tokens of the prompt that is being answered.
    prompt: AtomicUsize,
    own: AtomicUsize,
}

impl Part {
    /// Takes note of what is told of the request.
    pub fn follow(&self, event: &Event) {
        match event {
            Event::Reading(done, _) => self.set(*done),
            Event::Prompt(usage) => {
                self.prompt.store(usage.prompt, Ordering::Relaxed);
                self.set(usage.prompt);
            }
            Event::Delta(Delta { so_far, .. }) => self.set(self.prompt.load(Ordering::Relaxed) + so_far),
            _ => {}
        }
    }
    /// Only the engine's thread sets it, so that what was there is still there.
    fn set(&self, tokens: usize) {
        let before = self.own.swap(tokens, Ordering::Relaxed);
        // Sums of usize wrap, and so do differences.
        self.all.0.fetch_add(tokens.wrapping_sub(before), Ordering::Relaxed);
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::event::Usage;

    #[test]
    fn a_request_holds_its_prompt_and_what_was_answered_until_it_is_over() {
        let tokens = Tokens::default();
        let (one, other) = (tokens.part(), tokens.part());
        one.follow(&Event::Reading(512, 600));
        assert_eq!(tokens.count(), 512);
        one.follow(&Event::Prompt(Usage { prompt: 700, ..Usage::default() }));
        other.follow(&Event::Prompt(Usage { prompt: 50, ..Usage::default() }));
        one.follow(&Event::Delta(Delta { so_far: 9, ..Delta::default() }));
        assert_eq!(tokens.count(), 759);
        // Its next prompt is another one.
        one.follow(&Event::Prompt(Usage { prompt: 20, ..Usage::default() }));
        assert_eq!(tokens.count(), 70);
        drop(one);
        assert_eq!(tokens.count(), 50);
        drop(other);
        assert_eq!(tokens.count(), 0);
    }

    #[test]
    fn usage_is_a_part_of_what_there_is() {
        let load = |used, room| Load { used, room, ..Load::default() };
        assert_eq!([load(0, 0), load(512, 2048), load(10, 5)].map(|load| load.usage()), [0.0, 0.25, 1.0]);
        let one = Load { running: 1, waiting: 2, slots: 1, used: 3, room: 4 };
        assert_eq!(one.plus(one), Load { running: 2, waiting: 4, slots: 2, used: 6, room: 8 });
    }
}
