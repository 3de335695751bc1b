//! The e-graph of a function's body, and builders for the right sides of rules.

use super::term::{
    Class, ContractionTerm, Facts, Known, Map, Shaped, Source, Term, TermForm, View,
};
use gristmill_uop::dtype::DType;
use gristmill_uop::shape::Dims;
use gristmill_uop::{Arg, Graph, Id, Op, Scalar};
use smallvec::SmallVec;
use std::cell::RefCell;

/// Limit on nested views when the source of a view is looked up.
const DEEPEST: usize = 8;

/// An e-graph of terms, over the scalars of a graph.
pub struct TermGraph {
    /// Graph of the function, with dims and other scalars.
    pub graph: Graph,
    /// E-classes of terms.
    pub egraph: egg::EGraph<Term, Known>,
    /// Terms for which a rule found a better one.
    pub worse: Vec<Term>,
    /// Classes read since the list was last cleared.
    pub read: RefCell<Vec<Class>>,
}

/// A factor of a sum of products: a class and the index of each of its axes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TermFactor {
    /// E-class of the factor.
    pub class: Class,
    /// Index of each axis; `None` for those of length 1.
    pub map: Map,
}

impl TermFactor {
    /// Returns whether the factor depends on that index.
    pub fn has(&self, index: u8) -> bool {
        self.map.contains(&Some(index))
    }
}

/// A sum of products as rules write it, with indices numbered arbitrarily.
pub struct ProductSum {
    /// The two factors, in either order.
    pub factors: [TermFactor; 2],
    /// Index of each result axis.
    pub out: Map,
    /// Length of each index.
    pub sizes: Dims,
}

impl ProductSum {
    /// Combines a contraction and its children.
    pub fn from_contraction(contraction: &ContractionTerm, children: &[Class]) -> ProductSum {
        let factor = |i: usize| TermFactor {
            class: children[i],
            map: contraction.operands[i].clone(),
        };
        ProductSum {
            factors: [factor(0), factor(1)],
            out: contraction.out.clone(),
            sizes: contraction.sizes.clone(),
        }
    }
    /// Returns whether that index is summed.
    pub fn sums(&self, index: u8) -> bool {
        !self.out.contains(&Some(index))
    }
}

