//! How well modelled and measured times agree on the order of a decision's plans.

use super::timing::{Coefficients, Timing};
use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};

/// Standard errors by which two plans must differ, and the least difference as a part of the step.
const ERRORS: f64 = 2.0;
const NOISE: f64 = 0.002;

/// Kendall's tau of one kind of decision.
pub struct Agreement {
    pub kind: String,
    /// Pairs of plans whose measured times differ by more than noise.
    pub pairs: usize,
    /// By the costs that the decision had, and by the features of the kernels under the
    /// coefficients before and after the fit.
    pub taus: [f64; 3],
}

impl Display for Agreement {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let [asked, before, after] = self.taus;
        write!(
            f,
            "{:<14} {:>6} {asked:>8.2} {before:>8.2} {after:>8.2}",
            self.kind, self.pairs
        )
    }
}

/// Differences of a plan from the chosen one: measured, then by the three models.
type Differences = [f64; 4];

/// Returns the agreement by kind of decision, then over all of them.
pub fn orders(timings: &[Timing], by: [&Coefficients; 2]) -> Vec<Agreement> {
    // Plans of one decision are compared among each other and with the chosen one.
    let mut decisions: BTreeMap<_, (Vec<Differences>, f64)> = BTreeMap::new();
    for t in timings {
        let model = |by: &Coefficients| {
            let [base, other] =
                [0, 1].map(|i| t.kernels[i].iter().map(|k| k.modelled(by)).sum::<f64>());
            other - base
        };
        let own = [t.seconds[1] - t.seconds[0], t.modelled[1] - t.modelled[0]];
        let differences = [own[0], own[1], model(by[0]), model(by[1])];
        let key = (&t.kind, &t.model, t.tokens, t.depth, &t.keys);
        let group = decisions.entry(key).or_insert((vec![[0.0; 4]], 0.0));
        group.0.push(differences);
        group.1 = group.1.max((ERRORS * t.error).max(NOISE) * t.seconds[0]);
    }
    let mut kinds: BTreeMap<String, (usize, [i64; 3])> = BTreeMap::new();
    for (key, (plans, noise)) in &decisions {
        for kind in [key.0.as_str(), "all"] {
            let (pairs, signs) = kinds.entry(kind.to_owned()).or_default();
            for (i, a) in plans.iter().enumerate() {
                for b in plans[i + 1..]
                    .iter()
                    .filter(|b| (a[0] - b[0]).abs() > *noise)
                {
                    *pairs += 1;
                    for (sum, at) in signs.iter_mut().zip(1..) {
                        *sum += agrees(a[0] - b[0], a[at] - b[at]);
                    }
                }
            }
        }
    }
    let order = |(kind, (pairs, signs)): (String, (usize, [i64; 3]))| Agreement {
        kind,
        pairs,
        taus: signs.map(|sum| sum as f64 / pairs.max(1) as f64),
    };
    kinds.into_iter().map(order).collect()
}

/// 1 if two differences have one sign, -1 if they do not, 0 if the model sees no difference.
fn agrees(measured: f64, modelled: f64) -> i64 {
    match modelled {
        0.0 => 0,
        _ if (measured > 0.0) == (modelled > 0.0) => 1,
        _ => -1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fit::timing::KernelTime;

    fn timing(keys: &str, modelled: [f64; 2], seconds: [f64; 2]) -> Timing {
        let kernel = |seconds: f64| KernelTime {
            seconds,
            fixed: BTreeMap::from([("launch".to_owned(), seconds)]),
            memory: BTreeMap::new(),
            compute: BTreeMap::new(),
        };
        Timing {
            machine: "m".into(),
            facts: BTreeMap::new(),
            model: "m".into(),
            tokens: 1,
            depth: 0,
            kind: "nest".into(),
            keys: vec![keys.into()],
            modelled,
            seconds,
            error: 0.001,
            gap: 0.0,
            kernels: seconds.map(|s| vec![kernel(s)]),
        }
    }

    #[test]
    fn agreement_is_counted_over_pairs_above_the_noise() {
        let by = BTreeMap::from([("launch".to_owned(), 1.0)]);
        let timings = [
            // Agrees, disagrees, and is noise.
            timing("a", [1.0, 2.0], [1.0, 1.5]),
            timing("b", [1.0, 2.0], [1.0, 0.5]),
            timing("c", [1.0, 2.0], [1.0, 1.001]),
        ];
        let found = orders(&timings, [&by, &by]);
        assert_eq!(found.len(), 2);
        assert_eq!((found[1].kind.as_str(), found[1].pairs), ("nest", 2));
        assert_eq!(found[1].taus, [0.0, 1.0, 1.0]);
        // Three plans of one decision are three pairs.
        let timings = [
            timing("a", [1.0, 2.0], [1.0, 1.5]),
            timing("a", [1.0, 3.0], [1.0, 2.0]),
        ];
        let found = orders(&timings, [&by, &by]);
        assert_eq!((found[1].pairs, found[1].taus[0]), (3, 1.0));
    }
}
