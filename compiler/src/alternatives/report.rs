//! Human-readable report of the equivalent forms found.

use super::saturate::Ended;
use super::term::{Term, TermForm};
use super::terms::TermGraph;
use crate::decision::Alternative;
use gristmill_uop::{Graph, Id, Op};
use std::fmt;

/// Report of a site and its forms.
#[derive(Clone, Debug)]
pub struct SiteReport {
    /// Function name and output dims.
    pub site: String,
    /// Forms, with the costs that the decision used.
    pub options: Vec<Alternative>,
    /// Estimated seconds of each form.
    pub estimates: Vec<f64>,
    /// Index of the chosen form.
    pub chosen: usize,
    /// Indices of the scheduled forms.
    pub scheduled: Vec<usize>,
    /// Whether all extracts were examined.
    pub complete: bool,
    /// Estimated seconds of the greedy extract after local search.
    pub greedy: f64,
    /// Estimated seconds of the best extract, whatever its weight layouts.
    pub least: f64,
}

/// An e-class decided by the estimate alone.
#[derive(Clone, Debug)]
pub struct Aside {
    /// Dims of the class.
    pub dims: String,
    /// Name of the chosen term.
    pub chosen: &'static str,
    /// Name of the best other term.
    pub other: &'static str,
    /// Estimated seconds that the function would take longer with the other term.
    pub more: f64,
}

/// Report of a function's saturation and extraction.
#[derive(Clone, Debug)]
pub struct Report {
    /// Number of e-classes.
    pub classes: usize,
    /// Number of terms (e-nodes).
    pub terms: usize,
    /// Reason that saturation ended.
    pub ended: Ended,
    /// Decided sites, in order.
    pub sites: Vec<SiteReport>,
    /// Classes decided by the estimate alone.
    pub aside: Vec<Aside>,
}

impl Report {
    pub(super) fn new(terms: &TermGraph, ended: Ended) -> Report {
        let egraph = &terms.egraph;
        let (classes, all) = (egraph.number_of_classes(), egraph.total_number_of_nodes());
        Report {
            classes,
            terms: all,
            ended,
            sites: vec![],
            aside: vec![],
        }
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
            let looked = if found.complete {
                "of all extracts"
            } else {
                "of some extracts"
            };
            let (greedy, least) = (found.greedy * 1e6, found.least * 1e6);
            writeln!(
                f,
                "{}: {looked}; greedy {greedy:.2} us, best {least:.2} us by the estimate",
                found.site
            )?;
            for (i, option) in found.options.iter().enumerate() {
                let star = if i == found.chosen { "*" } else { " " };
                let by = if found.scheduled.contains(&i) {
                    "scheduled"
                } else {
                    "estimated"
                };
                let (us, estimate) = (option.seconds * 1e6, found.estimates[i] * 1e6);
                writeln!(
                    f,
                    " {star} {us:10.2} us {by}, estimate {estimate:.2} us, {}: {}",
                    option.name, option.plan
                )?;
            }
        }
        if !self.aside.is_empty() {
            writeln!(f, "decided by the estimate alone:")?;
        }
        for Aside {
            dims,
            chosen,
            other,
            more,
        } in &self.aside
        {
            writeln!(
                f,
                "   {dims}: {chosen}; {other} would take {:.2} us more by the estimate",
                more * 1e6
            )?;
        }
        Ok(())
    }
}

/// Short name of a term's operation.
pub(super) fn name(term: &Term) -> &'static str {
    match &term.form {
        TermForm::Leaf(_) => "Input",
        TermForm::Node { op, .. } => op.name(),
        TermForm::View(_) => "View",
        TermForm::Contract(_) => "Contraction",
    }
}

/// Describes a form in one line: its sums and attentions with their dims, last first.
pub(super) fn form(g: &Graph, outputs: &[Id]) -> String {
    let mut names: Vec<String> = Vec::new();
    for id in g.toposort(outputs).into_iter().rev() {
        let node = &g[id];
        let name = match node.op {
            Op::Attention | Op::PagedAttention => {
                format!(
                    "attention {} over {}",
                    g.show_dims(g.dims(id)),
                    g.show_dims(g.dims(node.src[1]))
                )
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

/// Limit on the names in that line.
const MOST: usize = 6;