impl TermGraph {
    /// Returns the analysis facts of a class.
    pub fn facts(&self, class: Class) -> &Facts {
        self.read.borrow_mut().push(class);
        &self.egraph[class].data
    }
    /// Returns the dims of a class.
    pub fn dims(&self, class: Class) -> Dims {
        self.facts(class).dims.clone()
    }
    /// Returns the terms of a class.
    pub fn terms(&self, class: Class) -> Vec<Term> {
        self.read.borrow_mut().push(class);
        self.egraph[class].nodes.clone()
    }
    /// Returns the terms of a class with this op.
    pub fn of_op(&self, class: Class, op: Op) -> Vec<Term> {
        self.read.borrow_mut().push(class);
        self.egraph[class]
            .nodes
            .iter()
            .filter(|t| t.op() == Some(op))
            .cloned()
            .collect()
    }
    /// Returns the contractions of a class with their children.
    pub fn sums(&self, class: Class) -> Vec<ProductSum> {
        let sum = |t: &Term| match &t.form {
            TermForm::Contract(c) => Some(ProductSum::from_contraction(c, &t.children)),
            _ => None,
        };
        self.read.borrow_mut().push(class);
        self.egraph[class].nodes.iter().filter_map(sum).collect()
    }
    /// Returns whether the length is 1.
    pub fn is_one(&self, dim: Id) -> bool {
        self.graph.int_value(dim) == Some(1)
    }
    /// Adds a term and returns its class.
    pub fn add(&mut self, form: TermForm, dtype: DType, dims: Dims, children: &[Class]) -> Class {
        self.egraph.add(Term {
            form,
            dtype,
            dims,
            children: SmallVec::from_slice(children),
        })
    }
    /// Adds an op of children and scalars; the children come first among its sources.
    pub fn node(
        &mut self,
        op: Op,
        arg: Arg,
        of: Shaped,
        children: &[Class],
        scalars: &[Id],
    ) -> Class {
        let scalars = scalars.iter().map(|&s| Source::Scalar(s));
        let sources = children
            .iter()
            .map(|_| Source::Child)
            .chain(scalars)
            .collect();
        self.add(
            TermForm::Node { op, arg, sources },
            of.dtype,
            of.dims,
            children,
        )
    }
    /// Casts `child` to a scalar type.
    pub fn cast(&mut self, child: Class, to: Scalar) -> Class {
        let dims = self.dims(child);
        self.node(
            Op::Cast,
            Arg::None,
            Shaped::new(to.one(), dims),
            &[child],
            &[],
        )
    }
    /// Concatenates parts along an axis.
    pub fn cat(&mut self, parts: &[Class], axis: usize) -> Class {
        if let [one] = parts {
            return *one;
        }
        let (mut dims, dtype) = (self.dims(parts[0]), self.facts(parts[0]).dtype);
        let mut total = self.graph.int(0);
        for &part in parts {
            let length = self.dims(part)[axis];
            total = self.graph.add(total, length);
        }
        dims[axis] = total;
        self.node(
            Op::Cat,
            Arg::Axes([axis as u8].into_iter().collect()),
            Shaped::new(dtype, dims),
            parts,
            &[total],
        )
    }
    /// Returns the source of a class and the view of it; the class itself if it is not a view.
    pub fn source(&mut self, class: Class) -> (Class, View) {
        let mut at = self.egraph.find(class);
        let dims = self.dims(at);
        let mut view = View::whole(&mut self.graph, &dims);
        for _ in 0..DEEPEST {
            self.read.borrow_mut().push(at);
            let found = self.egraph[at].nodes.iter().find_map(|t| match &t.form {
                TermForm::View(v) => {
                    Some((v.clone(), self.egraph.find(t.children[0]))).filter(|f| f.1 != at)
                }
                _ => None,
            });
            let Some((inner, below)) = found else { break };
            view = view.of_view(&mut self.graph, &inner);
            at = below;
        }
        (at, view)
    }
    /// Adds a view of a class, composed with the class's own view.
    pub fn view(&mut self, class: Class, view: &View, dims: &[Id]) -> Class {
        let (source, inner) = self.source(class);
        let view = view.of_view(&mut self.graph, &inner);
        let (of, dtype) = (self.dims(source), self.facts(source).dtype);
        if view.is_identity(&self.graph, &of, dims) {
            return source;
        }
        self.add(
            TermForm::View(view),
            dtype,
            Dims::from_slice(dims),
            &[source],
        )
    }
    /// Rearranges the axes of a class from indices `from` to `to`; missing indices are repeated to
    /// their length in `sizes`.
    pub fn arranged(&mut self, class: Class, from: &Map, to: &Map, sizes: &[Id]) -> Class {
        let one = self.graph.int(1);
        let dims: Dims = to
            .iter()
            .map(|i| i.map_or(one, |i| sizes[i as usize]))
            .collect();
        let axis = |i: &Option<u8>| {
            i.and_then(|_| from.iter().position(|f| f == i))
                .map(|a| a as u8)
        };
        let old = self.dims(class);
        let whole = View::whole(&mut self.graph, &old);
        let view = View {
            axes: to.iter().map(axis).collect(),
            ..whole
        };
        self.view(class, &view, &dims)
    }
    /// Replaces a factor's view by its window, with the axes of the source.
    fn simplest(&mut self, factor: &TermFactor) -> TermFactor {
        let (source, view) = self.source(factor.class);
        let (window, dims) = view.window(&self.graph);
        let class = self.view(source, &window, &dims);
        let mut map: Map = dims.iter().map(|_| None).collect();
        for (axis, index) in view.axes.iter().zip(&factor.map) {
            if let Some(axis) = axis {
                map[*axis as usize] = *index;
            }
        }
        TermFactor { class, map }
    }
    /// Adds a sum of products; `None` if no factor has one of its summed indices.
    pub fn contract(&mut self, sum: &ProductSum) -> Option<Class> {
        let long = |t: &TermGraph, map: &Map| -> Map {
            map.iter()
                .map(|i| i.filter(|&i| !t.is_one(sum.sizes[i as usize])))
                .collect()
        };
        let mut factors = sum.factors.clone().map(|f| TermFactor {
            map: long(self, &f.map),
            ..f
        });
        let out = long(self, &sum.out);
        for f in &mut factors {
            *f = self.simplest(f);
        }
        if self.facts(factors[1].class).weight && !self.facts(factors[0].class).weight {
            factors.swap(0, 1);
        }
        let known = |i: u8| factors.iter().any(|f| f.has(i));
        let summed = sum
            .factors
            .iter()
            .flat_map(|f| long(self, &f.map))
            .flatten()
            .filter(|&i| !out.contains(&Some(i)));
        if summed.clone().any(|i| !known(i)) {
            return None;
        }
        // Indices that no factor has are repeated.
        let inner: Map = out.iter().map(|i| i.filter(|&i| known(i))).collect();
        let mut order: SmallVec<[u8; 6]> = SmallVec::new();
        for i in inner
            .iter()
            .chain(factors.iter().flat_map(|f| &f.map))
            .flatten()
        {
            if !order.contains(i) {
                order.push(*i);
            }
        }
        let renamed = |map: &Map| -> Map {
            map.iter()
                .map(|i| {
                    i.and_then(|i| order.iter().position(|&o| o == i))
                        .map(|i| i as u8)
                })
                .collect()
        };
        let operands = [renamed(&factors[0].map), renamed(&factors[1].map)];
        let sizes: Dims = order.iter().map(|&i| sum.sizes[i as usize]).collect();
        let dtype = self.facts(factors[0].class).dtype;
        let one = self.graph.int(1);
        let dims: Dims = inner
            .iter()
            .map(|i| i.map_or(one, |i| sum.sizes[i as usize]))
            .collect();
        let contraction = ContractionTerm {
            operands,
            out: renamed(&inner),
            sizes,
        };
        let class = self.add(
            TermForm::Contract(contraction),
            dtype,
            dims,
            &[factors[0].class, factors[1].class],
        );
        Some(if inner == out {
            class
        } else {
            self.arranged(class, &inner, &out, &sum.sizes)
        })
    }
}

impl TermGraph {
    /// The same op with other children and dims.
    pub fn like(&mut self, term: &Term, children: &[Class], dims: Dims) -> Class {
        self.add(term.form.clone(), term.dtype, dims, children)
    }
}
