//! The hash-consed graph. Every level, from tensor to linear code, uses the same kind of nodes.
//!
//! Nodes live in an arena and are referred to by 32-bit ids. [`Graph::build`] makes a node after
//! trying the always-on rules (`rules`); [`Graph::intern`] makes it as given. Equal nodes have
//! equal ids, so common subexpressions are shared by construction. Integer bounds are computed when
//! a node is made.

use crate::dtype::Scalar;
use crate::id::Id;
use crate::interned::Interned;
use crate::node::{Arg, Node};
use crate::op::{Op, RangeKind};
use crate::visited::visiting;
use smallvec::SmallVec;
use std::sync::Arc;

/// Recorded rule applications, by rule number: the node before, and the id of its replacement.
pub(crate) type Examples = Vec<Vec<(Node, Id)>>;

/// Initial capacity of a walk, in nodes; most walks visit fewer.
const WALK: usize = 64;

/// An arena of hash-consed nodes.
#[derive(Clone, Default, Debug)]
pub struct Graph {
    nodes: Vec<Node>,
    bounds: Vec<Option<(i64, i64)>>,
    free: Vec<SmallVec<[Id; 4]>>,
    /// Whether each node depends on a placeholder (`INDEX`) or is one.
    placeholders: Vec<bool>,
    /// Dims of each node; `None` for scalars. Equal shapes of elementwise
    /// chains share one allocation.
    shapes: Vec<Option<Arc<[Id]>>>,
    interned: Interned,
    /// Number of times that each rule fired, by rule number; see [`crate::rules::fired`].
    pub fired: Vec<u32>,
    /// Recorded rule applications, if recording is enabled.
    pub(crate) examples: Option<Box<Examples>>,
}

impl std::ops::Index<Id> for Graph {
    type Output = Node;
    fn index(&self, id: Id) -> &Node {
        &self.nodes[id.index()]
    }
}

