//! Equality saturation: applies all rules to all terms until nothing changes or
//! the budget is spent.

use super::rules::Rule;
use super::term::{Class, Term};
use super::terms::TermGraph;
use gristmill_uop::clock::Instant;
use rustc_hash::FxHashMap;
use std::time::Duration;

/// Limits of a saturation.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Terms that rules may add. The usual limit, so that the result does not depend on timing.
    pub terms: usize,
    /// Passes over all e-classes.
    pub rounds: usize,
    /// Wall-clock limit for extremely slow machines. If it is exceeded, the result is discarded and
    /// the function stays as written.
    pub time: Duration,
}

impl Budget {
    /// GLM's MoE layer reaches 511 terms for many tokens, about an eighth of this limit.
    pub const USUAL: Budget = Budget {
        terms: 4000,
        rounds: 12,
        time: Duration::from_secs(5),
    };
}

/// Reason that a saturation ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// Fixed point: no rule adds anything.
    Saturated,
    /// The term or pass limit was reached. The result is valid but may be incomplete.
    Spent,
    /// The result must be discarded: a rule merged different shapes, or time ran out.
    Void,
}

/// Applies rules until a fixed point or a limit is reached.
pub fn saturate(terms: &mut TermGraph, rules: &[Rule], budget: Budget) -> Ended {
    let (begin, first) = (Instant::now(), terms.egraph.total_size());
    let mut said = Said::default();
    for _ in 0..budget.rounds {
        let before = (
            terms.egraph.total_number_of_nodes(),
            terms.egraph.number_of_classes(),
        );
        let mut classes: Vec<Class> = terms.egraph.classes().map(|c| c.id).collect();
        classes.sort_unstable();
        for class in classes {
            for term in terms.terms(class) {
                if !said.stands(terms, &term) {
                    apply(terms, rules, class, &term, &mut said);
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
        said.rebuild(terms);
        if before
            == (
                terms.egraph.total_number_of_nodes(),
                terms.egraph.number_of_classes(),
            )
        {
            return settled(terms, Ended::Saturated);
        }
    }
    settled(terms, Ended::Spent)
}

/// Applies every rule to one term of a class.
fn apply(terms: &mut TermGraph, rules: &[Rule], class: Class, term: &Term, said: &mut Said) {
    terms.read.borrow_mut().clear();
    let when = said.changes;
    for rule in rules {
        let found = (rule.apply)(terms, term);
        if rule.better && !found.is_empty() && !terms.worse.contains(term) {
            terms.worse.push(term.clone());
        }
        for equal in found {
            if terms.egraph.union(class, equal) {
                said.change(terms.egraph.find(class));
            }
        }
    }
    let mut read = std::mem::take(&mut *terms.read.borrow_mut());
    read.sort_unstable();
    read.dedup();
    said.looked.insert(term.clone(), (when, read));
}

/// Cache of rule applications: a term is skipped while no class that its rules read has changed.
#[derive(Default)]
struct Said {
    changes: u32,
    /// Number of the last change of each class.
    changed: FxHashMap<Class, u32>,
    /// For each term: the change counter before its rules ran, and the classes that they read.
    looked: FxHashMap<Term, (u32, Vec<Class>)>,
    /// Number of classes known to be weights.
    weights: usize,
}

impl Said {
    fn change(&mut self, class: Class) {
        self.changes += 1;
        self.changed.insert(class, self.changes);
    }
    fn stands(&self, terms: &TermGraph, term: &Term) -> bool {
        let is_older = |when: u32, class: Class| {
            self.changed
                .get(&terms.egraph.find(class))
                .is_none_or(|&changed| changed <= when)
        };
        self.looked
            .get(term)
            .is_some_and(|(when, read)| read.iter().all(|&class| is_older(*when, class)))
    }
    /// Restores congruence of the e-graph and records the merged classes.
    fn rebuild(&mut self, terms: &mut TermGraph) {
        let classes: Vec<Class> = terms.egraph.classes().map(|c| c.id).collect();
        terms.egraph.rebuild();
        for class in classes {
            let now = terms.egraph.find(class);
            if now != class {
                self.change(now);
            }
        }
        // A view of a weight becomes a weight without any merge, so the cache is cleared.
        let weights = terms.egraph.classes().filter(|c| c.data.weight).count();
        if std::mem::replace(&mut self.weights, weights) != weights {
            self.looked.clear();
        }
    }
}

/// Returns `ended`, or `Void` if a rule merged different shapes.
fn settled(terms: &TermGraph, ended: Ended) -> Ended {
    if terms.egraph.classes().any(|c| c.data.unsound) {
        Ended::Void
    } else {
        ended
    }
}
