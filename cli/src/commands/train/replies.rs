//! Replies to a few prompts of the data, to compare a model before and after training.

use crate::failure::Result;
use crate::flags::Common;
use crate::model::Model;
use gristmill_backend::Opened;
use gristmill_llm::engine::Settings;
use gristmill_llm::generation::Generation;
use gristmill_llm::sampling::{Sampler, SamplingParams};
use gristmill_llm::sched::{Batcher, SequenceOptions, generate};
use gristmill_llm::tokenizer::Tokenizer;
use gristmill_llm::train::Example;
use std::ops::ControlFlow;

/// Most prompts, and most tokens of a generated reply.
const PROMPTS: usize = 3;
pub const LONGEST: usize = 64;

/// A prompt and the reply in the data.
pub struct Prompt {
    tokens: Vec<u32>,
    /// The prompt as the model reads it, with control tokens.
    pub text: String,
    pub wanted: String,
}

/// The prompts of the first examples that have one and leave room for a reply in `context` tokens.
pub fn prompts(tokenizer: &Tokenizer, examples: &[Example], context: usize) -> Vec<Prompt> {
    let fits = |e: &&Example| {
        !e.reply.is_empty() && e.reply.start > 0 && e.reply.start + LONGEST <= context
    };
    let prompt = |e: &Example| Prompt {
        tokens: e.tokens[..e.reply.start].to_vec(),
        text: tokenizer.decode(&e.tokens[..e.reply.start], true),
        wanted: shown(tokenizer, &e.tokens[e.reply.clone()]),
    };
    examples.iter().filter(fits).take(PROMPTS).map(prompt).collect()
}

/// Text of a reply without the token that ends it.
fn shown(tokenizer: &Tokenizer, tokens: &[u32]) -> String {
    let end = tokens.iter().rposition(|&t| !tokenizer.is_eog(t));
    tokenizer.decode(&tokens[..end.map_or(0, |last| last + 1)], true)
}

/// Loads a model and generates its greedy replies.
pub fn replies(
    model: &Model,
    opened: &Opened,
    common: &Common,
    prompts: &[Prompt],
) -> Result<Vec<String>> {
    let Some(longest) = prompts.iter().map(|p| p.tokens.len()).max() else {
        return Ok(Vec::new());
    };
    let tokenizer = model.tokenizer()?;
    let settings = Settings {
        context: Some(longest + LONGEST),
        ..common.settings(None)
    };
    let mut batcher = Batcher::new(model.load_with(opened.clone(), settings)?);
    let sampler = Sampler::new(SamplingParams {
        temperature: 0.0,
        ..SamplingParams::default()
    })?;
    let mut reply = |prompt: &Prompt| {
        let generation = Generation::new(sampler.clone(), LONGEST, |id| tokenizer.is_eog(id));
        let mut tokens = Vec::new();
        generate(
            &mut batcher,
            &prompt.tokens,
            SequenceOptions::default(),
            generation,
            &mut |_, _| ControlFlow::Continue(()),
            &mut |id| {
                tokens.push(id);
                ControlFlow::Continue(())
            },
        )?;
        Ok(shown(&tokenizer, &tokens))
    };
    prompts.iter().map(&mut reply).collect()
}
