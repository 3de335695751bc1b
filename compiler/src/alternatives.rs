//! Rewrites a function's body to the cheapest equivalent form by equality saturation.
//!
//! A model states what a layer computes. Whether keys are computed from a latent KV cache or the
//! weight is absorbed into the queries (MLA), and for how many tokens which is cheaper, is found
//! here. The body becomes an e-graph ([`import`]) with symbolic sizes, to which rules add equal
//! terms ([`rules`], [`saturate`]). A cost estimate per term ([`estimate`]) steers extraction
//! ([`extract`]). At each site where the extracts differ ([`site`]), the best few forms and the
//! written one are scheduled and costed ([`region`]); the choice is an ordinary [`Decision`].
//!
//! A weight has one memory layout for all steps, but each step is a function of its own. A form is
//! therefore a candidate only if it needs the layouts of the form that is estimated best for steps
//! of one row. All steps of a model then agree.

pub mod cache_rows;
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

/// Candidate forms of a site besides the written one. MLA has four: keys, values, both or neither
/// absorbed. In a mixed batch the best one came fourth (docs/experiments/105).
const FORMS: usize = 4;
/// Extracts of a site that are examined. Several differ only in movements, or
/// need other weight layouts.
const EXTRACTS: usize = 48;
/// Relative difference of estimates below which two forms are taken to differ only in movements.
const SAME: f64 = 1e-3;
/// Forms estimated at more than this multiple of the best are not scheduled; estimates
/// are off by less.
const OFF: f64 = 4.0;

/// Returns the function in the form that is decided on; `None` if that is the written one.
pub fn choose(function: &Function, target: &Target, decider: &mut Decider) -> Option<Function> {
    if !target.alternatives {
        return None;
    }
    decided(function, target, decider, &rules::all(), Budget::USUAL)
        .0?
        .changed()
}

/// Like [`choose`], with these rules and this budget; also returns a report.
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

/// Decides on all sites of the function; `None` if there is no choice.
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
    let Some(mut of) = Considered::new(function, target, &body, &written) else {
        return (None, report);
    };
    let mut later = of.sites();
    while !later.is_empty() {
        let site = later.remove(0);
        report.sites.extend(of.decide(&site, &later, decider));
    }
    (Some(of), report)
}

/// Returns up to `most` forms of a function that these rules reach, cheapest by the estimate first.
///
/// For tests, which evaluate all of them.
pub fn every_form(
    function: &Function,
    target: &Target,
    rules: &[Rule],
    most: usize,
) -> Vec<Function> {
    let roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
    let mut body = FunctionBody::new(&function.graph, &roots);
    if saturate(&mut body.terms, rules, Budget::USUAL) == Ended::Void {
        return vec![];
    }
    let known = body.written();
    let Some(of) = Considered::new(function, target, &body, &known) else {
        return vec![];
    };
    let held = vec![Held::Open; of.space.classes.len()];
    let (extracts, _) = of
        .space
        .best(&of.roots.clone(), &held, &of.written, most, f64::INFINITY);
    let roots = of.roots.clone();
    let function_of = |e: &Extract| Some(of.function_with(&of.new_nodes(&e.picks, &roots)?));
    extracts.iter().filter_map(function_of).collect()
}

/// State of the decisions on a function's form.
struct Considered<'a> {
    function: &'a Function,
    target: &'a Target,
    /// Graph of the function, extended by the nodes of forms.
    graph: RefCell<Graph>,
    space: Space,
    rebuild: Rebuild,
    /// Index of the e-class of each of the function's nodes.
    numbers: Vec<(Id, usize)>,
    roots: Vec<usize>,
    written: Picks,
    /// Best extract by the estimate, for typical row counts and for one row.
    best: [Picks; 2],
    /// E-classes that these two and the written extract all need and compute by the same term.
    settled: Vec<bool>,
    /// Choices decided so far.
    picks: Picks,
    /// Replacement of each of the function's nodes under those choices.
    changes: FxHashMap<Id, Id>,
    /// Weight layouts of the best form for one row.
    layouts: Layouts,
}

