//! Generation for `run` and `chat`: prefills a prompt and writes the answer as it is decoded.

use crate::failure::Result;
use crate::progress;
use crate::reasoning_view::Reader;
use crate::sampler;
use crate::style::Screen;
use gristmill_llm::chat::{ChatTemplate, ReasoningTexts, TextSpan, closing_tokens};
use gristmill_llm::generation::{self, Finish};
use gristmill_llm::sampling::Sampler;
use gristmill_llm::sched::{
    Batcher, DraftOrigin, Generated, PrefillStats, ReasoningBudget, SequenceOptions,
    SpeculationStats, generate,
};
use gristmill_llm::tokenizer::Tokenizer;
use std::io::{self, Write};
use std::ops::ControlFlow;

/// A generated answer and its timing.
pub struct Generation {
    /// The content, without reasoning that the model marks.
    pub text: String,
    /// The reasoning, if the model marks it.
    pub thought: Option<String>,
    pub generated: Generated,
    /// Drafted and kept tokens.
    pub drafts: SpeculationStats,
}

/// Flags that bound an answer's reasoning.
#[derive(clap::Args, Clone, Debug)]
pub struct ReasoningFlags {
    /// Disable the reasoning of models that can answer without it
    #[arg(long)]
    no_think: bool,
    /// Maximum tokens of reasoning, after which the answer begins; 0 for none, -1 for no limit
    /// [default: -1]
    #[arg(
        long, value_name = "N", value_parser = sampler::count, allow_negative_numbers = true,
        conflicts_with = "no_think"
    )]
    reasoning_budget: Option<usize>,
    /// Message before the end of reasoning that is cut off [default: that the answer follows]
    #[arg(
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        requires = "reasoning_budget"
    )]
    reasoning_budget_message: Option<String>,
}

impl ReasoningFlags {
    /// Returns `Some(false)` if reasoning is switched off, for the template.
    pub fn switch(&self) -> Option<bool> {
        (self.no_think || self.reasoning_budget == Some(0)).then_some(false)
    }
}

/// Limits of an answer.
pub struct AnswerLimits<'t> {
    /// Maximum tokens of reasoning and answer.
    pub tokens: usize,
    /// Bound of the reasoning among them.
    pub reasoning: Option<ReasoningBudget<'t>>,
}

impl<'t> AnswerLimits<'t> {
    /// Limits an answer and, if there is a budget, its reasoning; `prompt` is the rendered one.
    pub fn new(
        tokens: usize,
        flags: &ReasoningFlags,
        (template, prompt): (&ChatTemplate, &[TextSpan]),
        tokenizer: &'t Tokenizer,
    ) -> AnswerLimits<'t> {
        let markup = template.markup();
        let begun = TextSpan::concat(prompt)
            .trim_end()
            .ends_with(markup.think[0]);
        let message = flags.reasoning_budget_message.as_deref();
        let bounded = |budget| {
            let closing = closing_tokens(markup, tokenizer, budget, message, false);
            let bytes = |token, out: &mut Vec<u8>| {
                out.extend(tokenizer.token_bytes(token).unwrap_or_default());
            };
            ReasoningBudget::new(
                ReasoningTexts::for_markup(markup),
                budget,
                begun,
                closing,
                bytes,
            )
        };
        AnswerLimits {
            tokens,
            reasoning: flags
                .reasoning_budget
                .filter(|&budget| budget != usize::MAX)
                .map(bounded),
        }
    }
    /// Limits a text without reasoning.
    pub fn of_tokens(tokens: usize) -> AnswerLimits<'t> {
        AnswerLimits {
            tokens,
            reasoning: None,
        }
    }
}

/// Generates an answer to `prompt` and writes it to `out` as `reader` decodes it; `stop` ends it
/// early.
pub fn answer(
    batcher: &mut Batcher,
    reader: &mut Reader<'_>,
    sampler: &Sampler,
    prompt: &[u32],
    limits: AnswerLimits<'_>,
    out: &mut Screen<impl Write>,
    stop: &dyn Fn() -> bool,
) -> Result<Generation> {
    let flow = || {
        if stop() {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    };
    let bar = progress::count("prompt", prompt.len() as u64);
    let mut progress = |done, total| {
        // Short prompts need no bar.
        if total > 512 {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        }
        flow()
    };
    let tokenizer = reader.tokenizer();
    let ends = |id| tokenizer.is_eog(id);
    let mut generation = generation::Generation::new(sampler.clone(), limits.tokens, ends);
    if let Some(budget) = limits.reasoning {
        generation = generation.with_reasoning_budget(budget);
    }
    let mut written: io::Result<()> = Ok(());
    let mut each = |id| {
        bar.finish_and_clear();
        written = out.text(&reader.push(id));
        if written.is_err() {
            ControlFlow::Break(())
        } else {
            flow()
        }
    };
    let before = batcher.speculation();
    let generated = generate(
        batcher,
        prompt,
        SequenceOptions::default(),
        generation,
        &mut progress,
        &mut each,
    );
    bar.finish_and_clear();
    let drafts = batcher.speculation().since(&before);
    let generated = generated?;
    written?;
    if generated.prefill.complete {
        out.text(&reader.finish(generated.finish != Finish::EndOfText))?;
    }
    let (text, thought) = (std::mem::take(&mut reader.said), reader.thought.take());
    Ok(Generation {
        text,
        thought,
        generated,
        drafts,
    })
}

/// Describes how many drafts were kept, by their origin if there are several.
fn described(drafts: &SpeculationStats) -> String {
    let counted = DraftOrigin::ALL.map(|origin| {
        let of = drafts.counts(origin);
        let sums = [&of.drafted, &of.accepted].map(|of| of.iter().sum::<u64>());
        (origin.name(), sums)
    });
    let used: Vec<_> = counted.iter().filter(|of| of.1[0] > 0).collect();
    match &used[..] {
        [] => String::new(),
        [(_, [drafted, kept])] => format!(", {kept} of {drafted} drafts kept"),
        several => {
            let each = several
                .iter()
                .map(|(name, [drafted, kept])| format!("{kept} of {drafted} {name}"));
            format!(", {} drafts kept", each.collect::<Vec<_>>().join(" and "))
        }
    }
}

impl Generation {
    /// The line after an answer: tokens, speeds and finish reason.
    pub fn summary(&self) -> String {
        let rate = |n: usize, time: std::time::Duration| {
            format!("{:.1} tok/s", n as f64 / time.as_secs_f64().max(1e-9))
        };
        let Generated {
            prefill,
            tokens,
            time,
            steps,
            finish,
        } = self.generated;
        let PrefillStats { reused, run, .. } = prefill;
        let cached = if reused > 0 {
            format!(" ({reused} more in the KV cache)")
        } else {
            String::new()
        };
        let prompt = format!("{run} prompt tokens{cached}, {}", rate(run, prefill.time));
        let drafts = described(&self.drafts);
        match (prefill.complete, steps) {
            (false, _) => format!("[{prompt}; {}]", finish.describe()),
            (true, 0) => format!("[{prompt}; {tokens} tokens; {}]", finish.describe()),
            (true, _) => format!(
                "[{prompt}; {tokens} tokens, {}{drafts}; {}]",
                rate(steps, time),
                finish.describe()
            ),
        }
    }
}
