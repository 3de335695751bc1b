//! Alternatives: of all the forms of a function's body that rules know, the one whose price is least.
//!
//! A model says what a layer computes, as its description does; that keys may be computed of a cache or queries moved into it, and which is cheaper for how many tokens,
//! is found here. The body becomes an e-graph ([`import`]), to which rules add what is equal ([`rules`], [`saturate`]), sizes being symbols. An estimate for each term
//! ([`estimate`]) steers the choice of extracts ([`extract`]); where they differ ([`site`]) the best few, and what was written, are really scheduled and priced
//! ([`region`]), and that is an ordinary [`Decision`].
//!
//! A weight lies in memory in one way, whatever step reads it, and each step is a function of its own. So a form counts only where weights lie as in the form that is best
//! for steps of one row, by the estimate: all steps of a model come to the same then.

pub mod estimate;
pub mod extract;
pub mod import;
mod rebuild;
mod region;
pub mod report;
pub mod rules;
pub mod saturate;
mod site;
pub mod term;
pub mod terms;
mod view;

use crate::decision::{Alternative, Decider, Decision};
use crate::decompose::int8;
use crate::layout::Layout;
use estimate::{Estimate, Rows};
use extract::{Extract, Picks, Space};
use gristmill_uop::function::Function;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id};
use import::{Body, Written};
use rebuild::Rebuild;
use report::{Found, Report};
use rules::Rule;
use saturate::{Budget, Ended, saturate};
use site::{Site, sites};

/// Forms of a site that are scheduled, besides the written one.
const FORMS: usize = 4;
/// A form that is estimated to take so many times as long as the best is not scheduled: estimates are off by less.
const OFF: f64 = 4.0;
/// The part of the written form's price that another must save. Prices of parts do not see what they share with their surroundings.
const MARGIN: f64 = 0.05;

/// The function in the form that is decided on; none where that is the written one.
pub fn choose(function: &Function, target: &Target, decider: &mut Decider) -> Option<Function> {
    if !target.alternatives {
        return None;
    }
    considered(function, target, decider, &rules::all(), Budget::USUAL).0
}

/// The same by these rules and within that budget, and what was found.
pub fn considered(
    function: &Function,
    target: &Target,
    decider: &mut Decider,
    rules: &[Rule],
    budget: Budget,
) -> (Option<Function>, Report) {
    let roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
    let mut body = Body::of(&function.graph, &roots);
    let ended = saturate(&mut body.terms, rules, budget);
    let mut report = Report::new(&body.terms, ended);
    if ended == Ended::Void {
        return (None, report);
    }
    let written = body.written();
    let Some(mut of) = Considered::new(function, target, &body, &written) else { return (None, report) };
    for site in of.sites() {
        report.sites.extend(of.decide(&site, decider));
    }
    (of.changed(), report)
}

/// Every form of a function that these rules lead to, at most so many, the cheapest by the estimate first: for tests, which evaluate all of them.
pub fn every_form(function: &Function, target: &Target, rules: &[Rule], most: usize) -> Vec<Function> {
    let roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
    let mut body = Body::of(&function.graph, &roots);
    if saturate(&mut body.terms, rules, Budget::USUAL) == Ended::Void {
        return vec![];
    }
    let known = body.written();
    let Some(mut of) = Considered::new(function, target, &body, &known) else { return vec![] };
    let given = vec![false; of.space.classes.len()];
    let (extracts, _) = of.space.best(&of.roots, &given, &of.written, most, f64::INFINITY);
    extracts.iter().filter_map(|e| of.function_of(&e.picks)).collect()
}

/// A function while its form is decided on.
struct Considered<'a> {
    function: &'a Function,
    target: &'a Target,
    /// The function's graph, with the nodes of forms.
    graph: Graph,
    space: Space,
    roots: Vec<usize>,
    written: Picks,
    /// The best extract by the estimate, and the best for one row.
    best: [Picks; 2],
    /// What is decided so far.
    picks: Picks,
    /// How weights lie for one row.
    layouts: Vec<(u32, Layout)>,
}

/// Sorted by slot.
fn layouts(function: &Function, target: &Target) -> Vec<(u32, Layout)> {
    if !int8::integers(target) {
        return vec![];
    }
    let mut all: Vec<(u32, Layout)> =
        int8::layouts(function, target).into_iter().map(|(slot, l)| (slot, l.0)).collect();
    all.sort_by_key(|l| l.0);
    all
}

