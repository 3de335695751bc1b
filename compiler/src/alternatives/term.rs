//! Terms of the e-graph: what a class of equal tensors can be computed by.
//!
//! A term has tensors as children; scalars, dims and window begins are nodes of the function's graph, which are in normal form there and so equal where they are the same
//! node. Two forms exist beside the ops of the graph, so that a rule sees mathematics and not the movements that it was written with: [`View`], whatever moves
//! elements without a change of their number in memory order, and [`ContractionTerm`], a sum of products by its index maps.

use gristmill_uop::dtype::DType;
use gristmill_uop::shape::Dims;
use gristmill_uop::{Arg, Id, Op};
use smallvec::SmallVec;
use std::cmp::Ordering;

/// A class of equal terms.
pub type Class = egg::Id;

/// For each axis one of something else, or nothing where the axis has length 1 or is repeated.
pub type Map = SmallVec<[Option<u8>; 6]>;

/// A window of a tensor with its axes in another order, axes of length 1 left out or added, others repeated.
///
/// Canonical: an axis of length 1 of the result names no axis of the source, and an axis of the source that is named by none has a window of length 1.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct View {
    /// Begin and length, for each axis of the source.
    pub windows: SmallVec<[(Id, Id); 6]>,
    /// The axis of the source that an axis of the result walks along; none where it repeats.
    pub axes: Map,
}

/// `out = Σ a·b`, by the index that each axis walks along. Indices are numbered as they occur: first in `out`, then in `a`, then in `b`; those that `out` has not are summed.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ContractionTerm {
    /// For each operand, the index of each axis.
    pub operands: [Map; 2],
    /// The index of each axis of the result.
    pub out: Map,
    /// The length of each index.
    pub sizes: Dims,
}

impl ContractionTerm {
    /// The indices that are summed.
    pub fn summed(&self) -> impl Iterator<Item = u8> + '_ {
        (0..self.sizes.len() as u8).filter(|&i| !self.out.contains(&Some(i)))
    }
}

/// A source of an op.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Source {
    /// The next child.
    Child,
    /// A scalar of the graph.
    Scalar(Id),
}

/// What a term does with its children.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum TermForm {
    /// A node of the graph that is none of the below: a parameter, a weight, a list of indices.
    Leaf(Id),
    /// An op of the graph.
    Node {
        /// Which.
        op: Op,
        /// With that argument.
        arg: Arg,
        /// Its sources, in order.
        sources: SmallVec<[Source; 6]>,
    },
    /// Elements of the child, moved.
    View(View),
    /// A sum of products of the two children.
    Contract(ContractionTerm),
}

/// Type and dims of what a node computes.
pub struct Shaped {
    /// The type.
    pub dtype: DType,
    /// The dims.
    pub dims: Dims,
}

impl Shaped {
    /// Of that type and these dims.
    pub fn new(dtype: DType, dims: Dims) -> Shaped {
        Shaped { dtype, dims }
    }
}

/// A term.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Term {
    /// What it does.
    pub form: TermForm,
    /// Type of its elements.
    pub dtype: DType,
    /// Its dims.
    pub dims: Dims,
    /// Of what.
    pub children: SmallVec<[Class; 3]>,
}

impl Term {
    /// Its type and dims.
    pub fn shaped(&self) -> Shaped {
        Shaped::new(self.dtype, self.dims.clone())
    }
    /// The op, of a term that is one.
    pub fn op(&self) -> Option<Op> {
        match self.form {
            TermForm::Node { op, .. } => Some(op),
            _ => None,
        }
    }
    /// The axis that a `CAT` joins along.
    pub fn joined(&self) -> Option<usize> {
        match &self.form {
            TermForm::Node { op: Op::Cat, arg: Arg::Axes(axes), .. } => Some(axes[0] as usize),
            _ => None,
        }
    }
}

impl PartialOrd for Term {
    fn partial_cmp(&self, other: &Term) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Term {
    /// Any order will do that does not change from run to run.
    fn cmp(&self, other: &Term) -> Ordering {
        let form = || match (&self.form, &other.form) {
            (TermForm::Leaf(a), TermForm::Leaf(b)) => a.cmp(b),
            (TermForm::Node { op: a, arg: x, sources: s }, TermForm::Node { op: b, arg: y, sources: t }) => {
                // Arguments have no order of their own; few terms differ in nothing else.
                let arguments = || if x == y { Ordering::Equal } else { format!("{x:?}").cmp(&format!("{y:?}")) };
                a.cmp(b).then_with(|| s.cmp(t)).then_with(arguments)
            }
            (TermForm::View(a), TermForm::View(b)) => a.cmp(b),
            (TermForm::Contract(a), TermForm::Contract(b)) => a.cmp(b),
            (a, b) => rank(a).cmp(&rank(b)),
        };
        let scalar = |d: &DType| (d.scalar as u8, d.lanes);
        self.children
            .cmp(&other.children)
            .then_with(|| self.dims.cmp(&other.dims))
            .then_with(|| scalar(&self.dtype).cmp(&scalar(&other.dtype)))
            .then_with(form)
    }
}

fn rank(form: &TermForm) -> u8 {
    match form {
        TermForm::Leaf(_) => 0,
        TermForm::Node { .. } => 1,
        TermForm::View(_) => 2,
        TermForm::Contract(_) => 3,
    }
}

impl egg::Language for Term {
    type Discriminant = u8;
    fn discriminant(&self) -> u8 {
        rank(&self.form)
    }
    fn matches(&self, other: &Term) -> bool {
        self.form == other.form
            && self.dtype == other.dtype
            && self.dims == other.dims
            && self.children.len() == other.children.len()
    }
    fn children(&self) -> &[Class] {
        &self.children
    }
    fn children_mut(&mut self) -> &mut [Class] {
        &mut self.children
    }
}

/// What is known of all terms of a class.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Type of the elements.
    pub dtype: DType,
    /// Dims.
    pub dims: Dims,
    /// Is it a packed weight, moved or gathered perhaps?
    pub weight: bool,
    /// Were terms of different dims or types said to be equal? Then a rule is wrong, and nothing of the graph may be believed.
    pub unsound: bool,
}

/// The analysis that has [`Facts`] of every class.
#[derive(Default)]
pub struct Known {
    /// Leaves that are weights.
    pub weights: rustc_hash::FxHashSet<Id>,
}

impl egg::Analysis<Term> for Known {
    type Data = Facts;
    fn make(graph: &mut egg::EGraph<Term, Known>, term: &Term, _: Class) -> Facts {
        let first = || term.children.first().is_some_and(|&c| graph[c].data.weight);
        let weight = match &term.form {
            TermForm::Leaf(id) => graph.analysis.weights.contains(id),
            TermForm::View(_) => first(),
            TermForm::Node { op, .. } => (op.is_movement() || *op == Op::Gather) && first(),
            TermForm::Contract(_) => false,
        };
        Facts { dtype: term.dtype, dims: term.dims.clone(), weight, unsound: false }
    }
    fn merge(&mut self, a: &mut Facts, b: Facts) -> egg::DidMerge {
        let before = a.clone();
        let differ = a.dtype != b.dtype || a.dims != b.dims;
        debug_assert!(!differ, "a rule says that {:?} {:?} is {:?} {:?}", a.dtype, a.dims, b.dtype, b.dims);
        a.unsound |= b.unsound || differ;
        a.weight |= b.weight;
        egg::DidMerge(before != *a, b.weight != a.weight || b.unsound != a.unsound)
    }
}
