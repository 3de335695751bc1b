//! Counts of drafts, by their source and by their place behind the last token.

use super::super::ngram::MAX_DRAFTS;

/// Where drafts come from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DraftOrigin {
    /// Tokens that followed the last ones before.
    Ngram,
    /// The model's draft block.
    Block,
    /// A smaller model with the same vocabulary.
    Model,
}

impl DraftOrigin {
    /// All origins, in order.
    pub const ALL: [DraftOrigin; 3] = [DraftOrigin::Ngram, DraftOrigin::Block, DraftOrigin::Model];

    /// Returns the name in metrics and messages.
    pub fn name(self) -> &'static str {
        match self {
            DraftOrigin::Ngram => "ngram",
            DraftOrigin::Block => "mtp",
            DraftOrigin::Model => "model",
        }
    }
}

/// Drafts of one origin, by their place: the first draft behind the last token comes first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DraftCounts {
    /// Tokens that were run as drafts.
    pub drafted: [u64; MAX_DRAFTS],
    /// Those of them that were chosen, each of which saved a step.
    pub accepted: [u64; MAX_DRAFTS],
}

/// Numbers of drafted and kept tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpeculationStats {
    /// Steps with at least one draft.
    pub steps: u64,
    counts: [DraftCounts; DraftOrigin::ALL.len()],
}

impl SpeculationStats {
    /// Returns the counts of drafts of an origin.
    pub fn counts(&self, origin: DraftOrigin) -> &DraftCounts {
        &self.counts[origin as usize]
    }
    pub(super) fn counts_mut(&mut self, origin: DraftOrigin) -> &mut DraftCounts {
        &mut self.counts[origin as usize]
    }
    /// Returns the number of tokens that were run as drafts.
    pub fn drafted(&self) -> u64 {
        self.counts.iter().flat_map(|of| of.drafted).sum()
    }
    /// Returns the number of those that were chosen.
    pub fn accepted(&self) -> u64 {
        self.counts.iter().flat_map(|of| of.accepted).sum()
    }
    /// Returns the counts since `before`, which were read earlier.
    #[must_use]
    pub fn since(&self, before: &SpeculationStats) -> SpeculationStats {
        let mut since = *self;
        since.steps -= before.steps;
        for (of, before) in since.counts.iter_mut().zip(&before.counts) {
            let subtract = |own: &mut [u64], other: &[u64]| {
                own.iter_mut().zip(other).for_each(|(a, b)| *a -= b);
            };
            subtract(&mut of.drafted, &before.drafted);
            subtract(&mut of.accepted, &before.accepted);
        }
        since
    }
}
