//! Making nodes, as they are or by the always-on rules, and rebuilding what is made of them.

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
    /// The id of that very node, made if it is new. No rule is tried.
    pub fn intern(&mut self, node: Node) -> Id {
        let hash = interned::hash(&node);
        if let Some(id) = self.known(hash, &node) {
            return id;
        }
        let (bounds, dims) = (bounds::of(self, &node), shape::of(self, &node));
        self.push(node, hash, bounds, dims)
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
    /// `root` with nodes replaced, as [`Graph::substitute`] does it, but `map` remembers what has changed and nothing else: for few nodes that are
    /// replaced in few roots.
    pub fn replace(&mut self, root: Id, map: &mut FxHashMap<Id, Id>) -> Id {
        for id in self.above(root, map) {
            let node = &self[id];
            if node.src.iter().any(|s| map.contains_key(s)) {
                let src: Sources = node.src.iter().map(|s| map.get(s).copied().unwrap_or(*s)).collect();
                let (op, dtype, arg) = (node.op, node.dtype, node.arg.clone());
                let new = self.build(op, dtype, src, arg);
                if new != id {
                    map.insert(id, new);
                }
            }
        }
        map.get(&root).copied().unwrap_or(root)
    }
    /// The nodes below `root` that may depend on keys of the map, those excluded, sources before their users, and of a node's sources the last one's first.
    fn above(&self, root: Id, map: &FxHashMap<Id, Id>) -> Vec<Id> {
        // A node is younger than what it is made of.
        let Some(&oldest) = map.keys().min() else { return vec![] };
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
