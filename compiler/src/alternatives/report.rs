//! What was found, for people.

use super::saturate::Ended;
use super::term::{Term, TermForm};
use super::terms::TermGraph;
use crate::decision::Alternative;
use gristmill_uop::{Graph, Id, Op};
use std::fmt;

/// A site, and its forms.
#[derive(Clone, Debug)]
pub struct SiteReport {
    /// Where: the function, and what is computed.
    pub site: String,
    /// The forms, with the prices that were decided by.
    pub options: Vec<Alternative>,
    /// What each was estimated to take, in seconds.
    pub estimates: Vec<f64>,
    /// What was chosen.
    pub chosen: usize,
    /// The forms that were scheduled.
    pub scheduled: Vec<usize>,
    /// Were all extracts looked at?
    pub complete: bool,
    /// Seconds of what greedy extraction with single changes found, by the estimate.
    pub greedy: f64,
    /// Seconds of the best extract, by the estimate, however it lays weights.
    pub least: f64,
}

/// A class whose other terms no extract has that is scheduled.
#[derive(Clone, Debug)]
pub struct Aside {
    /// What is computed.
    pub dims: String,
    /// By which term.
    pub chosen: &'static str,
    /// The best of the others.
    pub other: &'static str,
    /// How many seconds longer the function takes with that, by the estimate.
    pub more: f64,
}

/// What the e-graph of a function came to.
#[derive(Clone, Debug)]
pub struct Report {
    /// Classes.
    pub classes: usize,
    /// Terms.
    pub terms: usize,
    /// How saturation ended.
    pub ended: Ended,
    /// Where forms differ.
    pub sites: Vec<SiteReport>,
    /// Where the estimate alone has decided.
    pub aside: Vec<Aside>,
}

impl Report {
    pub(super) fn new(terms: &TermGraph, ended: Ended) -> Report {
        let egraph = &terms.egraph;
        let (classes, all) = (egraph.number_of_classes(), egraph.total_number_of_nodes());
        Report { classes, terms: all, ended, sites: vec![], aside: vec![] }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = match self.ended {
            Ended::Saturated => "saturated",
            Ended::Spent => "the budget is spent",
            Ended::Void => "not believed: a rule is wrong, or the time was over",
        };
        writeln!(f, "{} classes, {} terms, {ended}", self.classes, self.terms)?;
        for found in &self.sites {
            let looked = if found.complete { "of all extracts" } else { "of some extracts" };
            let (greedy, least) = (found.greedy * 1e6, found.least * 1e6);
            writeln!(f, "{}: {looked}; greedy {greedy:.2} us, best {least:.2} us by the estimate", found.site)?;
            for (i, option) in found.options.iter().enumerate() {
                let star = if i == found.chosen { "*" } else { " " };
                let by = if found.scheduled.contains(&i) { "scheduled" } else { "estimated" };
                let (us, estimate) = (option.seconds * 1e6, found.estimates[i] * 1e6);
                writeln!(f, " {star} {us:10.2} us {by}, estimate {estimate:.2} us, {}: {}", option.name, option.plan)?;
            }
        }
        if !self.aside.is_empty() {
            writeln!(f, "decided by the estimate alone:")?;
        }
        for Aside { dims, chosen, other, more } in &self.aside {
            writeln!(f, "   {dims}: {chosen}; {other} would take {:.2} us more by the estimate", more * 1e6)?;
        }
        Ok(())
    }
}

/// What a term does, in a word.
pub(super) fn name(term: &Term) -> &'static str {
    match &term.form {
        TermForm::Leaf(_) => "Input",
        TermForm::Node { op, .. } => op.name(),
        TermForm::View(_) => "View",
        TermForm::Contract(_) => "Contraction",
    }
}

/// A form in a line: its sums and attentions from the last on, with their dims.
pub(super) fn form(g: &Graph, outputs: &[Id]) -> String {
    let mut names: Vec<String> = Vec::new();
    for id in g.toposort(outputs).into_iter().rev() {
        let node = &g[id];
        let name = match node.op {
            Op::Attention | Op::PagedAttention => {
                format!("attention {} over {}", g.show_dims(g.dims(id)), g.show_dims(g.dims(node.src[1])))
            }
            Op::Reduce if g[node.src[0]].op == Op::Mul && !g.dims(id).is_empty() => {
                format!("sum {}", g.show_dims(g.dims(node.src[0])))
            }
            _ => continue,
        };
        names.push(name);
        if names.len() == MOST {
            names.push("…".into());
            break;
        }
    }
    names.join(", ")
}

/// Names in a form's line.
const MOST: usize = 6;
