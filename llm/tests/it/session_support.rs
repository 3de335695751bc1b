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

/// Logits after a prompt that nothing came before.
pub fn fresh(scratch: &mut Session, prompt: &[u32], reuse: Reuse) -> Vec<f32> {
    scratch.reset();
    assert_eq!(feed(scratch, prompt, reuse).reused, 0);
    scratch.logits().to_vec()
}

/// The first `len` tokens of a text as a prompt, of which text a session has had so many tokens, others between: the logits and so many tokens of an answer are those of a
/// session that had none of it, to the bit. What was reused each time.
pub fn exact_prefix(
    [session, scratch]: [&mut Session; 2],
    text: &[u32],
    len: usize,
    begun: &[usize],
    tokens: usize,
) -> Vec<Fed> {
    let prompt = &text[..len];
    // Other tokens in between, so that rows must come back from the host.
    let other: Vec<u32> = prompt.iter().rev().copied().collect();
    let logits = fresh(scratch, prompt, Reuse::Exact);
    let expected = answer(scratch, tokens);
    let each = |&begun: &usize| {
        feed(session, &other, Reuse::Exact);
        feed(session, &text[..begun], Reuse::Exact);
        answer(session, tokens);
        let fed = feed(session, prompt, Reuse::Exact);
        assert_eq!(session.logits(), logits, "{len} after {begun}: {fed:?}");
        assert_eq!(answer(session, tokens), expected, "{len} after {begun}");
        fed
    };
    begun.iter().map(each).collect()
}
