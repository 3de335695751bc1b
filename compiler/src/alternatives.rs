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
mod part;
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
use crate::ir::layout::Layout;
use estimate::{Estimate, RowCount};
use extract::{Extract, Held, Picks, Space};
use gristmill_uop::function::Function;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id};
use import::{FunctionBody, Written};
use rebuild::Rebuild;
use report::{Aside, Report, SiteReport};
use rules::Rule;
use rustc_hash::{FxHashMap, FxHashSet};
use saturate::{Budget, Ended, saturate};
use site::{Site, sites};
use std::cell::RefCell;

/// Forms of a site that are scheduled beside the written one: latent attention has four, with keys, values, both or neither contracted with the cache. In a step of a piece and of other rows the one that fits came fourth (experiments, 105).
const FORMS: usize = 4;
/// Extracts of a site that are looked at: several differ in nothing but how they are moved, or lay weights in another way.
const EXTRACTS: usize = 48;
/// Estimates that differ by less than this part are of forms that differ in how their elements are moved.
const SAME: f64 = 1e-3;
/// A form that is estimated to take so many times as long as the best is not scheduled: estimates are off by less.
const OFF: f64 = 4.0;
/// The part of the written form's price that another must save. Prices of parts do not see what they share with their surroundings.
const MARGIN: f64 = 0.05;

/// The function in the form that is decided on; none where that is the written one.
pub fn choose(function: &Function, target: &Target, decider: &mut Decider) -> Option<Function> {
    if !target.alternatives {
        return None;
    }
    decided(function, target, decider, &rules::all(), Budget::USUAL).0?.changed()
}

/// The same by these rules and within that budget, and what was found.
pub fn considered(
    function: &Function,
    target: &Target,
    decider: &mut Decider,
    rules: &[Rule],
    budget: Budget,
) -> (Option<Function>, Report) {
    let (of, mut report) = decided(function, target, decider, rules, budget);
    report.aside = of.as_ref().map_or(vec![], Considered::aside);
    (of.and_then(Considered::changed), report)
}

/// The function with all its sites decided on, if there is anything to choose.
fn decided<'a>(
    function: &'a Function,
    target: &'a Target,
    decider: &mut Decider,
    rules: &[Rule],
    budget: Budget,
) -> (Option<Considered<'a>>, Report) {
    let roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
    let mut body = FunctionBody::new(&function.graph, &roots);
    let ended = saturate(&mut body.terms, rules, budget);
    let mut report = Report::new(&body.terms, ended);
    if ended == Ended::Void {
        return (None, report);
    }
    let written = body.written();
    let Some(mut of) = Considered::new(function, target, &body, &written) else { return (None, report) };
    let mut later = of.sites();
    while !later.is_empty() {
        let site = later.remove(0);
        report.sites.extend(of.decide(&site, &later, decider));
    }
    (Some(of), report)
}

/// Every form of a function that these rules lead to, at most so many, the cheapest by the estimate first: for tests, which evaluate all of them.
pub fn every_form(function: &Function, target: &Target, rules: &[Rule], most: usize) -> Vec<Function> {
    let roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
    let mut body = FunctionBody::new(&function.graph, &roots);
    if saturate(&mut body.terms, rules, Budget::USUAL) == Ended::Void {
        return vec![];
    }
    let known = body.written();
    let Some(of) = Considered::new(function, target, &body, &known) else { return vec![] };
    let held = vec![Held::Open; of.space.classes.len()];
    let (extracts, _) = of.space.best(&of.roots.clone(), &held, &of.written, most, f64::INFINITY);
    let roots = of.roots.clone();
    let function_of = |e: &Extract| Some(of.function_with(&of.new_nodes(&e.picks, &roots)?));
    extracts.iter().filter_map(function_of).collect()
}

/// A function while its form is decided on.
struct Considered<'a> {
    function: &'a Function,
    target: &'a Target,
    /// The function's graph, with the nodes of forms.
    graph: RefCell<Graph>,
    space: Space,
    rebuild: Rebuild,
    /// The number of the class that each node of the function is in.
    numbers: Vec<(Id, usize)>,
    roots: Vec<usize>,
    written: Picks,
    /// The best extract by the estimate, and the best for one row.
    best: [Picks; 2],
    /// Classes that these two and what was written need, and compute alike.
    settled: Vec<bool>,
    /// What is decided so far.
    picks: Picks,
    /// What stands for a node of the function by then.
    changes: FxHashMap<Id, Id>,
    /// How weights lie for one row.
    layouts: Layouts,
}

