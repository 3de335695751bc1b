//! Extraction: a term for each class that is needed, so that the terms together are cheap, each counted once however many read it.
//!
//! Costs of trees, as extractors usually add them up, count shared work once a reader. Here a class has the set of all that it needs ([`Space::greedy`]), which is greedy
//! still, as what is cheapest for one class may share less with another; single changes improve it ([`Space::improve`]), and of a small part of a body all extracts are
//! looked at, as far as their cost allows ([`Space::best`]).

use super::estimate::Estimate;
use super::import::Written;
use super::term::{Class, Term};
use super::terms::TermGraph;
use rustc_hash::FxHashMap;

/// One way to compute a class.
#[derive(Clone, Debug)]
pub struct ClassTerm {
    /// By that term.
    pub term: Term,
    /// Of the classes of these numbers.
    pub children: Vec<usize>,
    /// What it takes, children aside.
    pub seconds: f64,
}

/// The choice of each class, by its number; a class that is not needed may have none.
pub type Picks = Vec<Option<usize>>;

/// Classes with what may be chosen for each. The first choice is how it was written, if it was.
pub struct Space {
    /// Classes by number.
    pub classes: Vec<Class>,
    /// Their choices.
    pub choices: Vec<Vec<ClassTerm>>,
    /// Was a class written?
    written: Vec<bool>,
    numbers: FxHashMap<Class, usize>,
}

/// What a search does with a class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Held {
    /// It tries every choice.
    Open,
    /// It keeps the choice that it began with, and looks below it.
    Settled,
    /// That is there anyhow, with all that it needs.
    Given,
}

impl Held {
    /// Of a class that is there anyhow, or whose choice is settled.
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
    /// What is chosen.
    pub picks: Picks,
    /// Seconds, by the estimate.
    pub seconds: f64,
}

/// Steps of a search over all extracts: enough for every site of GLM, V2-Lite and Youtu, all of which are searched to their end.
const STEPS: usize = 20_000;
/// Passes over all classes: as classes are numbered with sources first, but for those that rules made, a few settle it.
const PASSES: usize = 16;

impl Space {
    /// What may be chosen.
    pub fn new(terms: &TermGraph, written: &Written, estimate: &Estimate) -> Space {
        let mut classes: Vec<Class> = terms.egraph.classes().map(|c| c.id).collect();
        classes.sort_unstable();
        let numbers: FxHashMap<Class, usize> = classes.iter().enumerate().map(|(i, &c)| (c, i)).collect();
        let choices_of = |&class: &Class| {
            let first = written.term.get(&class);
            let others =
                terms.egraph[class].nodes.iter().filter(|t| Some(*t) != first && !written.shadows.contains(*t));
            let choice = |t: &Term| ClassTerm {
                term: t.clone(),
                children: t.children.iter().map(|c| numbers[&terms.egraph.find(*c)]).collect(),
                seconds: estimate.seconds(class, t),
            };
            first.into_iter().chain(others).map(choice).collect()
        };
        let choices = classes.iter().map(choices_of).collect();
        let written = classes.iter().map(|c| written.term.contains_key(c)).collect();
        Space { classes, choices, written, numbers }
    }
    /// The number of a class.
    pub fn number(&self, terms: &TermGraph, class: Class) -> usize {
        self.numbers[&terms.egraph.find(class)]
    }
    /// Everything as it was written.
    pub fn as_written(&self) -> Picks {
        self.written.iter().map(|w| w.then_some(0)).collect()
    }
    fn pick<'a>(&'a self, picks: &Picks, class: usize) -> Option<&'a ClassTerm> {
        picks[class].map(|p| &self.choices[class][p])
    }
    /// The classes that `roots` need, sources first; none if something has no choice, or needs itself.
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
    /// Seconds of all that `roots` need.
    pub fn seconds(&self, picks: &Picks, roots: &[usize]) -> Option<f64> {
        let needed = self.needed(picks, roots)?;
        Some(needed.iter().filter_map(|&c| self.pick(picks, c)).map(|c| c.seconds).sum())
    }
    /// For every class the choice with which all that it needs costs least, given the choices of what it needs.
    pub fn greedy(&self) -> Picks {
        let n = self.classes.len();
        let mut sets: Vec<Option<Vec<u64>>> = vec![None; n];
        let mut picks: Picks = vec![None; n];
        // What has changed in the pass before, and in this one.
        let (mut before, mut now) = (vec![u64::MAX; n.div_ceil(64)], vec![0u64; n.div_ceil(64)]);
        for _ in 0..PASSES {
            for class in 0..n {
                let stands = |&child: &usize| {
                    let changed = |word: usize| before[word] | now[word];
                    let of_set = |set: &[u64]| set.iter().enumerate().all(|(i, word)| word & changed(i) == 0);
                    changed(child / 64) >> (child % 64) & 1 == 0 && sets[child].as_deref().is_none_or(of_set)
                };
                if sets[class].is_some() && self.choices[class].iter().flat_map(|c| &c.children).all(stands) {
                    continue;
                }
                let Some((i, set)) = self.cheapest(class, &sets, &picks) else { continue };
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
    /// The choice of a class with which all that it needs costs least, and that.
    fn cheapest(&self, class: usize, sets: &[Option<Vec<u64>>], picks: &Picks) -> Option<(usize, Vec<u64>)> {
        let mut best: Option<(f64, usize, Vec<u64>)> = None;
        for (i, choice) in self.choices[class].iter().enumerate() {
            let Some(set) = union(sets, &choice.children, class, sets.len()) else { continue };
            let of =
                |c: usize| if c == class { choice.seconds } else { self.pick(picks, c).map_or(0.0, |c| c.seconds) };
            let seconds: f64 = members(&set).map(of).sum();
            if best.as_ref().is_none_or(|b| seconds < b.0) {
                best = Some((seconds, i, set));
            }
        }
        best.map(|(_, i, set)| (i, set))
    }
    /// Changes single choices as long as one makes `roots` cheaper.
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
    /// The cheapest of the other choices of a class, all else being as chosen, and how many seconds longer `roots` take with it.
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
    /// The cheapest extracts of `outputs`, at most so many and none that costs more than `factor` times the cheapest, cheapest first; what is not open keeps the choice
    /// of `start`. And whether all extracts were looked at.
    pub fn best(
        &self,
        outputs: &[usize],
        held: &[Held],
        start: &Picks,
        most: usize,
        factor: f64,
    ) -> (Vec<Extract>, bool) {
        let picks = (0..self.classes.len()).map(|c| start[c].filter(|_| held[c] == Held::Given)).collect();
        let mut search = Search { space: self, held, start, found: vec![], picks, most, factor, steps: 0, outputs };
        search.go(outputs.to_vec(), 0.0);
        let complete = search.steps < STEPS;
        (search.found, complete)
    }
}

/// The classes that children need, with `class`; none if they need that.
fn union(sets: &[Option<Vec<u64>>], children: &[usize], class: usize, n: usize) -> Option<Vec<u64>> {
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
    let bits = |(i, &word): (usize, &u64)| (0..64).filter(move |b| word >> b & 1 == 1).map(move |b| i * 64 + b);
    set.iter().enumerate().flat_map(bits)
}

/// A search over all extracts, by branch and bound.
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
    /// What costs more than this is not kept.
    fn bound(&self) -> f64 {
        let by_factor = self.found.first().map_or(f64::INFINITY, |b| b.seconds * self.factor);
        let by_count = self.found.get(self.most - 1).map_or(f64::INFINITY, |e| e.seconds);
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
                self.found.insert(at, Extract { picks: self.picks.clone(), seconds });
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
