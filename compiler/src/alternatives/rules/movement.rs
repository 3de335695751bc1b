//! Rules for concatenations of adjacent windows and of repeated parts.

use super::rule::rules;
use crate::alternatives::term::{Class, Term, View};
use crate::alternatives::terms::TermGraph;
use gristmill_uop::Id;

rules! {
    better "cat(x[a..b], x[b..c]) -> x[a..c]" neighbours;
    better "cat(repeated a, repeated b) -> repeated cat(a, b)" repeated;
}

/// Axis of a concatenation, and the source and view of each part.
fn parts(t: &mut TermGraph, term: &Term) -> Option<(usize, Vec<(Class, View)>)> {
    let axis = term.joined()?;
    Some((axis, term.children.iter().map(|&c| t.source(c)).collect()))
}

fn neighbours(t: &mut TermGraph, term: &Term) -> Vec<Class> {
    let Some((axis, parts)) = parts(t, term) else {
        return vec![];
    };
    let ((source, first), rest) = parts.split_first().expect("something is joined");
    let Some(along) = first.axes[axis].map(usize::from) else {
        return vec![];
    };
    let mut whole = first.clone();
    for (other, view) in rest {
        if other != source {
            return vec![];
        }
        let end = t.graph.add(whole.windows[along].0, whole.windows[along].1);
        let mut alike = view.clone();
        alike.windows[along] = whole.windows[along];
        if alike != whole || view.windows[along].0 != end {
            return vec![];
        }
        whole.windows[along].1 = t.graph.add(whole.windows[along].1, view.windows[along].1);
    }
    vec![t.view(*source, &whole, &term.dims)]
}

fn repeated(t: &mut TermGraph, term: &Term) -> Vec<Class> {
    let Some((axis, parts)) = parts(t, term) else {
        return vec![];
    };
    let is = |t: &TermGraph, i: usize| {
        i != axis && !t.is_one(term.dims[i]) && parts.iter().all(|p| p.1.axes[i].is_none())
    };
    let axes: Vec<usize> = (0..term.dims.len()).filter(|&i| is(t, i)).collect();
    if axes.is_empty() {
        return vec![];
    }
    let one = t.graph.int(1);
    let once = |dims: &[Id]| {
        dims.iter()
            .enumerate()
            .map(|(i, &d)| if axes.contains(&i) { one } else { d })
            .collect::<Vec<Id>>()
    };
    let mut joined = Vec::new();
    for (&child, (source, view)) in term.children.iter().zip(&parts) {
        let dims = once(&t.dims(child));
        joined.push(t.view(*source, view, &dims));
    }
    let cat = t.cat(&joined, axis);
    let mut view = View::whole(&mut t.graph, &term.dims);
    let dims = once(&term.dims);
    for (i, window) in view.windows.iter_mut().enumerate() {
        window.1 = dims[i];
        if axes.contains(&i) {
            view.axes[i] = None;
        }
    }
    vec![t.view(cat, &view, &term.dims)]
}