/// How packed slots lie that do not lie as in their file, in the order of the slots.
type Layouts = Vec<(u32, Layout)>;

/// One way to compute a site.
struct Form {
    written: bool,
    picks: Picks,
    /// The nodes of the site's outputs.
    outputs: Vec<Id>,
    estimate: f64,
}

impl<'a> Considered<'a> {
    /// None where there is nothing to choose.
    fn new(function: &'a Function, target: &'a Target, body: &FunctionBody, known: &Written) -> Option<Considered<'a>> {
        let terms = &body.terms;
        let of_rows = |rows| Space::new(terms, known, &Estimate::new(terms, known, target, rows));
        let space = of_rows(RowCount::Typical);
        if space.choices.iter().all(|c| c.len() < 2) {
            return None;
        }
        let outputs: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
        let roots: Vec<usize> = outputs.iter().map(|o| space.number(terms, body.classes[o])).collect();
        let rebuild = Rebuild::new(&function.graph, &outputs);
        let numbers = body.classes.iter().map(|(&id, &class)| (id, space.number(terms, class))).collect();
        let best = |space: &Space| {
            let mut picks = space.greedy();
            space.improve(&mut picks, &roots).map(|_| picks)
        };
        let best = [best(&space)?, best(&of_rows(RowCount::Fewest))?];
        let written = space.as_written();
        let settled = site::settled(&space, &roots, &[&written, &best[0], &best[1]]);
        let mut of = Considered {
            function,
            target,
            graph: RefCell::new(terms.graph.clone()),
            space,
            rebuild,
            numbers,
            roots,
            picks: written.clone(),
            written,
            best,
            settled,
            changes: FxHashMap::default(),
            layouts: vec![],
        };
        let outputs: Vec<usize> = of.sites().into_iter().flat_map(|s| s.outputs).collect();
        of.layouts = of.layouts(&of.new_nodes(&of.best[1], &outputs)?);
        Some(of)
    }
    /// Where the extracts differ.
    fn sites(&self) -> Vec<Site> {
        sites(&self.space, &self.roots, &[&self.written, &self.best[0], &self.best[1]])
    }
    /// The nodes of classes by an extract.
    fn nodes(&self, picks: &Picks, classes: &[usize]) -> Option<Vec<Id>> {
        self.rebuild.nodes(&self.space, &mut self.graph.borrow_mut(), picks, classes)
    }
    /// What stands for each node of the function that is in one of these classes, by an extract.
    fn new_nodes(&self, picks: &Picks, classes: &[usize]) -> Option<FxHashMap<Id, Id>> {
        Some(self.replaced(classes, &self.nodes(picks, classes)?))
    }
    /// The same of the nodes of these classes.
    fn replaced(&self, classes: &[usize], nodes: &[Id]) -> FxHashMap<Id, Id> {
        let of = |&(id, number): &(Id, usize)| {
            let at = classes.iter().position(|&c| c == number)?;
            (nodes[at] != id).then_some((id, nodes[at]))
        };
        self.numbers.iter().filter_map(of).collect()
    }
    /// The outputs with such changes. Scalars that depend on what is changed, as lengths that are computed do, are made anew with everything above.
    fn outputs_with(&self, changes: &FxHashMap<Id, Id>) -> Vec<(u32, Id)> {
        let mut graph = self.graph.borrow_mut();
        let mut map = FxHashMap::default();
        // Sources first: what stands for a node has scalars that may depend on nodes which are changed too.
        let mut order: Vec<(Id, Id)> = changes.iter().map(|(&old, &new)| (old, new)).collect();
        order.sort_unstable();
        for (old, new) in order {
            let new = graph.substitute(new, &mut map.clone());
            map.insert(old, new);
        }
        self.function.outputs.iter().map(|&(slot, id)| (slot, graph.substitute(id, &mut map))).collect()
    }
    fn function_with(&self, changes: &FxHashMap<Id, Id>) -> Function {
        let outputs = self.outputs_with(changes);
        Function { graph: self.graph.borrow().clone(), outputs, ..self.function.clone() }
    }
    /// How weights lie with such changes, beside those that are decided on.
    fn layouts(&self, changes: &FxHashMap<Id, Id>) -> Layouts {
        let all = self.changes.iter().chain(changes).map(|(&a, &b)| (a, b)).collect();
        let roots: Vec<Id> = self.outputs_with(&all).into_iter().map(|o| o.1).collect();
        let found = int8::layouts(&self.graph.borrow(), &self.function.slots, &roots, self.target);
        let mut layouts: Layouts = found.into_iter().map(|(slot, l)| (slot, l.0)).collect();
        layouts.sort_by_key(|l| l.0);
        layouts
    }
    /// The extracts of a site, the written one first, then by their estimates; were all looked at; and the estimate of what greedy extraction found.
    fn extracts(&self, site: &Site) -> (Vec<Extract>, bool, f64) {
        let given = self.space.around(&self.picks, &self.roots, site);
        let held: Vec<Held> =
            given.iter().zip(&self.settled).map(|(&given, &settled)| Held::new(given, settled)).collect();
        // What is there anyhow costs nothing.
        let seconds = |picks: &Picks| -> f64 {
            let all = self.space.needed(picks, &site.outputs).unwrap_or_default();
            let of = |&c: &usize| picks[c].filter(|_| !given[c]).map_or(0.0, |p| self.space.choices[c][p].seconds);
            all.iter().map(of).sum()
        };
        let (found, complete) = self.space.best(&site.outputs, &held, &self.picks, EXTRACTS, OFF);
        let whole = |e: Extract| {
            let own = |c: usize| if given[c] { self.picks[c] } else { e.picks[c].or(self.picks[c]) };
            Extract { picks: (0..given.len()).map(own).collect(), seconds: e.seconds }
        };
        let written = Extract { picks: self.picks.clone(), seconds: seconds(&self.picks) };
        let all = std::iter::once(written).chain(found.into_iter().map(whole)).collect();
        (all, complete, seconds(&self.best[0]))
    }
    /// What stands for nodes where a site is as in this extract, and each of those that are decided on `later` as is best for one row: two sites may read one weight.
    /// The site's outputs are these nodes.
    fn with_later(&self, picks: &Picks, site: &Site, nodes: &[Id], later: &[Site]) -> Option<FxHashMap<Id, Id>> {
        let outputs: Vec<usize> = later.iter().flat_map(|site| &site.outputs).copied().collect();
        if outputs.is_empty() {
            return Some(self.replaced(&site.outputs, nodes));
        }
        let own: FxHashSet<usize> = self.space.needed(picks, &site.outputs)?.into_iter().collect();
        let mut together = picks.clone();
        for class in self.space.needed(&self.best[1], &outputs)?.into_iter().filter(|class| !own.contains(class)) {
            together[class] = self.best[1][class];
        }
        self.new_nodes(&together, &[&site.outputs[..], &outputs].concat())
    }
    /// The forms of a site among these extracts: those that differ, and that lay weights as they have to lie.
    fn forms(&self, site: &Site, later: &[Site], extracts: Vec<Extract>) -> Vec<Form> {
        let mut forms: Vec<Form> = Vec::new();
        let mut seen: Vec<Vec<Id>> = Vec::new();
        for (i, Extract { picks, seconds }) in extracts.into_iter().enumerate() {
            // Of such as differ in how elements are moved, or in which axis comes first, the first stands for all.
            let known = |f: &Form| !f.written && (seconds / f.estimate - 1.0).abs() < SAME;
            if i > 0 && forms.iter().any(known) {
                continue;
            }
            let Some(outputs) = self.nodes(&picks, &site.outputs).map(|o| self.as_decided(&o)) else { continue };
            if seen.contains(&outputs) {
                continue;
            }
            seen.push(outputs.clone());
            let Some(changes) = self.with_later(&picks, site, &outputs, later) else { continue };
            if self.layouts(&changes) == self.layouts {
                forms.push(Form { written: i == 0, picks, outputs, estimate: seconds });
            }
            if forms.iter().filter(|f| !f.written).count() == FORMS {
                break;
            }
        }
        forms
    }
    /// Prices of forms: those that may be the best are scheduled. Which were?
    fn costs(&self, forms: &[Form]) -> (Vec<f64>, Vec<usize>) {
        let mut seconds: Vec<f64> = forms.iter().map(|f| f.estimate).collect();
        let least = seconds.iter().copied().fold(f64::INFINITY, f64::min);
        let near: Vec<usize> = (0..forms.len()).filter(|&i| seconds[i] <= OFF * least).collect();
        if near.len() < 2 {
            return (seconds, vec![]);
        }
        let outputs: Vec<Vec<Id>> = near.iter().map(|&i| forms[i].outputs.clone()).collect();
        let parts = region::parts(&self.graph.borrow(), self.function, &outputs, self.target);
        let costs = region::seconds(&parts, self.target);
        near.iter().zip(costs).for_each(|(&i, cost)| seconds[i] = cost);
        (seconds, near)
    }
    /// Where the estimate alone has decided: classes that all extracts compute alike though there are other terms than those that only move elements.
    fn aside(&self) -> Vec<Aside> {
        let best = &self.best[0];
        let of = |class: usize| {
            let choices = &self.space.choices[class];
            let (i, more) = self.space.runner_up(class, best, &self.roots)?;
            let chosen = &choices[best[class]?].term;
            let dims = self.graph.borrow().show_dims(&chosen.dims);
            Some(Aside { dims, chosen: report::name(chosen), other: report::name(&choices[i].term), more })
        };
        (0..self.settled.len()).filter(|&class| self.settled[class]).filter_map(of).collect()
    }
    /// Decides on a site, before those that are decided on later.
    fn decide(&mut self, site: &Site, later: &[Site], decider: &mut Decider) -> Option<SiteReport> {
        let (extracts, complete, greedy) = self.extracts(site);
        let least = extracts.iter().map(|e| e.seconds).fold(f64::INFINITY, f64::min);
        let mut forms = self.forms(site, later, extracts);
        if forms.is_empty() {
            return None;
        }
        let (seconds, scheduled) = self.costs(&forms);
        let graph = self.graph.borrow();
        let dims = |&c: &usize| graph.show_dims(&self.space.choices[c][0].term.dims);
        let name =
            format!("{} {}", self.function.full_name(), site.outputs.iter().map(dims).collect::<Vec<_>>().join(" "));
        let option = |(f, &seconds): (&Form, &f64)| {
            let name = if f.written { "written" } else { "found" };
            Alternative { name, plan: report::form(&graph, &f.outputs), seconds }
        };
        let options: Vec<Alternative> = forms.iter().zip(&seconds).map(option).collect();
        drop(graph);
        let decision = Decision::new("alternatives", name.clone(), options.clone());
        let chosen = decider.choose(Decision { margin: MARGIN, ..decision });
        let estimates = forms.iter().map(|f| f.estimate).collect();
        let form = forms.swap_remove(chosen);
        if !form.written {
            self.change(&form.picks, site);
        }
        Some(SiteReport { site: name, options, estimates, chosen, scheduled, complete, greedy, least })
    }
    /// Nodes whose scalars are those of sites that are decided on: lengths may depend on what was changed.
    fn as_decided(&self, nodes: &[Id]) -> Vec<Id> {
        let (mut graph, mut earlier) = (self.graph.borrow_mut(), self.changes.clone());
        nodes.iter().map(|&node| graph.substitute(node, &mut earlier)).collect()
    }
    /// Computes a site by an extract from now on.
    fn change(&mut self, picks: &Picks, site: &Site) {
        let (old, new): (Vec<Id>, Vec<Id>) =
            self.new_nodes(picks, &site.outputs).unwrap_or_default().into_iter().unzip();
        let new = self.as_decided(&new);
        self.changes.extend(old.into_iter().zip(new));
        self.picks.clone_from(picks);
    }
    /// The function as decided, unless that is as it was written.
    fn changed(self) -> Option<Function> {
        (!self.changes.is_empty()).then(|| self.function_with(&self.changes))
    }
}
