//! A published file on the first adapter of `wgpu`, possibly a software one, against the reference.

#[path = "it/real_support.rs"]
mod real_support;

use gristmill_backend::Precision;
use real_support::{Greedy, TextLogits, check_greedy, engine, logits, smollm2};

#[test]
fn exact_arithmetic_is_the_reference() {
    let Some(file) = smollm2() else { return };
    let (reference, prompts) = (TextLogits::read(), Greedy::read());
    let mut e = engine("wgpu", &file, Precision::Exact, 3, 128);
    reference.check("prefill", &logits(&mut e, &reference.tokens[..8], 128));
    reference.check("decode steps", &logits(&mut e, &reference.tokens[..4], 1));
    check_greedy(&mut e, &prompts[..3], 1);
}
