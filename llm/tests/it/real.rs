//! A published file on the CPU, against the reference: token ids, logits, greedy texts, perplexity.

use crate::parity_support::tables::rms;
use crate::real_support::{Greedy, TextLogits, check_greedy, engine, logits, reference, smollm2};
use gristmill_backend::Precision;
use gristmill_llm::engine::Engine;
use gristmill_llm::gguf::Gguf;
use gristmill_llm::language;
use gristmill_llm::perplexity::perplexity;
use gristmill_llm::tokenizer::Tokenizer;

/// Context in tokens; all of `gpl.txt` is one window.
const CONTEXT: usize = 1536;
/// Perplexity of `gpl.txt` in f32 arithmetic, in one window.
const PERPLEXITY: f64 = 19.572;
/// Maximum RMS difference of a precision's logits, in standard deviations of the exact ones, and
/// maximum mean divergence from exact arithmetic, in nats. Measured, by prefill and by steps: 0.030
/// and 0.0041 of `Fast`.
const LIMITS: [(Precision, f64, f64); 2] = [
    (Precision::Fast, 0.035, 0.005),
    (Precision::Balanced, 0.02, 0.002),
];

fn text(name: &str) -> String {
    std::fs::read_to_string(reference(name)).expect("a text")
}

fn tokenizer(file: &Gguf) -> Tokenizer {
    let spec = language::tokenizer_spec(file.metadata()).expect("a tokenizer");
    Tokenizer::new(spec).expect("a tokenizer")
}

/// Returns the mean of the Kullback-Leibler divergence of `found` from `expected` over the rows.
fn divergence(expected: &[f32], found: &[f32], vocabulary: usize) -> f64 {
    let normaliser = |row: &[f32]| {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|&l| f64::from(l - most).exp()).sum();
        f64::from(most) + sum.ln()
    };
    let rows = expected.chunks(vocabulary).zip(found.chunks(vocabulary));
    let of_rows = rows.map(|(p, q)| {
        let (all_p, all_q) = (normaliser(p), normaliser(q));
        let terms = p.iter().zip(q).map(|(&p, &q)| {
            let (p, q) = (f64::from(p) - all_p, f64::from(q) - all_q);
            p.exp() * (p - q)
        });
        terms.sum::<f64>()
    });
    of_rows.sum::<f64>() / (expected.len() / vocabulary) as f64
}

#[test]
fn token_ids_are_the_reference() {
    let Some(file) = smollm2() else { return };
    let tokenizer = tokenizer(&file);
    let encode = |text: &str| tokenizer.encode(text, false, true);
    assert_eq!(encode(&text("text.txt")), TextLogits::read().tokens);
    for prompt in Greedy::read() {
        assert_eq!(encode(&prompt.prompt), prompt.ids, "{:?}", prompt.prompt);
    }
}

/// Checks f32 arithmetic in every kind of step; returns the logits of `text.txt`.
fn exact_is_the_reference(file: &Gguf, reference: &TextLogits, gpl: &[u32]) -> Vec<f32> {
    let prompts = Greedy::read();
    let mut e = engine("cpu", file, Precision::Exact, prompts.len(), CONTEXT);
    let found = logits(&mut e, &reference.tokens, 128);
    reference.check("one chunk", &found);
    reference.check("chunks of 48", &logits(&mut e, &reference.tokens, 48));
    reference.check("decode steps", &logits(&mut e, &reference.tokens, 1));
    check_greedy(&mut e, &prompts, usize::MAX);
    check_perplexity(&mut e, gpl, 1e-4);
    found
}

/// Checks the int8 arithmetic of a precision, by prefill and by decode steps.
fn is_near(
    (precision, most, most_divergence): (Precision, f64, f64),
    file: &Gguf,
    reference: &TextLogits,
    exact: &[f32],
    gpl: &[u32],
) {
    let mut e = engine("cpu", file, precision, 1, CONTEXT);
    for chunk in [128, 1] {
        let found = logits(&mut e, &reference.tokens, chunk);
        let error = rms(&found, exact);
        let divergence = divergence(exact, &found, reference.vocabulary());
        println!("{precision:?}, by {chunk}: rms {error:.2e}, divergence {divergence:.2e}");
        assert!(error <= most, "{precision:?} by {chunk}: rms {error}");
        assert!(
            divergence <= most_divergence,
            "{precision:?} by {chunk}: divergence {divergence}"
        );
    }
    check_perplexity(&mut e, gpl, 5e-3);
}

/// Asserts that the perplexity is the reference's but for a share of it.
fn check_perplexity(engine: &mut Engine, gpl: &[u32], share: f64) {
    let found = perplexity(engine, gpl, None, gpl.len(), &mut |_, _, _| ()).expect("a likelihood");
    let change = found.perplexity() / PERPLEXITY - 1.0;
    println!("perplexity {:.3}", found.perplexity());
    assert!(change.abs() <= share, "perplexity {}", found.perplexity());
}

/// One test, as all precisions need the exact logits, and use all cores.
#[test]
fn logits_and_texts_are_the_reference() {
    let Some(file) = smollm2() else { return };
    let reference = TextLogits::read();
    let gpl = tokenizer(&file).encode(&text("gpl.txt"), false, false);
    let exact = exact_is_the_reference(&file, &reference, &gpl);
    for limit in LIMITS {
        is_near(limit, &file, &reference, &exact, &gpl);
    }
}