impl Graph {
    /// Creates an empty graph.
    pub fn new() -> Graph {
        Graph::default()
    }
    /// Number of nodes made so far.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }
    /// Returns whether the graph has no nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
    /// Looks up a node with this hash.
    pub(crate) fn known(&self, hash: u32, node: &Node) -> Option<Id> {
        self.interned.find(hash, |id| self[id] == *node)
    }
    /// Appends a node that is not yet in the graph, with its hash, bounds and dims.
    pub(crate) fn push(
        &mut self,
        node: Node,
        hash: u32,
        bounds: Option<(i64, i64)>,
        dims: Option<Arc<[Id]>>,
    ) -> Id {
        let id = Id(self.nodes.len() as u32);
        self.bounds.push(bounds);
        self.free.push(self.free_of(id, &node));
        self.placeholders
            .push(node.op == Op::Index || node.src.iter().any(|&s| self.has_placeholder(s)));
        self.shapes.push(dims);
        self.nodes.push(node);
        self.interned.insert(hash, id);
        id
    }
    /// Smallest and largest value of an integer or boolean node, if known.
    pub fn bounds(&self, id: Id) -> Option<(i64, i64)> {
        self.bounds[id.index()]
    }
    /// Dims of a tensor-level node; empty for a scalar and for nodes of later levels.
    pub fn dims(&self, id: Id) -> &[Id] {
        self.shapes[id.index()].as_deref().unwrap_or_default()
    }
    pub(crate) fn shared_dims(&self, id: Id) -> Option<&Arc<[Id]>> {
        self.shapes[id.index()].as_ref()
    }
    /// Value of an integer or boolean constant.
    pub fn int_value(&self, id: Id) -> Option<i64> {
        match (&self[id].op, &self[id].arg) {
            (Op::Const, Arg::Int(v)) => Some(*v),
            _ => None,
        }
    }
    /// Value of a float constant.
    pub fn float_value(&self, id: Id) -> Option<f64> {
        match (&self[id].op, &self[id].arg) {
            (Op::Const, Arg::Float(b)) => Some(f64::from_bits(*b)),
            _ => None,
        }
    }
    /// Returns whether the node depends on a placeholder (`INDEX`) or is one.
    pub fn has_placeholder(&self, id: Id) -> bool {
        self.placeholders[id.index()]
    }
    /// Returns all nodes that `roots` depend on, each once, sources before users.
    pub fn toposort(&self, roots: &[Id]) -> Vec<Id> {
        self.toposort_within(roots, |_| true)
    }
    /// Like [`Graph::toposort`], restricted to nodes that are `within`. Every user of such a node
    /// must be `within` too; sources of excluded nodes are not visited.
    pub fn toposort_within(&self, roots: &[Id], within: impl Fn(Id) -> bool) -> Vec<Id> {
        let mut order = Vec::with_capacity(WALK);
        // Nodes on the path, each with its sources not yet visited.
        let mut stack: Vec<(Id, &[Id])> = Vec::with_capacity(WALK);
        visiting(self.nodes.len(), |seen| {
            for &root in roots {
                if !within(root) || !seen.first(root) {
                    continue;
                }
                stack.push((root, &self[root].src));
                while let Some((id, left)) = stack.last_mut() {
                    let Some((&source, rest)) = left.split_first() else {
                        order.push(*id);
                        stack.pop();
                        continue;
                    };
                    *left = rest;
                    if within(source) && seen.first(source) {
                        stack.push((source, &self[source].src));
                    }
                }
            }
        });
        order
    }
    /// Returns whether `id` or a node that it depends on satisfies `test`.
    pub fn any(&self, id: Id, mut test: impl FnMut(Id, &Node) -> bool) -> bool {
        let mut stack = vec![id];
        visiting(self.nodes.len(), |seen| {
            seen.first(id);
            while let Some(n) = stack.pop() {
                let node = &self[n];
                if test(n, node) {
                    return true;
                }
                stack.extend(node.src.iter().copied().filter(|&s| seen.first(s)));
            }
            false
        })
    }
    /// Ranges that `id` depends on and that no inner reduction closes, in the
    /// order of their numbers.
    pub fn free_ranges(&self, id: Id) -> &[Id] {
        &self.free[id.index()]
    }
    fn free_of(&self, id: Id, node: &Node) -> SmallVec<[Id; 4]> {
        let number = |r: &Id| {
            if *r == id {
                node.range_number()
            } else {
                self.range_number(*r)
            }
        };
        // Each source's list is sorted; for most nodes, one source's list is the result.
        let mut lists = node
            .src
            .iter()
            .map(|s| self.free_ranges(*s))
            .filter(|list| !list.is_empty());
        let mut free: SmallVec<[Id; 4]> =
            lists.next().map(SmallVec::from_slice).unwrap_or_default();
        let mut joined = node.op == Op::Range;
        for list in lists {
            if free[..] != *list {
                free.extend_from_slice(list);
                joined = true;
            }
        }
        match node.op {
            Op::Range => free.push(id),
            Op::Reduce => free.retain(|r| !node.src[1..].contains(r)),
            Op::Store => free.retain(|r| !node.src[3..].contains(r)),
            _ => {}
        }
        if joined {
            free.sort_by_key(|r| (number(r), *r));
            free.dedup();
        }
        free
    }
    /// Number of a range node; 0 for other nodes.
    pub fn range_number(&self, id: Id) -> u32 {
        self[id].range_number()
    }
    /// Kind of a range node; `None` for other nodes.
    pub fn range_kind(&self, id: Id) -> Option<RangeKind> {
        match self[id].arg {
            Arg::Range(_, k) => Some(k),
            _ => None,
        }
    }
    /// Size of the unit of offsets into a buffer, bytes: an element, or one byte
    /// for a packed buffer.
    pub fn unit_bytes(&self, buffer: Id) -> i64 {
        match self[buffer].arg {
            Arg::Packed(..) => 1,
            _ => self.scalar(buffer).bytes() as i64,
        }
    }
    /// Scalar type of a node.
    pub fn scalar(&self, id: Id) -> Scalar {
        self[id].dtype.scalar
    }
}
