//! Caches reference results, which depend on the case alone, for all devices of a process.
//!
//! The f64 evaluator takes a fifth of the time of a CPU's kernels.

use super::{Case, Env, Run, Want, runs, truth};
use gristmill_runtime::store::Key;
use gristmill_tensor::function::{self, ContentKey};
use gristmill_uop::function::Function;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of cached results; beyond that they are computed again.
const KEPT: usize = 2 << 30;

/// The runs of a case, with results of variants of its function by content key.
///
/// Integer contractions change the function, in the same way for many targets of other vector
/// widths.
pub struct Truth {
    pub runs: Vec<Run>,
    meanings: Mutex<HashMap<function::Key, Meant>>,
}

/// Expected outputs of each run.
pub type Meant = Arc<Vec<Want>>;

/// Cached results by case, and their size in bytes.
#[derive(Default)]
struct Kept {
    truths: HashMap<Key, Arc<Truth>>,
    bytes: usize,
}

static KNOWN: Mutex<Option<Kept>> = Mutex::new(None);

impl Truth {
    /// Returns the results of a case, computed if they are not cached.
    pub fn for_case(case: &Case) -> Arc<Truth> {
        let key = Key::from_parts([
            &case.name,
            &case.function.key().to_string(),
            &format!("{:?} {:?}", case.fills, case.vars),
        ]);
        let kept = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept().get_or_insert_default().truths.get(&key) {
            return known.clone();
        }
        let new = Arc::new(Truth {
            runs: runs(case),
            meanings: Mutex::default(),
        });
        let bytes = new.runs.iter().map(Run::bytes).sum::<usize>();
        let mut kept = kept();
        let kept = kept.get_or_insert_default();
        if kept.bytes + bytes <= KEPT {
            kept.bytes += bytes;
            kept.truths.insert(key, new.clone());
        }
        new
    }
    /// Returns the expected outputs of a variant of the function with the same slots.
    pub fn meant(&self, f: &Function) -> Meant {
        let mut meanings = self.meanings.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |r: &Run| truth(f, &r.vars, &r.before, &r.values, Env::new());
        meanings
            .entry(f.key())
            .or_insert_with(|| Arc::new(self.runs.iter().map(of).collect()))
            .clone()
    }
}

impl Run {
    fn bytes(&self) -> usize {
        let of_values = |all: &[Vec<f64>]| all.iter().map(|v| 8 * v.len()).sum::<usize>();
        let of_outputs = self
            .want
            .iter()
            .map(|(_, array, places)| 8 * (array.data.len() + places.len()));
        let before: usize = self.before.iter().map(Vec::len).sum();
        before + of_values(&self.values) + of_values(&self.slack) + of_outputs.sum::<usize>()
    }
}
