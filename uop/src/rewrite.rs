//! Making nodes, as they are or by the always-on rules, and rebuilding what is made of them.

use crate::bounds;
use crate::dtype::DType;
use crate::graph::Graph;
use crate::id::Id;
use crate::node::{Arg, Node, Sources};
use crate::op::Op;
use crate::rules;
use crate::shape;
use rustc_hash::FxHashMap;

impl Graph {
    /// The id of that very node, made if it is new. No rule is tried.
    pub fn intern(&mut self, node: Node) -> Id {
        if let Some(id) = self.known(&node) {
            return id;
        }
        let (bounds, dims) = (bounds::of(self, &node), shape::of(self, &node));
        self.push(node, bounds, dims)
    }
    /// The simplest node known for that operation: the always-on rules first, then [`Graph::intern`].
    pub fn build(&mut self, op: Op, dtype: DType, src: impl Into<Sources>, arg: Arg) -> Id {
        let node = Node { op, dtype, src: src.into(), arg };
        match rules::apply(self, &node) {
            Some(id) => id,
            None => self.intern(node),
        }
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
}
