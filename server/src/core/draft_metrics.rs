//! Counters of drafted tokens, by their origin and by their place behind the last token.

use gristmill_llm::sched::{DraftOrigin, SpeculationStats};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

/// Labels of a counter.
#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
pub struct DraftLabels {
    model: String,
    source: &'static str,
    /// 1 for the first draft behind the last token.
    position: u32,
}

/// Drafted tokens, and those of them that were chosen.
pub type DraftFamilies = [Family<DraftLabels, Counter>; 2];

/// Names and help of the counters.
pub const DRAFTS: [(&str, &str); 2] = [
    (
        "draft_tokens",
        "Tokens that were run as drafts, by their source and their place behind the last token",
    ),
    (
        "draft_tokens_accepted",
        "Drafted tokens that were chosen, each of which saved a step",
    ),
];

/// The counters of a model.
#[derive(Clone, Debug)]
pub struct DraftCounters {
    model: String,
    families: DraftFamilies,
}

impl DraftCounters {
    /// Creates the counters of a model.
    pub fn new(model: &str, families: &DraftFamilies) -> DraftCounters {
        DraftCounters {
            model: model.to_owned(),
            families: families.clone(),
        }
    }
    /// Adds the tokens drafted and chosen since the last call.
    pub fn add(&self, stats: &SpeculationStats) {
        for origin in DraftOrigin::ALL {
            let of = stats.counts(origin);
            for (family, counts) in self.families.iter().zip([&of.drafted, &of.accepted]) {
                let used = (1..).zip(counts).filter(|(_, count)| **count > 0);
                for (position, &count) in used {
                    let labels = DraftLabels {
                        model: self.model.clone(),
                        source: origin.name(),
                        position,
                    };
                    family.get_or_create_owned(&labels).inc_by(count);
                }
            }
        }
    }
}
