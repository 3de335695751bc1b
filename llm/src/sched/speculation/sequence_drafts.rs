//! State of a sequence's drafts: its n-grams, the share of kept drafts, and its tokens in the cache
//! of the model that drafts.

use super::super::ngram::{Draft, NgramIndex};

/// Most drafts of a sequence that a model makes, one after the other.
pub(super) const MOST_STEPS: usize = 8;
/// Shares of drafted tokens that are expected to be kept at first: after short and long matches.
const FIRST_OF_NGRAMS: [f64; 2] = [0.6, 0.85];
/// The same of a model's drafts, each if those before it are kept.
const FIRST_OF_MODEL: f64 = 0.7;
/// Weight of the newest token in these shares, and in those that new sequences begin with.
const WEIGHT: f64 = 0.08;
const WEIGHT_OF_ANY: f64 = 0.01;
/// Bounds of the shares: drafts that are never tried would never be counted.
const BOUNDS: [f64; 2] = [0.1, 0.98];

/// Expected shares of kept drafts.
#[derive(Clone, Debug)]
pub(super) struct Survival {
    /// After short and long matches.
    ngrams: [f64; 2],
    /// Of a model's drafts by their place, each if those before it are kept.
    model: [f64; MOST_STEPS],
}

impl Default for Survival {
    fn default() -> Survival {
        Survival {
            ngrams: FIRST_OF_NGRAMS,
            model: [FIRST_OF_MODEL; MOST_STEPS],
        }
    }
}

impl Survival {
    /// Returns the probabilities that each of a model's drafts is kept.
    pub fn of_model(&self, count: usize) -> Vec<f64> {
        let shares = self.model.iter().take(count);
        let kept = shares.scan(1.0, |kept, share| {
            *kept *= share;
            Some(*kept)
        });
        kept.collect()
    }
    /// Returns the probabilities that each draft after a match is kept.
    pub fn of_ngram(&self, is_long: bool, count: usize) -> Vec<f64> {
        let share = self.ngrams[usize::from(is_long)];
        (1..=count).map(|place| share.powi(place as i32)).collect()
    }
    /// Counts a draft: of a model at this place, or after a short or long match.
    pub fn learn(&mut self, of: (Option<usize>, bool), is_kept: bool) {
        self.count(of, is_kept, WEIGHT);
    }
    /// Counts a draft of any sequence.
    pub fn learn_from_any(&mut self, of: (Option<usize>, bool), is_kept: bool) {
        self.count(of, is_kept, WEIGHT_OF_ANY);
    }
    fn count(&mut self, (place, is_long): (Option<usize>, bool), is_kept: bool, weight: f64) {
        let share = match place {
            Some(place) => &mut self.model[place.min(MOST_STEPS - 1)],
            None => &mut self.ngrams[usize::from(is_long)],
        };
        let [least, most] = BOUNDS;
        *share += weight * (f64::from(u8::from(is_kept)) - *share);
        *share = share.clamp(least, most);
    }
}

/// Drafts of a sequence: n-grams, shares, and the cache of the model that drafts.
#[derive(Debug)]
pub(super) struct SequenceDrafts {
    index: NgramIndex,
    pub survival: Survival,
    /// Number of leading tokens with rows in the cache of the model that drafts.
    pub filled: usize,
    /// Tokens behind these that it ran as drafts.
    pub ran: Vec<u32>,
    /// First position with a hidden row of the model's last step, and the rows from there on.
    pub hidden: (usize, Vec<usize>),
    /// Drafted and kept tokens.
    pub counted: [usize; 2],
}

impl SequenceDrafts {
    pub fn new(survival: Survival) -> SequenceDrafts {
        SequenceDrafts {
            index: NgramIndex::default(),
            survival,
            filled: 0,
            ran: Vec::new(),
            hidden: (0, Vec::new()),
            counted: [0, 0],
        }
    }
    /// Returns a draft that follows the last tokens where they occurred before.
    pub fn ngram(&mut self, tokens: &[u32]) -> Option<Draft> {
        self.index.extend(tokens);
        self.index.find(tokens)
    }
    /// Returns the hidden row of the position before this one.
    pub fn hidden_row(&self, position: usize) -> Option<usize> {
        let before = position.checked_sub(1)?;
        let at = before.checked_sub(self.hidden.0)?;
        self.hidden.1.get(at).copied()
    }
    /// Counts drafts that the model ran and that were chosen as filled, up to position `end`.
    pub fn keep_ran(&mut self, tokens: &[u32], end: usize) {
        for token in std::mem::take(&mut self.ran) {
            if self.filled >= end || tokens.get(self.filled) != Some(&token) {
                break;
            }
            self.filled += 1;
        }
        self.filled = self.filled.min(end);
    }
}
