//! Extraction: picks a term for each needed e-class so that the total cost is low,
//! each class counted once.
//!
//! Usual extractors add up tree costs and count shared work once per reader. Here a class carries
//! the set of classes that it needs ([`Space::greedy`]). That is still greedy: the cheapest term of
//! one class may share less with another. Local search improves it ([`Space::improve`]), and for a
//! small part of a body branch and bound enumerates the extracts ([`Space::best`]).

use super::estimate::Estimate;
use super::import::Written;
use super::term::{Class, Term};
use super::terms::TermGraph;
use rustc_hash::FxHashMap;

/// A candidate term of an e-class.
#[derive(Clone, Debug)]
pub struct ClassTerm {
    /// The term (e-node).
    pub term: Term,
    /// Indices of the child classes.
    pub children: Vec<usize>,
    /// Estimated seconds, without the children.
    pub seconds: f64,
}

/// Index of the chosen term of each class; `None` for a class that is not needed.
pub type Picks = Vec<Option<usize>>;

/// E-classes and their candidate terms. The written term, if there is one, comes first.
pub struct Space {
    /// E-class of each index.
    pub classes: Vec<Class>,
    /// Candidate terms of each class.
    pub choices: Vec<Vec<ClassTerm>>,
    /// Whether the class occurs in the function as written.
    written: Vec<bool>,
    numbers: FxHashMap<Class, usize>,
}

/// Treatment of a class in a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Held {
    /// Every candidate is tried.
    Open,
    /// The class keeps its initial choice; its children are searched.
    Settled,
    /// The class and all that it needs exist already and cost nothing.
    Given,
}

impl Held {
    /// `Given` if `given`, else `Settled` if `settled`, else `Open`.
    pub fn new(given: bool, settled: bool) -> Held {
        match (given, settled) {
            (true, _) => Held::Given,
            (false, true) => Held::Settled,
            (false, false) => Held::Open,
        }
    }
}

/// An extract with its cost.
#[derive(Clone, Debug)]
pub struct Extract {
    /// Choice of each class.
    pub picks: Picks,
    /// Estimated seconds in total.
    pub seconds: f64,
}

/// Limit on the nodes of a branch-and-bound search. Every site of the models that
/// were tried is searched exhaustively within it.
const STEPS: usize = 20_000;
/// Limit on passes over all classes. A few suffice, since most classes are
/// numbered after their sources.
const PASSES: usize = 16;

