//! Saturation: rules on every term of every class, until nothing is new or the budget is spent.

use super::rules::Rule;
use super::term::Class;
use super::terms::Terms;
use std::time::{Duration, Instant};

/// What a saturation may take.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Terms that rules may add. It ends by this count wherever it can: what is found must not depend on the clock.
    pub terms: usize,
    /// Rounds over all classes.
    pub rounds: usize,
    /// In case a machine is slow beyond reason: then nothing of the function is believed, and it stays as it is written.
    pub time: Duration,
}

impl Budget {
    /// GLM's layer with experts has 511 terms for many tokens, those of rules with them: ten times that is a body that nobody has written.
    pub const USUAL: Budget = Budget { terms: 4000, rounds: 12, time: Duration::from_secs(5) };
}

/// How a saturation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// No rule says anything new.
    Saturated,
    /// Terms or rounds are spent: what was found holds, and there may be more.
    Spent,
    /// Nothing may be believed: a rule is wrong, or the time was over.
    Void,
}

/// Runs rules.
pub fn saturate(terms: &mut Terms, rules: &[Rule], budget: Budget) -> Ended {
    let (begin, first) = (Instant::now(), terms.egraph.total_size());
    for _ in 0..budget.rounds {
        let before = (terms.egraph.total_number_of_nodes(), terms.egraph.number_of_classes());
        let mut classes: Vec<Class> = terms.egraph.classes().map(|c| c.id).collect();
        classes.sort_unstable();
        for class in classes {
            for term in terms.terms(class) {
                for rule in rules {
                    let found = (rule.apply)(terms, &term);
                    if rule.better && !found.is_empty() && !terms.worse.contains(&term) {
                        terms.worse.push(term.clone());
                    }
                    for equal in found {
                        terms.egraph.union(class, equal);
                    }
                }
            }
            if begin.elapsed() > budget.time {
                terms.egraph.rebuild();
                return Ended::Void;
            }
            if terms.egraph.total_size() - first > budget.terms {
                terms.egraph.rebuild();
                return settled(terms, Ended::Spent);
            }
        }
        terms.egraph.rebuild();
        if before == (terms.egraph.total_number_of_nodes(), terms.egraph.number_of_classes()) {
            return settled(terms, Ended::Saturated);
        }
    }
    settled(terms, Ended::Spent)
}

/// That, unless a rule is wrong.
fn settled(terms: &Terms, ended: Ended) -> Ended {
    if terms.egraph.classes().any(|c| c.data.unsound) { Ended::Void } else { ended }
}
