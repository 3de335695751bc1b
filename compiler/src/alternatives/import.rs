//! Imports a function's body into an e-graph. A node is also added as a view or a contraction where
//! it is one, so that rules match it.

use super::term::{Class, Known, Map, Source, Term, TermForm, View};
use super::terms::{ProductSum, TermFactor, TermGraph};
use gristmill_uop::shape::Dims;
use gristmill_uop::{Arg, Graph, Id, Op, ReduceOp, Scalar};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use std::cell::RefCell;

/// A function's body as an e-graph, before saturation.
pub struct FunctionBody {
    /// E-graph of the function's tensors.
    pub terms: TermGraph,
    /// E-class of each tensor node.
    pub classes: FxHashMap<Id, Class>,
    /// Terms of the function's nodes in order: the written form.
    written: Vec<(Class, Term)>,
    /// Views and contractions that duplicate written terms.
    shadows: Vec<Term>,
    /// Products that occur as operands of a sum.
    products: Vec<Class>,
}

/// The written form after saturation, by canonical e-class.
pub struct Written {
    /// Written term of each class.
    pub term: FxHashMap<Class, Term>,
    /// Terms that are no candidates: they duplicate a written term, or a rule has a better one.
    pub shadows: FxHashSet<Term>,
    /// Classes of products that occur as operands of a written sum.
    pub products: FxHashSet<Class>,
}

impl FunctionBody {
    /// Imports the nodes that `roots` are computed from.
    pub fn new(graph: &Graph, roots: &[Id]) -> FunctionBody {
        let order = graph.toposort(roots);
        let weights = order
            .iter()
            .copied()
            .filter(|&n| graph[n].op == Op::Decode)
            .collect();
        let egraph = egg::EGraph::new(Known { weights });
        let terms = TermGraph {
            graph: graph.clone(),
            egraph,
            worse: vec![],
            read: RefCell::default(),
        };
        let mut body = FunctionBody {
            terms,
            classes: FxHashMap::default(),
            written: vec![],
            shadows: vec![],
            products: vec![],
        };
        for id in order {
            // Packed weights are accessible only through their decoded values.
            if !graph.dims(id).is_empty() && !matches!(graph[id].arg, Arg::Packed(..)) {
                body.node(id);
            }
        }
        body.terms.egraph.rebuild();
        let written: FxHashSet<Class> = body
            .written
            .iter()
            .map(|w| body.terms.egraph.find(w.0))
            .collect();
        for class in body
            .terms
            .egraph
            .classes()
            .filter(|c| written.contains(&c.id))
        {
            let again = |t: &&Term| matches!(t.form, TermForm::View(_) | TermForm::Contract(_));
            body.shadows
                .extend(class.nodes.iter().filter(again).cloned());
        }
        body
    }
    /// Adds one node; its sources have been added.
    fn node(&mut self, id: Id) {
        let node = self.terms.graph[id].clone();
        let (dtype, dims) = (node.dtype, self.terms.graph.shape(id));
        let leaf = matches!(node.op, Op::Param | Op::Iota | Op::Decode);
        let child = |s: &Id| self.classes.get(s).copied().filter(|_| !leaf);
        let children: SmallVec<[Class; 3]> = node.src.iter().filter_map(child).collect();
        let form = match leaf {
            true => TermForm::Leaf(id),
            false => {
                let source = |s: &Id| {
                    if child(s).is_some() {
                        Source::Child
                    } else {
                        Source::Scalar(*s)
                    }
                };
                TermForm::Node {
                    op: node.op,
                    arg: node.arg.clone(),
                    sources: node.src.iter().map(source).collect(),
                }
            }
        };
        let term = Term {
            form,
            dtype,
            dims: dims.clone(),
            children,
        };
        let mut class = self.terms.egraph.add(term.clone());
        self.written.push((class, term.clone()));
        let again = match (node.op, &node.arg) {
            (op, _) if op.is_movement() && op != Op::Cat && !term.children.is_empty() => {
                self.moved(&node, &term, &dims)
            }
            (Op::Reduce, Arg::Reduce(ReduceOp::Add, axes)) if dtype.scalar == Scalar::F32 => {
                self.sum(node.src[0], axes)
            }
            _ => None,
        };
        if let Some(again) = again {
            self.terms.egraph.union(class, again);
            class = self.terms.egraph.find(class);
        }
        self.classes.insert(id, class);
    }
    fn moved(&mut self, node: &gristmill_uop::Node, term: &Term, dims: &Dims) -> Option<Class> {
        let child = term.children[0];
        let old = self.terms.dims(child);
        let view = View::from_node(&mut self.terms.graph, node, &old, dims)?;
        Some(self.terms.view(child, &view, dims))
    }
    /// The contraction form of a sum of a product over `axes`.
    fn sum(&mut self, product: Id, axes: &[u8]) -> Option<Class> {
        let node = &self.terms.graph[product];
        let (op, src) = (node.op, node.src.clone());
        let sides = [
            *self.classes.get(src.first()?)?,
            *self.classes.get(src.get(1)?)?,
        ];
        if op != Op::Mul {
            return None;
        }
        let sizes = self.terms.graph.shape(product);
        let map: Map = (0..sizes.len() as u8).map(Some).collect();
        let out = map
            .iter()
            .copied()
            .filter(|i| i.is_none_or(|i| !axes.contains(&i)))
            .collect();
        let factors = sides.map(|class| TermFactor {
            class,
            map: map.clone(),
        });
        let class = self.terms.contract(&ProductSum {
            factors,
            out,
            sizes,
        })?;
        self.products.push(self.classes[&product]);
        Some(class)
    }
    /// The written form in terms of canonical e-classes.
    pub fn written(&self) -> Written {
        let egraph = &self.terms.egraph;
        let now = |t: &Term| {
            let mut t = t.clone();
            t.children.iter_mut().for_each(|c| *c = egraph.find(*c));
            t
        };
        let mut term = FxHashMap::default();
        let mut shadows: FxHashSet<Term> = self
            .shadows
            .iter()
            .chain(&self.terms.worse)
            .map(now)
            .collect();
        for (class, t) in &self.written {
            let t = now(t);
            if term.entry(egraph.find(*class)).or_insert_with(|| t.clone()) != &t {
                shadows.insert(t);
            }
        }
        Written {
            term,
            shadows,
            products: self.products.iter().map(|&c| egraph.find(c)).collect(),
        }
    }
}