impl<'a> Considered<'a> {
    fn new(function: &'a Function, target: &'a Target, body: &Body, known: &Written) -> Option<Considered<'a>> {
        let terms = &body.terms;
        let of_rows = |rows| {
            let space = Space::new(terms, known, &Estimate::new(terms, known, target, rows));
            let roots: Vec<usize> = function.outputs.iter().map(|o| space.number(terms, body.classes[&o.1])).collect();
            let mut picks = space.greedy();
            let seconds = space.improve(&mut picks, &roots);
            (space, roots, picks, seconds)
        };
        let (space, roots, usual, seconds) = of_rows(Rows::Typical);
        seconds?;
        // Scalars may be new: rules make lengths of lengths.
        let graph = terms.graph.clone();
        let written = space.as_written();
        let mut best = [usual, written.clone()];
        // What no rule changed has one extract.
        let changed = space.needed(&best[0], &roots) != space.needed(&written, &roots);
        if changed || space.choices.iter().any(|c| c.len() > 1) {
            best[1] = of_rows(Rows::Fewest).2;
        }
        let picks = written.clone();
        let mut of = Considered { function, target, graph, space, roots, written, best, picks, layouts: vec![] };
        let for_one_row = of.function_of(&of.best[1].clone())?;
        of.layouts = layouts(&for_one_row, target);
        Some(of)
    }
    /// Where the extracts differ.
    fn sites(&self) -> Vec<Site> {
        sites(&self.space, &self.roots, &[&self.written, &self.best[0], &self.best[1]])
    }
    /// The function by an extract.
    fn function_of(&mut self, picks: &Picks) -> Option<Function> {
        let roots: Vec<Id> = self.function.outputs.iter().map(|o| o.1).collect();
        let rebuild = Rebuild::new(&self.space, &self.function.graph, &roots);
        let nodes = rebuild.nodes(&mut self.graph, picks, &self.roots)?;
        let outputs = self.function.outputs.iter().zip(nodes).map(|(o, n)| (o.0, n)).collect();
        Some(Function { graph: self.graph.clone(), outputs, ..self.function.clone() })
    }
    /// The nodes of a site's outputs by an extract.
    fn outputs_of(&mut self, picks: &Picks, site: &Site) -> Option<Vec<Id>> {
        let roots: Vec<Id> = self.function.outputs.iter().map(|o| o.1).collect();
        Rebuild::new(&self.space, &self.function.graph, &roots).nodes(&mut self.graph, picks, &site.outputs)
    }
    /// An extract of a site with everything else as it is so far.
    fn with(&self, extract: &Extract, given: &[bool]) -> Picks {
        let own = |c: usize| if given[c] { self.picks[c] } else { extract.picks[c].or(self.picks[c]) };
        (0..given.len()).map(own).collect()
    }
    /// The forms of a site, the written one first if it may be: how weights lie is given.
    fn forms(&mut self, site: &Site) -> (Vec<Form>, bool, f64) {
        let given = self.space.around(&self.picks, &self.roots, site);
        let start = self.picks.clone();
        let (extracts, complete) = self.space.best(&site.outputs, &given, &start, FORMS, OFF);
        let added = |picks: &Picks| self.space.seconds(picks, &site.outputs).unwrap_or(f64::INFINITY);
        let there: f64 = {
            let all = self.space.needed(&start, &site.outputs).unwrap_or_default();
            let of = |c: &usize| start[*c].map_or(0.0, |p| self.space.choices[*c][p].seconds);
            all.iter().filter(|c| given[**c]).map(of).sum()
        };
        let written = Extract { seconds: added(&start) - there, picks: start };
        let greedy = added(&self.best[0]) - there;
        let mut forms: Vec<Form> = Vec::new();
        for (first, extract) in [(true, written)].into_iter().chain(extracts.into_iter().map(|e| (false, e))) {
            let picks = self.with(&extract, &given);
            let Some(outputs) = self.outputs_of(&picks, site) else { continue };
            if forms.iter().any(|f| f.outputs == outputs) {
                continue;
            }
            let lies = self.function_of(&picks).map(|f| layouts(&f, self.target));
            if lies.as_ref() == Some(&self.layouts) {
                forms.push(Form { written: first, picks, outputs, estimate: extract.seconds });
            }
        }
        (forms, complete, greedy)
    }
    /// Decides on a site.
    fn decide(&mut self, site: &Site, decider: &mut Decider) -> Option<Found> {
        let (mut forms, complete, greedy) = self.forms(site);
        let least = forms.iter().map(|f| f.estimate).fold(f64::INFINITY, f64::min);
        let near: Vec<usize> = (0..forms.len()).filter(|&i| forms[i].estimate <= OFF * least).collect();
        let mut seconds: Vec<f64> = forms.iter().map(|f| f.estimate).collect();
        let site_name = {
            let of = |c: &usize| self.graph.show_dims(&self.space.choices[*c][0].term.dims);
            format!("{} {}", self.function.name, site.outputs.iter().map(of).collect::<Vec<_>>().join(" "))
        };
        let decision = Decision { margin: MARGIN, ..Decision::new("alternatives", site_name.clone(), vec![]) };
        if near.len() > 1 {
            let outputs: Vec<Vec<Id>> = near.iter().map(|&i| forms[i].outputs.clone()).collect();
            for (&i, price) in near.iter().zip(region::seconds(&self.graph, self.function, &outputs, self.target)) {
                seconds[i] = price;
            }
        }
        if forms.is_empty() {
            return None;
        }
        let text = |f: &Form| report::form(&self.graph, &f.outputs);
        let option = |(f, &seconds): (&Form, &f64)| {
            let name = if f.written { "written" } else { "found" };
            Alternative { name, plan: text(f), seconds }
        };
        let options: Vec<Alternative> = forms.iter().zip(&seconds).map(option).collect();
        let chosen = decider.choose(Decision { options: options.clone(), ..decision });
        let exact = forms.iter().map(|f| f.estimate).fold(f64::INFINITY, f64::min);
        let estimates = forms.iter().map(|f| f.estimate).collect();
        self.picks = forms.swap_remove(chosen).picks;
        Some(Found { site: site_name, options, estimates, chosen, scheduled: near, complete, greedy, exact })
    }
    /// The function as decided, unless that is as it was written.
    fn changed(mut self) -> Option<Function> {
        let picks = self.picks.clone();
        (picks != self.written).then(|| self.function_of(&picks)).flatten()
    }
}

/// One way to compute a site.
struct Form {
    written: bool,
    picks: Picks,
    /// The nodes of the site's outputs.
    outputs: Vec<Id>,
    estimate: f64,
}
