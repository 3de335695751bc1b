//! Converts extracted terms back to graph nodes.

use super::extract::{Picks, Space};
use super::term::{ContractionTerm, Source, Term, TermForm, View};
use gristmill_uop::shape::Dims;
use gristmill_uop::{Graph, Id, Node, Op, ReduceOp, Sources};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::cell::RefCell;

/// Builds the nodes of an extract. Written terms map to their original nodes.
pub struct Rebuild {
    /// Original nodes of the function.
    known: FxHashMap<Node, Id>,
    /// Nodes built so far; extracts have most nodes in common.
    made: RefCell<FxHashMap<Made, Id>>,
}

/// E-class, choice, and child nodes.
type Made = (usize, usize, SmallVec<[Id; 4]>);

impl Rebuild {
    /// Collects the original nodes below `roots`.
    pub fn new(graph: &Graph, roots: &[Id]) -> Rebuild {
        let known = graph
            .toposort(roots)
            .into_iter()
            .map(|id| (graph[id].clone(), id))
            .collect();
        Rebuild {
            known,
            made: RefCell::default(),
        }
    }
    /// Returns the nodes of these classes; `None` if `picks` is not a valid extract.
    pub fn nodes(
        &self,
        space: &Space,
        g: &mut Graph,
        picks: &Picks,
        classes: &[usize],
    ) -> Option<Vec<Id>> {
        let mut nodes: FxHashMap<usize, Id> = FxHashMap::default();
        for class in space.needed(picks, classes)? {
            let pick = picks[class]?;
            let choice = &space.choices[class][pick];
            let children: SmallVec<[Id; 4]> = choice.children.iter().map(|c| nodes[c]).collect();
            let key = (class, pick, children);
            let made = self.made.borrow().get(&key).copied();
            let id = match made {
                Some(id) => id,
                None => self.node(g, &choice.term, &key.2)?,
            };
            self.made.borrow_mut().insert(key, id);
            nodes.insert(class, id);
        }
        classes.iter().map(|c| nodes.get(c).copied()).collect()
    }
    /// Node of a term, given its children.
    fn node(&self, g: &mut Graph, term: &Term, children: &[Id]) -> Option<Id> {
        Some(match &term.form {
            TermForm::Leaf(id) => *id,
            TermForm::View(view) => moved(g, view, children[0], &term.dims),
            TermForm::Contract(c) => contracted(g, c, [children[0], children[1]], &term.dims),
            TermForm::Node { op, arg, sources } => {
                let mut next = children.iter();
                let source = |s: &Source| match s {
                    Source::Child => next.next().copied(),
                    Source::Scalar(id) => Some(*id),
                };
                let src: Sources = sources.iter().map(source).collect::<Option<_>>()?;
                let node = Node {
                    op: *op,
                    dtype: term.dtype,
                    src,
                    arg: arg.clone(),
                };
                match self.known.get(&node) {
                    Some(&id) => id,
                    None => g.build(node.op, node.dtype, node.src, node.arg),
                }
            }
        })
    }
}

/// Builds a view: permutes axes, then shrinks, then expands. Shrinking last lets a window of an
/// existing view reuse that view's node.
fn moved(g: &mut Graph, view: &View, x: Id, dims: &Dims) -> Id {
    let (old, one) = (g.shape(x), g.int(1));
    let whole = |g: &Graph, i: usize, of: &[Id]| {
        g.int_value(view.windows[i].0) == Some(0) && view.windows[i].1 == of[i]
    };
    // An omitted axis is first shrunk to one element.
    let out = |i: usize| !view.axes.contains(&Some(i as u8));
    let first: Vec<(Id, Id)> = (0..old.len())
        .map(|i| {
            if out(i) {
                view.windows[i]
            } else {
                (g.int(0), old[i])
            }
        })
        .collect();
    let x = g.shrink(x, &first);
    let order: Vec<usize> = view
        .axes
        .iter()
        .flatten()
        .map(|&a| usize::from(a))
        .collect();
    let kept: Vec<usize> = (0..old.len()).filter(|&i| !out(i)).collect();
    // Axes of length 1 are placed between the others as in the result.
    let x = if order.windows(2).all(|w| w[0] < w[1]) {
        x
    } else {
        let kept_dims: Dims = kept.iter().map(|&i| old[i]).collect();
        let x = g.reshape(x, &kept_dims);
        let places: Vec<usize> = order
            .iter()
            .map(|o| kept.iter().position(|k| k == o).expect("kept"))
            .collect();
        g.permute(x, &places)
    };
    let placed: Dims = view
        .axes
        .iter()
        .map(|a| a.map_or(one, |a| old[a as usize]))
        .collect();
    let x = g.reshape(x, &placed);
    let zero = g.int(0);
    let cut = |(a, &d): (&Option<u8>, &Id)| a.map_or((zero, d), |a| view.windows[a as usize]);
    let windows: Vec<(Id, Id)> = view.axes.iter().zip(&placed).map(cut).collect();
    let any = (0..old.len()).any(|i| !out(i) && !whole(g, i, &old));
    let x = if any { g.shrink(x, &windows) } else { x };
    g.expand(x, dims)
}

/// Builds a contraction as `Tensor::contract` does: axes of the result first, then the summed ones.
fn contracted(g: &mut Graph, c: &ContractionTerm, of: [Id; 2], dims: &Dims) -> Id {
    let summed: Vec<u8> = c.summed().collect();
    let axes: Vec<Option<u8>> = c
        .out
        .iter()
        .copied()
        .chain(summed.iter().map(|&i| Some(i)))
        .collect();
    let one = g.int(1);
    let full: Dims = dims
        .iter()
        .copied()
        .chain(summed.iter().map(|&i| c.sizes[i as usize]))
        .collect();
    let sides = [0, 1].map(|side| {
        let (x, map) = (of[side], &c.operands[side]);
        let old = g.shape(x);
        let place = |index: &Option<u8>| index.and_then(|_| map.iter().position(|m| m == index));
        let order: Vec<usize> = axes.iter().filter_map(&place).collect();
        let dims: Dims = axes
            .iter()
            .map(|i| place(i).map_or(one, |a| old[a]))
            .collect();
        let x = match order.windows(2).all(|w| w[0] < w[1]) {
            true => x,
            false => {
                // Unnamed axes of length 1 stay at the end.
                let rest = (0..old.len()).filter(|i| !order.contains(i));
                let all: Vec<usize> = order.iter().copied().chain(rest).collect();
                g.permute(x, &all)
            }
        };
        let x = g.reshape(x, &dims);
        g.expand(x, &full)
    });
    let product = g.mul(sides[0], sides[1]);
    if summed.is_empty() {
        return product;
    }
    let last: Vec<usize> = (dims.len()..full.len()).collect();
    debug_assert!(g[product].op != Op::Const);
    g.reduce(product, &last, ReduceOp::Add)
}
