//! Construction of nodes, with or without the always-on rules, and substitution.

use crate::bounds;
use crate::dtype::DType;
use crate::graph::Graph;
use crate::id::Id;
use crate::interned;
use crate::node::{Arg, Node, Sources};
use crate::op::Op;
use crate::rules;
use crate::shape;
use crate::visited::visiting;
use rustc_hash::FxHashMap;

impl Graph {
    /// Returns the id of the node, adding it if it is new. No rule is applied.
    pub fn intern(&mut self, node: Node) -> Id {
        let hash = interned::hash(&node);
        if let Some(id) = self.known(hash, &node) {
            return id;
        }
        let (bounds, dims) = (
            bounds::infer_bounds(self, &node),
            shape::infer_shape(self, &node),
        );
        self.push(node, hash, bounds, dims)
    }
    /// Builds a node: applies the always-on rules, then [`Graph::intern`].
    pub fn build(&mut self, op: Op, dtype: DType, src: impl Into<Sources>, arg: Arg) -> Id {
        let node = Node {
            op,
            dtype,
            src: src.into(),
            arg,
        };
        match rules::apply(self, &node) {
            Some(id) => id,
            None => self.intern(node),
        }
    }
    /// Rebuilds `root` with the replacements in `map`, through the always-on rules.
    ///
    /// `map` is extended with the image of every visited node.
    pub fn substitute(&mut self, root: Id, map: &mut FxHashMap<Id, Id>) -> Id {
        if let Some(&to) = map.get(&root) {
            return to;
        }
        // An explicit stack, because decode expressions of long reductions are deep.
        let mut stack = vec![root];
        while let Some(&id) = stack.last() {
            if map.contains_key(&id) {
                stack.pop();
                continue;
            }
            let missing: Sources = self[id]
                .src
                .iter()
                .copied()
                .filter(|s| !map.contains_key(s))
                .collect();
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
    /// Like [`Graph::substitute`], but adds only changed nodes to `map`. Efficient for few
    /// replacements in few roots.
    pub fn replace(&mut self, root: Id, map: &mut FxHashMap<Id, Id>) -> Id {
        for id in self.above(root, map) {
            let node = &self[id];
            if node.src.iter().any(|s| map.contains_key(s)) {
                let src: Sources = node
                    .src
                    .iter()
                    .map(|s| map.get(s).copied().unwrap_or(*s))
                    .collect();
                let (op, dtype, arg) = (node.op, node.dtype, node.arg.clone());
                let new = self.build(op, dtype, src, arg);
                if new != id {
                    map.insert(id, new);
                }
            }
        }
        map.get(&root).copied().unwrap_or(root)
    }
    /// Returns the nodes below `root` that may depend on keys of `map`, without the keys.
    ///
    /// Sources come before users, and the last source of a node before the first.
    fn above(&self, root: Id, map: &FxHashMap<Id, Id>) -> Vec<Id> {
        // A node has a larger id than its sources.
        let Some(&oldest) = map.keys().min() else {
            return vec![];
        };
        let (mut order, mut stack) = (Vec::new(), Vec::new());
        visiting(self.len(), |seen| {
            let mut enter = |id: Id| id > oldest && !map.contains_key(&id) && seen.first(id);
            if enter(root) {
                stack.push((root, self[root].src.len()));
            }
            while let Some((id, left)) = stack.pop() {
                let Some(next) = left.checked_sub(1) else {
                    order.push(id);
                    continue;
                };
                stack.push((id, next));
                let source = self[id].src[next];
                if enter(source) {
                    stack.push((source, self[source].src.len()));
                }
            }
        });
        order
    }
    /// Rebuilds `root`, a node of `from`, in this graph.
    ///
    /// `map` records copied nodes; nodes reachable only through recorded ones are not visited.
    pub fn import(&mut self, from: &Graph, root: Id, map: &mut FxHashMap<Id, Id>) -> Id {
        let mut stack = vec![root];
        while let Some(&id) = stack.last() {
            if map.contains_key(&id) {
                stack.pop();
                continue;
            }
            let node = &from[id];
            let missing: Sources = node
                .src
                .iter()
                .copied()
                .filter(|s| !map.contains_key(s))
                .collect();
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
