//! Terms (e-nodes) of the e-graph.
//!
//! Children of a term are tensors. Scalars, dims and window begins are nodes of the function's
//! graph, which are normalised and hash-consed, so equal ones are the same node. Two forms exist in
//! addition to the graph's ops, so that rules match the mathematics independent of the movements it
//! was written with: [`View`], any movement that does not split or merge axes, and
//! [`ContractionTerm`], a sum of products by index maps.

use gristmill_uop::dtype::DType;
use gristmill_uop::shape::Dims;
use gristmill_uop::{Arg, Id, Op};
use smallvec::SmallVec;
use std::cmp::Ordering;

/// An e-class: a set of equal terms.
pub type Class = egg::Id;

/// Maps each axis to an axis or index; `None` for axes of length 1 and repeated axes.
pub type Map = SmallVec<[Option<u8>; 6]>;

/// A window of a tensor, with axes permuted, axes of length 1 added or removed, and axes repeated.
///
/// Canonical: a result axis of length 1 names no source axis, and a source axis that is not named
/// has a window of length 1.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct View {
    /// Begin and length for each source axis.
    pub windows: SmallVec<[(Id, Id); 6]>,
    /// Source axis of each result axis; `None` where it repeats.
    pub axes: Map,
}

/// A contraction `out = Σ a·b`, given by the index of each axis.
///
/// Indices are numbered by first occurrence in `out`, then `a`, then `b`. Those not
/// in `out` are summed.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct ContractionTerm {
    /// Index of each axis, per operand.
    pub operands: [Map; 2],
    /// Index of each result axis.
    pub out: Map,
    /// Length of each index.
    pub sizes: Dims,
}

impl ContractionTerm {
    /// Returns the indices that are summed.
    pub fn summed(&self) -> impl Iterator<Item = u8> + '_ {
        (0..self.sizes.len() as u8).filter(|&i| !self.out.contains(&Some(i)))
    }
}

/// Source of an op.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Source {
    /// The next child in order.
    Child,
    /// A scalar node of the graph.
    Scalar(Id),
}

/// Operation of a term on its children.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum TermForm {
    /// Any other graph node: a parameter, a weight, a list of indices.
    Leaf(Id),
    /// An op of the graph.
    Node {
        /// Operation of the node.
        op: Op,
        /// Argument of the operation.
        arg: Arg,
        /// Sources of the node, in order.
        sources: SmallVec<[Source; 6]>,
    },
    /// A view of the child.
    View(View),
    /// A contraction of the two children.
    Contract(ContractionTerm),
}

/// Type and dims of a node's result.
pub struct Shaped {
    /// Type of the elements.
    pub dtype: DType,
    /// Length of each axis.
    pub dims: Dims,
}

impl Shaped {
    /// Combines a type and dims.
    pub fn new(dtype: DType, dims: Dims) -> Shaped {
        Shaped { dtype, dims }
    }
}

/// A term (e-node).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Term {
    /// Operation on the children.
    pub form: TermForm,
    /// Type of the elements.
    pub dtype: DType,
    /// Length of each axis.
    pub dims: Dims,
    /// E-classes of the operands.
    pub children: SmallVec<[Class; 3]>,
}

impl Term {
    /// Returns the term's type and dims.
    pub fn shaped(&self) -> Shaped {
        Shaped::new(self.dtype, self.dims.clone())
    }
    /// Returns the op of a `Node` term.
    pub fn op(&self) -> Option<Op> {
        match self.form {
            TermForm::Node { op, .. } => Some(op),
            _ => None,
        }
    }
    /// Returns the axis of a concatenation.
    pub fn joined(&self) -> Option<usize> {
        match &self.form {
            TermForm::Node {
                op: Op::Cat,
                arg: Arg::Axes(axes),
                ..
            } => Some(axes[0] as usize),
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
    /// Any order that is the same in every run.
    fn cmp(&self, other: &Term) -> Ordering {
        let form = || match (&self.form, &other.form) {
            (TermForm::Leaf(a), TermForm::Leaf(b)) => a.cmp(b),
            (
                TermForm::Node {
                    op: a,
                    arg: x,
                    sources: s,
                },
                TermForm::Node {
                    op: b,
                    arg: y,
                    sources: t,
                },
            ) => {
                // Arguments are not `Ord`; few terms differ in nothing else.
                let arguments = || {
                    if x == y {
                        Ordering::Equal
                    } else {
                        format!("{x:?}").cmp(&format!("{y:?}"))
                    }
                };
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

/// Facts common to all terms of a class (e-class analysis).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Type of the elements.
    pub dtype: DType,
    /// Length of each axis.
    pub dims: Dims,
    /// Whether the class is a packed weight, possibly moved or gathered.
    pub weight: bool,
    /// Whether terms of different dims or types were merged. A rule is then wrong, and the
    /// e-graph must be discarded.
    pub unsound: bool,
}

/// The e-class analysis that computes [`Facts`].
#[derive(Default)]
pub struct Known {
    /// Leaves that are packed weights.
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
        Facts {
            dtype: term.dtype,
            dims: term.dims.clone(),
            weight,
            unsound: false,
        }
    }
    fn merge(&mut self, a: &mut Facts, b: Facts) -> egg::DidMerge {
        let before = a.clone();
        let differ = a.dtype != b.dtype || a.dims != b.dims;
        debug_assert!(
            !differ,
            "a rule says that {:?} {:?} is {:?} {:?}",
            a.dtype, a.dims, b.dtype, b.dims
        );
        a.unsound |= b.unsound || differ;
        a.weight |= b.weight;
        egg::DidMerge(before != *a, b.weight != a.weight || b.unsound != a.unsound)
    }
}