/// Layouts of packed slots that are not stored as in their file, sorted by slot.
type Layouts = Vec<(u32, Layout)>;

/// A candidate form of a site.
struct Form {
    written: bool,
    picks: Picks,
    /// Nodes of the site's outputs.
    outputs: Vec<Id>,
    estimate: f64,
}

impl<'a> Considered<'a> {
    /// Extracts the best forms; `None` if there is no choice.
    fn new(
        function: &'a Function,
        target: &'a Target,
        body: &FunctionBody,
        known: &Written,
    ) -> Option<Considered<'a>> {
        let terms = &body.terms;
        let of_rows = |rows| Space::new(terms, known, &Estimate::new(terms, known, target, rows));
        let space = of_rows(RowCount::Typical);
        if space.choices.iter().all(|c| c.len() < 2) {
            return None;
        }
        let outputs: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
        // Scalars have no e-class: a function that outputs one keeps its form.
        let class_of = |o: &Id| body.classes.get(o).map(|&class| space.number(terms, class));
        let roots: Vec<usize> = outputs.iter().map(class_of).collect::<Option<_>>()?;
        let rebuild = Rebuild::new(&function.graph, &outputs);
        let numbers = body
            .classes
            .iter()
            .map(|(&id, &class)| (id, space.number(terms, class)))
            .collect();
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
    /// Sites where the extracts differ.
    fn sites(&self) -> Vec<Site> {
        sites(
            &self.space,
            &self.roots,
            &[&self.written, &self.best[0], &self.best[1]],
        )
    }
    /// Builds the nodes of e-classes in an extract.
    fn nodes(&self, picks: &Picks, classes: &[usize]) -> Option<Vec<Id>> {
        self.rebuild
            .nodes(&self.space, &mut self.graph.borrow_mut(), picks, classes)
    }
    /// Replacements of the function's nodes in these e-classes, in an extract.
    fn new_nodes(&self, picks: &Picks, classes: &[usize]) -> Option<FxHashMap<Id, Id>> {
        Some(self.replaced(classes, &self.nodes(picks, classes)?))
    }
    /// Replacements of the function's nodes in these e-classes by `nodes`.
    fn replaced(&self, classes: &[usize], nodes: &[Id]) -> FxHashMap<Id, Id> {
        let of = |&(id, number): &(Id, usize)| {
            let at = classes.iter().position(|&c| c == number)?;
            (nodes[at] != id).then_some((id, nodes[at]))
        };
        self.numbers.iter().filter_map(of).collect()
    }
    /// Outputs after replacements. Scalars that depend on a replaced node, such as computed
    /// lengths, are rebuilt with all their users.
    fn outputs_with(&self, changes: &FxHashMap<Id, Id>) -> Vec<(u32, Id)> {
        let mut graph = self.graph.borrow_mut();
        let mut map = FxHashMap::default();
        // Sources first: scalars of a replacement may depend on replaced nodes.
        let mut order: Vec<(Id, Id)> = changes.iter().map(|(&old, &new)| (old, new)).collect();
        order.sort_unstable();
        for (old, new) in order {
            let new = graph.substitute(new, &mut map.clone());
            map.insert(old, new);
        }
        self.function
            .outputs
            .iter()
            .map(|&(slot, id)| (slot, graph.substitute(id, &mut map)))
            .collect()
    }
    fn function_with(&self, changes: &FxHashMap<Id, Id>) -> Function {
        let outputs = self.outputs_with(changes);
        Function {
            graph: self.graph.borrow().clone(),
            outputs,
            ..self.function.clone()
        }
    }
    /// Weight layouts with these replacements and those decided so far.
    fn layouts(&self, changes: &FxHashMap<Id, Id>) -> Layouts {
        let all = self
            .changes
            .iter()
            .chain(changes)
            .map(|(&a, &b)| (a, b))
            .collect();
        let roots: Vec<Id> = self.outputs_with(&all).into_iter().map(|o| o.1).collect();
        let found = int8::layouts(
            &self.graph.borrow(),
            &self.function.slots,
            &roots,
            self.target,
        );
        let mut layouts: Layouts = found.into_iter().map(|(slot, l)| (slot, l.0)).collect();
        layouts.sort_by_key(|l| l.0);
        layouts
    }
    /// Returns the extracts of a site, the written one first, then by estimate; whether all were
    /// examined; and the estimate of the greedy extract.
    fn extracts(&self, site: &Site) -> (Vec<Extract>, bool, f64) {
        let given = self.space.around(&self.picks, &self.roots, site);
        let held: Vec<Held> = given
            .iter()
            .zip(&self.settled)
            .map(|(&given, &settled)| Held::new(given, settled))
            .collect();
        // E-classes that are needed outside the site cost nothing.
        let seconds = |picks: &Picks| -> f64 {
            let all = self.space.needed(picks, &site.outputs).unwrap_or_default();
            let of = |&c: &usize| {
                picks[c]
                    .filter(|_| !given[c])
                    .map_or(0.0, |p| self.space.choices[c][p].seconds)
            };
            all.iter().map(of).sum()
        };
        let (found, complete) = self
            .space
            .best(&site.outputs, &held, &self.picks, EXTRACTS, OFF);
        let whole = |e: Extract| {
            let own = |c: usize| {
                if given[c] {
                    self.picks[c]
                } else {
                    e.picks[c].or(self.picks[c])
                }
            };
            Extract {
                picks: (0..given.len()).map(own).collect(),
                seconds: e.seconds,
            }
        };
        let written = Extract {
            picks: self.picks.clone(),
            seconds: seconds(&self.picks),
        };
        let all = std::iter::once(written)
            .chain(found.into_iter().map(whole))
            .collect();
        (all, complete, seconds(&self.best[0]))
    }
    /// Replacements if `site` is computed by `picks` and each site of `later` in its best form for
    /// one row, since two sites may read the same weight.
    ///
    /// `nodes` are the site's outputs.
    fn with_later(
        &self,
        picks: &Picks,
        site: &Site,
        nodes: &[Id],
        later: &[Site],
    ) -> Option<FxHashMap<Id, Id>> {
        let outputs: Vec<usize> = later
            .iter()
            .flat_map(|site| &site.outputs)
            .copied()
            .collect();
        if outputs.is_empty() {
            return Some(self.replaced(&site.outputs, nodes));
        }
        let own: FxHashSet<usize> = self
            .space
            .needed(picks, &site.outputs)?
            .into_iter()
            .collect();
        let mut together = picks.clone();
        for class in self
            .space
            .needed(&self.best[1], &outputs)?
            .into_iter()
            .filter(|class| !own.contains(class))
        {
            together[class] = self.best[1][class];
        }
        self.new_nodes(&together, &[&site.outputs[..], &outputs].concat())
    }
    /// Filters the extracts of a site to distinct forms with the required weight layouts.
    fn forms(&self, site: &Site, later: &[Site], extracts: Vec<Extract>) -> Vec<Form> {
        let mut forms: Vec<Form> = Vec::new();
        let mut seen: Vec<Vec<Id>> = Vec::new();
        for (i, Extract { picks, seconds }) in extracts.into_iter().enumerate() {
            // The first of several forms that differ only in movements or axis
            // order represents them all.
            let known = |f: &Form| !f.written && (seconds / f.estimate - 1.0).abs() < SAME;
            if i > 0 && forms.iter().any(known) {
                continue;
            }
            let Some(outputs) = self
                .nodes(&picks, &site.outputs)
                .map(|o| self.as_decided(&o))
            else {
                continue;
            };
            if seen.contains(&outputs) {
                continue;
            }
            seen.push(outputs.clone());
            let Some(changes) = self.with_later(&picks, site, &outputs, later) else {
                continue;
            };
            if self.layouts(&changes) == self.layouts {
                forms.push(Form {
                    written: i == 0,
                    picks,
                    outputs,
                    estimate: seconds,
                });
            }
            if forms.iter().filter(|f| !f.written).count() == FORMS {
                break;
            }
        }
        forms
    }
    /// Costs of forms, and the indices of those that were scheduled. Forms far from the
    /// best keep their estimate.
    fn costs(&self, forms: &[Form]) -> (Vec<f64>, Vec<usize>) {
        let mut seconds: Vec<f64> = forms.iter().map(|f| f.estimate).collect();
        let least = seconds.iter().copied().fold(f64::INFINITY, f64::min);
        let near: Vec<usize> = (0..forms.len())
            .filter(|&i| seconds[i] <= OFF * least)
            .collect();
        if near.len() < 2 {
            return (seconds, vec![]);
        }
        let outputs: Vec<Vec<Id>> = near.iter().map(|&i| forms[i].outputs.clone()).collect();
        let parts = region::parts(&self.graph.borrow(), self.function, &outputs, self.target);
        let costs = region::seconds(&parts, self.target);
        near.iter()
            .zip(costs)
            .for_each(|(&i, cost)| seconds[i] = cost);
        (seconds, near)
    }
    /// Reports e-classes decided by the estimate alone: all extracts agree,
    /// though other terms exist.
    fn aside(&self) -> Vec<Aside> {
        let best = &self.best[0];
        let of = |class: usize| {
            let choices = &self.space.choices[class];
            let (i, more) = self.space.runner_up(class, best, &self.roots)?;
            let chosen = &choices[best[class]?].term;
            let dims = self.graph.borrow().show_dims(&chosen.dims);
            Some(Aside {
                dims,
                chosen: report::name(chosen),
                other: report::name(&choices[i].term),
                more,
            })
        };
        (0..self.settled.len())
            .filter(|&class| self.settled[class])
            .filter_map(of)
            .collect()
    }
    /// Decides on a site, before the sites of `later`.
    fn decide(&mut self, site: &Site, later: &[Site], decider: &mut Decider) -> Option<SiteReport> {
        let (extracts, complete, greedy) = self.extracts(site);
        let least = extracts
            .iter()
            .map(|e| e.seconds)
            .fold(f64::INFINITY, f64::min);
        let mut forms = self.forms(site, later, extracts);
        if forms.is_empty() {
            return None;
        }
        let (seconds, scheduled) = self.costs(&forms);
        let graph = self.graph.borrow();
        let dims = |&c: &usize| graph.show_dims(&self.space.choices[c][0].term.dims);
        let name = format!(
            "{} {}",
            self.function.full_name(),
            site.outputs.iter().map(dims).collect::<Vec<_>>().join(" ")
        );
        let option = |(f, &seconds): (&Form, &f64)| {
            let name = if f.written { "written" } else { "found" };
            Alternative {
                name,
                plan: report::form(&graph, &f.outputs),
                seconds,
            }
        };
        let options: Vec<Alternative> = forms.iter().zip(&seconds).map(option).collect();
        drop(graph);
        let decision = Decision::new("alternatives", name.clone(), options.clone());
        let chosen = decider.choose(decision);
        let estimates = forms.iter().map(|f| f.estimate).collect();
        let form = forms.swap_remove(chosen);
        if !form.written {
            self.change(&form.picks, site);
        }
        Some(SiteReport {
            site: name,
            options,
            estimates,
            chosen,
            scheduled,
            complete,
            greedy,
            least,
        })
    }
    /// Applies earlier decisions to the nodes: lengths may depend on replaced nodes.
    fn as_decided(&self, nodes: &[Id]) -> Vec<Id> {
        let (mut graph, mut earlier) = (self.graph.borrow_mut(), self.changes.clone());
        nodes
            .iter()
            .map(|&node| graph.substitute(node, &mut earlier))
            .collect()
    }
    /// Records the decision for a site.
    fn change(&mut self, picks: &Picks, site: &Site) {
        let (old, new): (Vec<Id>, Vec<Id>) = self
            .new_nodes(picks, &site.outputs)
            .unwrap_or_default()
            .into_iter()
            .unzip();
        let new = self.as_decided(&new);
        self.changes.extend(old.into_iter().zip(new));
        self.picks.clone_from(picks);
    }
    /// Returns the decided function; `None` if it is as written.
    fn changed(self) -> Option<Function> {
        (!self.changes.is_empty()).then(|| self.function_with(&self.changes))
    }
}