impl Space {
    /// Collects the candidates of every class, with their estimates.
    pub fn new(terms: &TermGraph, written: &Written, estimate: &Estimate) -> Space {
        let mut classes: Vec<Class> = terms.egraph.classes().map(|c| c.id).collect();
        classes.sort_unstable();
        let numbers: FxHashMap<Class, usize> =
            classes.iter().enumerate().map(|(i, &c)| (c, i)).collect();
        let choices_of = |&class: &Class| {
            let first = written.term.get(&class);
            let others = terms.egraph[class]
                .nodes
                .iter()
                .filter(|t| Some(*t) != first && !written.shadows.contains(*t));
            let choice = |t: &Term| ClassTerm {
                term: t.clone(),
                children: t
                    .children
                    .iter()
                    .map(|c| numbers[&terms.egraph.find(*c)])
                    .collect(),
                seconds: estimate.seconds(class, t),
            };
            first.into_iter().chain(others).map(choice).collect()
        };
        let choices = classes.iter().map(choices_of).collect();
        let written = classes
            .iter()
            .map(|c| written.term.contains_key(c))
            .collect();
        Space {
            classes,
            choices,
            written,
            numbers,
        }
    }
    /// Returns the index of a class.
    pub fn number(&self, terms: &TermGraph, class: Class) -> usize {
        self.numbers[&terms.egraph.find(class)]
    }
    /// Returns the choices of the function as written.
    pub fn as_written(&self) -> Picks {
        self.written.iter().map(|w| w.then_some(0)).collect()
    }
    fn pick<'a>(&'a self, picks: &Picks, class: usize) -> Option<&'a ClassTerm> {
        picks[class].map(|p| &self.choices[class][p])
    }
    /// Returns the classes that `roots` need, sources first.
    ///
    /// `None` if a class has no choice, or if there is a cycle.
    pub fn needed(&self, picks: &Picks, roots: &[usize]) -> Option<Vec<usize>> {
        let mut state = vec![0u8; self.classes.len()];
        let (mut order, mut stack) = (Vec::new(), Vec::new());
        for &root in roots {
            stack.push((root, 0));
            while let Some((class, next)) = stack.pop() {
                if next == 0 {
                    match state[class] {
                        2 => continue,
                        1 => return None,
                        _ => state[class] = 1,
                    }
                }
                let choice = self.pick(picks, class)?;
                match choice.children.get(next) {
                    Some(&child) => {
                        stack.push((class, next + 1));
                        match state[child] {
                            0 => stack.push((child, 0)),
                            1 => return None,
                            _ => {}
                        }
                    }
                    None => {
                        state[class] = 2;
                        order.push(class);
                    }
                }
            }
        }
        Some(order)
    }
    /// Total seconds of the classes that `roots` need.
    pub fn seconds(&self, picks: &Picks, roots: &[usize]) -> Option<f64> {
        let needed = self.needed(picks, roots)?;
        Some(
            needed
                .iter()
                .filter_map(|&c| self.pick(picks, c))
                .map(|c| c.seconds)
                .sum(),
        )
    }
    /// Picks for every class the candidate with the cheapest set of needed classes, iterated
    /// to a fixed point.
    pub fn greedy(&self) -> Picks {
        let n = self.classes.len();
        let mut sets: Vec<Option<Vec<u64>>> = vec![None; n];
        let mut picks: Picks = vec![None; n];
        // Bit sets of the classes that changed in the previous pass and in this one.
        let (mut before, mut now) = (vec![u64::MAX; n.div_ceil(64)], vec![0u64; n.div_ceil(64)]);
        for _ in 0..PASSES {
            for class in 0..n {
                let stands = |&child: &usize| {
                    let changed = |word: usize| before[word] | now[word];
                    let of_set = |set: &[u64]| {
                        set.iter()
                            .enumerate()
                            .all(|(i, word)| word & changed(i) == 0)
                    };
                    changed(child / 64) >> (child % 64) & 1 == 0
                        && sets[child].as_deref().is_none_or(of_set)
                };
                if sets[class].is_some()
                    && self.choices[class]
                        .iter()
                        .flat_map(|c| &c.children)
                        .all(stands)
                {
                    continue;
                }
                let Some((i, set)) = self.cheapest(class, &sets, &picks) else {
                    continue;
                };
                if picks[class] != Some(i) || sets[class].as_ref() != Some(&set) {
                    now[class / 64] |= 1 << (class % 64);
                }
                (picks[class], sets[class]) = (Some(i), Some(set));
            }
            if now.iter().all(|&word| word == 0) {
                break;
            }
            before = std::mem::replace(&mut now, vec![0; n.div_ceil(64)]);
        }
        picks
    }
    /// The cheapest candidate of a class, and the set of classes that it needs.
    fn cheapest(
        &self,
        class: usize,
        sets: &[Option<Vec<u64>>],
        picks: &Picks,
    ) -> Option<(usize, Vec<u64>)> {
        let mut best: Option<(f64, usize, Vec<u64>)> = None;
        for (i, choice) in self.choices[class].iter().enumerate() {
            let Some(set) = union(sets, &choice.children, class, sets.len()) else {
                continue;
            };
            let of = |c: usize| {
                if c == class {
                    choice.seconds
                } else {
                    self.pick(picks, c).map_or(0.0, |c| c.seconds)
                }
            };
            let seconds: f64 = members(&set).map(of).sum();
            if best.as_ref().is_none_or(|b| seconds < b.0) {
                best = Some((seconds, i, set));
            }
        }
        best.map(|(_, i, set)| (i, set))
    }
    /// Changes single choices while that lowers the cost of `roots` (local
    /// search). Returns the cost.
    pub fn improve(&self, picks: &mut Picks, roots: &[usize]) -> Option<f64> {
        let mut least = self.seconds(picks, roots)?;
        loop {
            let before = least;
            for class in self.needed(picks, roots)? {
                for i in 0..self.choices[class].len() {
                    if picks[class] == Some(i) {
                        continue;
                    }
                    let old = picks[class].replace(i);
                    match self.seconds(picks, roots) {
                        Some(seconds) if seconds < least => least = seconds,
                        _ => picks[class] = old,
                    }
                }
            }
            if least >= before {
                return Some(least);
            }
        }
    }
    /// Returns the best other candidate of a class, all else unchanged, and the seconds
    /// it adds to `roots`.
    pub fn runner_up(&self, class: usize, picks: &Picks, roots: &[usize]) -> Option<(usize, f64)> {
        if self.choices[class].len() < 2 {
            return None;
        }
        let least = self.seconds(picks, roots)?;
        let with = |i: usize| {
            let mut other = picks.clone();
            other[class] = Some(i);
            Some((i, self.seconds(&other, roots)? - least))
        };
        let others = (0..self.choices[class].len()).filter(|&i| picks[class] != Some(i));
        others.filter_map(with).min_by(|a, b| a.1.total_cmp(&b.1))
    }
    /// Returns the cheapest extracts of `outputs`, in order of cost, and whether
    /// the search was exhaustive.
    ///
    /// At most `most` extracts, each at most `factor` times as expensive as the cheapest. Classes
    /// that are not open keep their choice of `start`.
    pub fn best(
        &self,
        outputs: &[usize],
        held: &[Held],
        start: &Picks,
        most: usize,
        factor: f64,
    ) -> (Vec<Extract>, bool) {
        let picks = (0..self.classes.len())
            .map(|c| start[c].filter(|_| held[c] == Held::Given))
            .collect();
        let mut search = Search {
            space: self,
            held,
            start,
            found: vec![],
            picks,
            most,
            factor,
            steps: 0,
            outputs,
        };
        search.go(outputs.to_vec(), 0.0);
        let complete = search.steps < STEPS;
        (search.found, complete)
    }
}

