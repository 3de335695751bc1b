//! Prompts and answers of a session.

use gristmill_llm::prefix::Reuse;
use gristmill_llm::sampling::{Sampler, SamplingParams};
use gristmill_llm::session::{Fed, Session};
use std::ops::ControlFlow;

/// Has a session read a prompt.
pub fn feed(session: &mut Session, prompt: &[u32], reuse: Reuse) -> Fed {
    session.feed_with(prompt, reuse, &mut |_, _| ControlFlow::Continue(())).expect("fed")
}

/// So many tokens of an answer, of one seed.
pub fn answer(session: &mut Session, tokens: usize) -> Vec<u32> {
    let sampler = Sampler::new(SamplingParams { temperature: 1.5, seed: 7, ..SamplingParams::default() }).unwrap();
    let mut out = Vec::new();
    let each = &mut |token| {
        out.push(token);
        ControlFlow::Continue(())
    };
    session.generate(&sampler, tokens, &|_| false, each).expect("an answer");
    out
}
