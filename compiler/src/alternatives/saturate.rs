//! Saturation: rules on every term of every class, until nothing is new or the budget is spent.

use super::rules::Rule;
use super::term::{Class, Term};
use super::terms::TermGraph;
use rustc_hash::FxHashMap;
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
pub fn saturate(terms: &mut TermGraph, rules: &[Rule], budget: Budget) -> Ended {
    let (begin, first) = (Instant::now(), terms.egraph.total_size());
    let mut said = Said::default();
    for _ in 0..budget.rounds {
        let before = (terms.egraph.total_number_of_nodes(), terms.egraph.number_of_classes());
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
        if before == (terms.egraph.total_number_of_nodes(), terms.egraph.number_of_classes()) {
            return settled(terms, Ended::Saturated);
        }
    }
    settled(terms, Ended::Spent)
}

/// Every rule on one term of a class.
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

/// What rules have said already: the same again, as long as no class has changed that they looked at.
#[derive(Default)]
struct Said {
    changes: u32,
    /// The last change of each class.
    changed: FxHashMap<Class, u32>,
    /// By term, the change before rules were run on it, and the classes that they looked at.
    looked: FxHashMap<Term, (u32, Vec<Class>)>,
    /// Classes that are weights.
    weights: usize,
}

impl Said {
    fn change(&mut self, class: Class) {
        self.changes += 1;
        self.changed.insert(class, self.changes);
    }
    fn stands(&self, terms: &TermGraph, term: &Term) -> bool {
        let is_older = |when: u32, class: Class| {
            self.changed.get(&terms.egraph.find(class)).is_none_or(|&changed| changed <= when)
        };
        self.looked.get(term).is_some_and(|(when, read)| read.iter().all(|&class| is_older(*when, class)))
    }
    /// Joins classes of terms that have become equal.
    fn rebuild(&mut self, terms: &mut TermGraph) {
        let classes: Vec<Class> = terms.egraph.classes().map(|c| c.id).collect();
        terms.egraph.rebuild();
        for class in classes {
            let now = terms.egraph.find(class);
            if now != class {
                self.change(now);
            }
        }
        // What is moved of a weight is one: that is told without any union.
        let weights = terms.egraph.classes().filter(|c| c.data.weight).count();
        if std::mem::replace(&mut self.weights, weights) != weights {
            self.looked.clear();
        }
    }
}

/// That, unless a rule is wrong.
fn settled(terms: &TermGraph, ended: Ended) -> Ended {
    if terms.egraph.classes().any(|c| c.data.unsound) { Ended::Void } else { ended }
}
