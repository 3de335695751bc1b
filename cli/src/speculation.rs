//! The flag --speculate: drafts of next tokens.

use clap::{Args, ValueEnum};
use gristmill_llm::engine::Engine;
use gristmill_llm::sched::Batcher;

/// Rows of a step for drafts, besides that of a single sequence.
const DRAFT_ROWS: usize = 15;

/// Where drafts come from: values of --speculate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
enum DraftSource {
    /// No drafts
    #[default]
    Off,
    /// What the model has; n-grams
    Auto,
    /// Tokens that followed the last 6 to 24 ones before, in the prompt or the answer
    Ngram,
}

/// Drafts that are run beside decode rows, and kept where they are the tokens chosen.
#[derive(Args, Clone, Copy, Debug)]
pub struct Speculation {
    /// Run drafts of next tokens in steps that have room; answers that repeat parts of their prompt
    /// are faster, and the distribution of texts is the same
    #[arg(long, value_enum, value_name = "SOURCE", default_value = "off")]
    speculate: DraftSource,
}

impl Speculation {
    /// Returns whether drafts are run.
    pub fn is_on(self) -> bool {
        self.speculate != DraftSource::Off
    }
    /// Returns the rows of a step for drafts of a single sequence.
    pub fn rows(self) -> usize {
        if self.is_on() { DRAFT_ROWS } else { 0 }
    }
    /// Returns the batcher of an engine.
    pub fn batcher(self, engine: Engine) -> Batcher {
        let batcher = Batcher::new(engine);
        match self.is_on() {
            true => batcher.with_speculation(),
            false => batcher,
        }
    }
}