/// Union of the children's sets and `class`; `None` if a child needs `class`.
fn union(
    sets: &[Option<Vec<u64>>],
    children: &[usize],
    class: usize,
    n: usize,
) -> Option<Vec<u64>> {
    let mut all = vec![0u64; n.div_ceil(64)];
    for &child in children {
        let set = sets[child].as_ref()?;
        all.iter_mut().zip(set).for_each(|(a, b)| *a |= b);
    }
    let (word, bit) = (class / 64, 1 << (class % 64));
    if all[word] & bit != 0 {
        return None;
    }
    all[word] |= bit;
    Some(all)
}

fn members(set: &[u64]) -> impl Iterator<Item = usize> + '_ {
    let bits = |(i, &word): (usize, &u64)| {
        (0..64)
            .filter(move |b| word >> b & 1 == 1)
            .map(move |b| i * 64 + b)
    };
    set.iter().enumerate().flat_map(bits)
}

/// Branch-and-bound search over all extracts.
struct Search<'a> {
    space: &'a Space,
    held: &'a [Held],
    start: &'a Picks,
    found: Vec<Extract>,
    picks: Picks,
    most: usize,
    factor: f64,
    steps: usize,
    outputs: &'a [usize],
}

impl Search<'_> {
    /// Cost above which an extract is dropped.
    fn bound(&self) -> f64 {
        let by_factor = self
            .found
            .first()
            .map_or(f64::INFINITY, |b| b.seconds * self.factor);
        let by_count = self
            .found
            .get(self.most - 1)
            .map_or(f64::INFINITY, |e| e.seconds);
        by_factor.min(by_count)
    }
    fn go(&mut self, mut open: Vec<usize>, seconds: f64) {
        self.steps += 1;
        if self.steps >= STEPS || seconds >= self.bound() {
            return;
        }
        let next = loop {
            match open.pop() {
                Some(class) if self.held[class] == Held::Given || self.picks[class].is_some() => {}
                other => break other,
            }
        };
        let Some(class) = next else {
            if self.space.needed(&self.picks, self.outputs).is_some() {
                let at = self.found.partition_point(|e| e.seconds <= seconds);
                self.found.insert(
                    at,
                    Extract {
                        picks: self.picks.clone(),
                        seconds,
                    },
                );
                let bound = self.found[0].seconds * self.factor;
                self.found.truncate(self.most);
                self.found.retain(|e| e.seconds <= bound);
            }
            return;
        };
        let tried = match (self.held[class], self.start[class]) {
            (Held::Settled, Some(only)) => only..only + 1,
            _ => 0..self.space.choices[class].len(),
        };
        for i in tried {
            let choice = &self.space.choices[class][i];
            self.picks[class] = Some(i);
            let open = open.iter().chain(&choice.children).copied().collect();
            self.go(open, seconds + choice.seconds);
        }
        self.picks[class] = None;
    }
}
