//! What is true of a case, kept for the devices to come: its inputs, and what must come out of them, follow from the case alone, and an evaluator of f64 takes a fifth of the
//! time that a processor's kernels do.

use super::{Case, Env, Run, Want, runs, truth};
use gristmill_runtime::store::Key;
use gristmill_tensor::function::{self, ContentKey};
use gristmill_uop::function::Function;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of truths that are kept at most; who comes later computes them again.
const KEPT: usize = 2 << 30;

/// The runs of a case, and by content what they give in other functions than the one that is written: where products are in integers, targets of different vectors often
/// compute the same.
pub struct Truth {
    pub runs: Vec<Run>,
    meanings: Mutex<HashMap<function::Key, Meant>>,
}

/// What must come out of each run.
pub type Meant = Arc<Vec<Want>>;

/// Truths by their cases, and their bytes.
#[derive(Default)]
struct Kept {
    truths: HashMap<Key, Arc<Truth>>,
    bytes: usize,
}

static KNOWN: Mutex<Option<Kept>> = Mutex::new(None);

impl Truth {
    /// Of a case, computed where no other device has asked for it.
    pub fn for_case(case: &Case) -> Arc<Truth> {
        let key = Key::from_parts([&case.name, &case.function.key().to_string(), &format!("{:?} {:?}", case.fills, case.vars)]);
        let kept = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept().get_or_insert_default().truths.get(&key) {
            return known.clone();
        }
        let new = Arc::new(Truth { runs: runs(case), meanings: Mutex::default() });
        let bytes = new.runs.iter().map(Run::bytes).sum::<usize>();
        let mut kept = kept();
        let kept = kept.get_or_insert_default();
        if kept.bytes + bytes <= KEPT {
            kept.bytes += bytes;
            kept.truths.insert(key, new.clone());
        }
        new
    }
    /// The same for another function of the same slots.
    pub fn meant(&self, f: &Function) -> Meant {
        let mut meanings = self.meanings.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |r: &Run| truth(f, &r.vars, &r.before, &r.values, Env::new());
        meanings.entry(f.key()).or_insert_with(|| Arc::new(self.runs.iter().map(of).collect())).clone()
    }
}

impl Run {
    fn bytes(&self) -> usize {
        let of_values = |all: &[Vec<f64>]| all.iter().map(|v| 8 * v.len()).sum::<usize>();
        let of_outputs = self.want.iter().map(|(_, array, places)| 8 * (array.data.len() + places.len()));
        let before: usize = self.before.iter().map(Vec::len).sum();
        before + of_values(&self.values) + of_values(&self.slack) + of_outputs.sum::<usize>()
    }
}
