//! Movement ops as views: conversion from graph nodes, and composition.

use super::term::{Map, View};
use gristmill_uop::shape::Dims;
use gristmill_uop::{Arg, Graph, Id, Node, Op};

impl View {
    /// Returns the identity view of a tensor with these dims.
    pub fn whole(g: &mut Graph, dims: &[Id]) -> View {
        let zero = g.int(0);
        let axes = (0..dims.len()).map(|i| Some(i as u8)).collect();
        View {
            windows: dims.iter().map(|&d| (zero, d)).collect(),
            axes,
        }
        .canonical(g, dims)
    }
    /// Converts a movement of a tensor with dims `old` to a view; `None` if it
    /// splits or merges axes.
    pub fn from_node(g: &mut Graph, node: &Node, old: &[Id], new: &[Id]) -> Option<View> {
        let mut view = View::whole(g, old);
        match (node.op, &node.arg) {
            (Op::Permute, Arg::Axes(order)) => view.axes = order.iter().map(|&a| Some(a)).collect(),
            (Op::Expand, _) => {
                let same = |(i, (a, b)): (usize, (&Id, &Id))| (a == b).then_some(i as u8);
                view.axes = old.iter().zip(new).enumerate().map(same).collect();
            }
            (Op::Shrink, _) => {
                view.windows = node.src[1..].chunks(2).map(|w| (w[0], w[1])).collect();
                view.axes = (0..old.len()).map(|i| Some(i as u8)).collect();
            }
            (Op::Reshape, _) => view.axes = reshaped(g, old, new)?,
            _ => return None,
        }
        Some(view.canonical(g, new))
    }
    /// Unnames result axes of length 1.
    fn canonical(mut self, g: &Graph, dims: &[Id]) -> View {
        for (axis, &dim) in self.axes.iter_mut().zip(dims) {
            if g.int_value(dim) == Some(1) {
                *axis = None;
            }
        }
        self
    }
    /// Composes this view with `inner`: a view of the source of `inner`.
    pub fn of_view(&self, g: &mut Graph, inner: &View) -> View {
        let mut windows = inner.windows.clone();
        for (axis, &(begin, length)) in inner.axes.iter().zip(&self.windows) {
            if let Some(source) = axis {
                let window = &mut windows[*source as usize];
                *window = (g.add(window.0, begin), length);
            }
        }
        let axes = self
            .axes
            .iter()
            .map(|a| a.and_then(|a| inner.axes[a as usize]))
            .collect();
        View { windows, axes }
    }
    /// Returns whether the windows cover a source with these dims.
    pub fn takes_all(&self, g: &Graph, source: &[Id]) -> bool {
        self.windows
            .iter()
            .zip(source)
            .all(|(w, &d)| g.int_value(w.0) == Some(0) && w.1 == d)
    }
    /// Returns whether the view leaves a tensor of these dims unchanged.
    pub fn is_identity(&self, g: &Graph, source: &[Id], dims: &[Id]) -> bool {
        let kept =
            |(i, a): (usize, &Option<u8>)| *a == Some(i as u8) || g.int_value(dims[i]) == Some(1);
        source == dims && self.takes_all(g, source) && self.axes.iter().enumerate().all(kept)
    }
    /// Returns the window without axis changes, and its dims.
    pub fn window(&self, g: &Graph) -> (View, Dims) {
        let dims: Dims = self.windows.iter().map(|w| w.1).collect();
        let axes = (0..dims.len()).map(|i| Some(i as u8)).collect();
        (
            View {
                windows: self.windows.clone(),
                axes,
            }
            .canonical(g, &dims),
            dims,
        )
    }
}

/// Source axes of a reshape that only adds or removes axes of length 1.
fn reshaped(g: &Graph, old: &[Id], new: &[Id]) -> Option<Map> {
    let long = |d: &Id| g.int_value(*d) != Some(1);
    let mut from = (0..old.len()).filter(|&i| long(&old[i]));
    let mut axes = Map::new();
    for d in new {
        axes.push(match long(d) {
            true => Some(from.next().filter(|&i| old[i] == *d)? as u8),
            false => None,
        });
    }
    from.next().is_none().then_some(axes)
}
