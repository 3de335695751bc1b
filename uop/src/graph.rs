//! The hash-consed graph: every stage, from tensor to linear code, is nodes of this one kind.
//!
//! Nodes live in an arena and are referred to by 32-bit ids. A node is made by [`Graph::build`], which first tries the
//! always-on rules (`rules`), or by [`Graph::intern`], which does not. Equal nodes have equal ids, so common
//! subexpressions are shared by construction. Integer bounds are computed as a node is made.

use crate::bounds;
use crate::dtype::{DType, Scalar};
use crate::encoding::EncodingRef;
use crate::op::{Op, RangeKind, ReduceOp};
use crate::rules;
use crate::shape;
use crate::visited::visiting;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::Arc;

/// A node of a [`Graph`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Id(pub u32);

impl Id {
    /// Position in the arena.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Sources of a node.
pub type Sources = SmallVec<[Id; 3]>;
/// A list of axes.
pub type Axes = SmallVec<[u8; 6]>;

/// What a node carries beside its sources.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Arg {
    /// Nothing.
    None,
    /// A whole number.
    Int(i64),
    /// The bits of an f64.
    Float(u64),
    /// Axes.
    Axes(Axes),
    /// Reduction: how, and (tensor level) over which axes.
    Reduce(ReduceOp, Axes),
    /// A range: its number and what it is mapped to.
    Range(u32, RangeKind),
    /// A variable: name, smallest and largest value.
    Var(Arc<str>, i64, i64),
    /// Slot of a function.
    Param(u32),
    /// Slot of a function that holds packed blocks.
    Packed(u32, EncodingRef),
    /// A constant table.
    Ints(Arc<[i32]>),
}

impl Arg {
    /// A float.
    pub fn float(v: f64) -> Arg {
        Arg::Float(v.to_bits())
    }
}

/// One operation: op, dtype, sources, argument.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Node {
    /// What it computes.
    pub op: Op,
    /// Of which type.
    pub dtype: DType,
    /// From what.
    pub src: Sources,
    /// With what argument.
    pub arg: Arg,
}

/// An arena of nodes.
#[derive(Clone, Default, Debug)]
pub struct Graph {
    nodes: Vec<Node>,
    bounds: Vec<Option<(i64, i64)>>,
    free: Vec<SmallVec<[Id; 4]>>,
    /// Dims of each node; `None` for scalars. Equal shapes of elementwise chains are shared.
    shapes: Vec<Option<Arc<[Id]>>>,
    ids: FxHashMap<Node, Id>,
    /// How often each rule fired, by its number: see [`crate::rules::fired`].
    pub fired: Vec<u32>,
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
    /// The id of that very node, made if it is new. No rule is tried.
    pub fn intern(&mut self, node: Node) -> Id {
        if let Some(&id) = self.ids.get(&node) {
            return id;
        }
        let id = Id(self.nodes.len() as u32);
        self.bounds.push(bounds::of(self, &node));
        self.free.push(self.free_of(id, &node));
        self.shapes.push(shape::of(self, &node));
        self.nodes.push(node.clone());
        self.ids.insert(node, id);
        id
    }
    /// The simplest node known for that operation: the always-on rules first, then [`Graph::intern`].
    pub fn build(&mut self, op: Op, dtype: DType, src: impl Into<Sources>, arg: Arg) -> Id {
        let node = Node { op, dtype, src: src.into(), arg };
        match rules::apply(self, &node) {
            Some(id) => id,
            None => self.intern(node),
        }
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
    /// The nodes that `roots` depend on, sources before their users, each once.
    pub fn toposort(&self, roots: &[Id]) -> Vec<Id> {
        let mut order = Vec::new();
        let mut stack: Vec<(Id, usize)> = Vec::new();
        visiting(self.nodes.len(), |seen| {
            for &root in roots {
                if !seen.first(root) {
                    continue;
                }
                stack.push((root, 0));
                while let Some((id, next)) = stack.pop() {
                    if let Some(&s) = self[id].src.get(next) {
                        stack.push((id, next + 1));
                        if seen.first(s) {
                            stack.push((s, 0));
                        }
                    } else {
                        order.push(id);
                    }
                }
            }
        });
        order
    }
    /// `root` with nodes replaced: `map` holds the replacements, and is filled with the image of every node met.
    /// Rebuilt nodes go through the always-on rules.
    pub fn substitute(&mut self, root: Id, map: &mut FxHashMap<Id, Id>) -> Id {
        if let Some(&to) = map.get(&root) {
            return to;
        }
        // An explicit stack: decode expressions of long reductions are deep.
        let mut stack = vec![root];
        while let Some(&id) = stack.last() {
            if map.contains_key(&id) {
                stack.pop();
                continue;
            }
            let missing: Sources = self[id].src.iter().copied().filter(|s| !map.contains_key(s)).collect();
            if missing.is_empty() {
                let node = &self[id];
                let src: Sources = node.src.iter().map(|s| map[s]).collect();
                let new = if src == node.src {
                    id
                } else {
                    let (op, dtype, arg) = (node.op, node.dtype, node.arg.clone());
                    self.build(op, dtype, src, arg)
                };
                map.insert(id, new);
                stack.pop();
            } else {
                stack.extend(missing);
            }
        }
        map[&root]
    }
    /// `root`, a node of `from`, rebuilt in this graph. `map` remembers what has been copied; what lies only below nodes that it knows is not
    /// visited.
    pub fn import(&mut self, from: &Graph, root: Id, map: &mut FxHashMap<Id, Id>) -> Id {
        let mut stack = vec![root];
        while let Some(&id) = stack.last() {
            if map.contains_key(&id) {
                stack.pop();
                continue;
            }
            let node = &from[id];
            let missing: Sources = node.src.iter().copied().filter(|s| !map.contains_key(s)).collect();
            if missing.is_empty() {
                let src: Sources = node.src.iter().map(|s| map[s]).collect();
                let new = self.build(node.op, node.dtype, src, node.arg.clone());
                map.insert(id, new);
                stack.pop();
            } else {
                stack.extend(missing.into_iter().rev());
            }
        }
        map[&root]
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
        let number = |r: &Id| if *r == id { range_number(node) } else { self.range_number(*r) };
        let mut free: SmallVec<[Id; 4]> = SmallVec::new();
        for s in &node.src {
            free.extend(self.free[s.index()].iter().copied());
        }
        match node.op {
            Op::Range => free.push(id),
            Op::Reduce => free.retain(|r| !node.src[1..].contains(r)),
            Op::Store => free.retain(|r| !node.src[3..].contains(r)),
            _ => {}
        }
        free.sort_by_key(|r| (number(r), *r));
        free.dedup();
        free
    }
    /// Number of a range node (0 for other nodes).
    pub fn range_number(&self, id: Id) -> u32 {
        range_number(&self[id])
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

fn range_number(node: &Node) -> u32 {
    match node.arg {
        Arg::Range(n, _) => n,
        _ => 0,
    }
}
