//! The hash-consed graph: every stage, from tensor to linear code, is nodes of this one kind.
//!
//! Nodes live in an arena and are referred to by 32-bit ids. A node is made by [`Graph::build`], which first tries the
//! always-on rules (`rules`), or by [`Graph::intern`], which does not. Equal nodes have equal ids, so common
//! subexpressions are shared by construction. Integer bounds are computed as a node is made.

use crate::dtype::Scalar;
use crate::id::Id;
use crate::interned::Interned;
use crate::node::{Arg, Node};
use crate::op::{Op, RangeKind};
use crate::visited::visiting;
use smallvec::SmallVec;
use std::sync::Arc;

/// By a rule's number, cases of it: the node that was asked for, and the one that there is instead.
pub(crate) type Examples = Vec<Vec<(Node, Id)>>;

/// Room that a walk begins with: most meet no more nodes than that.
const WALK: usize = 64;

/// An arena of nodes.
#[derive(Clone, Default, Debug)]
pub struct Graph {
    nodes: Vec<Node>,
    bounds: Vec<Option<(i64, i64)>>,
    free: Vec<SmallVec<[Id; 4]>>,
    /// Is a placeholder (`INDEX`) among each node and what it depends on?
    placeholders: Vec<bool>,
    /// Dims of each node; `None` for scalars. Equal shapes of elementwise chains are shared.
    shapes: Vec<Option<Arc<[Id]>>>,
    interned: Interned,
    /// How often each rule fired, by its number: see [`crate::rules::fired`].
    pub fired: Vec<u32>,
    /// What rules have changed, where somebody wants to know.
    pub(crate) examples: Option<Box<Examples>>,
}

impl std::ops::Index<Id> for Graph {
    type Output = Node;
    fn index(&self, id: Id) -> &Node {
        &self.nodes[id.index()]
    }
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Graph {
        Graph::default()
    }
    /// Number of nodes made so far.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }
    /// Is it empty?
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }
    /// The id of that very node, which has this hash, if there is one.
    pub(crate) fn known(&self, hash: u32, node: &Node) -> Option<Id> {
        self.interned.find(hash, |id| self[id] == *node)
    }
    /// A node that is new, with its hash, its bounds and its dims.
    pub(crate) fn push(&mut self, node: Node, hash: u32, bounds: Option<(i64, i64)>, dims: Option<Arc<[Id]>>) -> Id {
        let id = Id(self.nodes.len() as u32);
        self.bounds.push(bounds);
        self.free.push(self.free_of(id, &node));
        self.placeholders.push(node.op == Op::Index || node.src.iter().any(|&s| self.has_placeholder(s)));
        self.shapes.push(dims);
        self.nodes.push(node);
        self.interned.insert(hash, id);
        id
    }
    /// Smallest and largest value of an integer or boolean node, where known.
    pub fn bounds(&self, id: Id) -> Option<(i64, i64)> {
        self.bounds[id.index()]
    }
    /// Dims of a tensor-level node; empty for a scalar and for nodes of the later levels.
    pub fn dims(&self, id: Id) -> &[Id] {
        self.shapes[id.index()].as_deref().unwrap_or_default()
    }
    pub(crate) fn shared_dims(&self, id: Id) -> Option<&Arc<[Id]>> {
        self.shapes[id.index()].as_ref()
    }
    /// Value of an integer (or boolean) constant.
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
    /// Is a placeholder (`INDEX`) among the node and what it depends on?
    pub fn has_placeholder(&self, id: Id) -> bool {
        self.placeholders[id.index()]
    }
    /// The nodes that `roots` depend on, sources before their users, each once.
    pub fn toposort(&self, roots: &[Id]) -> Vec<Id> {
        self.toposort_within(roots, |_| true)
    }
    /// Those of them that are `within`, as all nodes are that depend on one which is: what is below others is not visited.
    pub fn toposort_within(&self, roots: &[Id], within: impl Fn(Id) -> bool) -> Vec<Id> {
        let mut order = Vec::with_capacity(WALK);
        // Nodes that are met, each with those of its sources that are not looked at yet.
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
    /// Does `id` depend on a node for which `test` holds?
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
    /// The ranges that `id` depends on and that no reduction inside it closes, in the order of their numbers.
    pub fn free_ranges(&self, id: Id) -> &[Id] {
        &self.free[id.index()]
    }
    fn free_of(&self, id: Id, node: &Node) -> SmallVec<[Id; 4]> {
        let number = |r: &Id| if *r == id { node.range_number() } else { self.range_number(*r) };
        // Each source's are in order, and those of most nodes are one source's.
        let mut lists = node.src.iter().map(|s| self.free_ranges(*s)).filter(|list| !list.is_empty());
        let mut free: SmallVec<[Id; 4]> = lists.next().map(SmallVec::from_slice).unwrap_or_default();
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
    /// Number of a range node (0 for other nodes).
    pub fn range_number(&self, id: Id) -> u32 {
        self[id].range_number()
    }
    /// Kind of a range node.
    pub fn range_kind(&self, id: Id) -> Option<RangeKind> {
        match self[id].arg {
            Arg::Range(_, k) => Some(k),
            _ => None,
        }
    }
    /// Bytes of what an offset into a buffer counts: an element, or a byte of a packed buffer.
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
