//! Copies a kernel into a graph of its own.

use gristmill_uop::program::When;
use gristmill_uop::{Arg, Graph, Id, Node, Op, Sources};
use rustc_hash::FxHashMap;
use smallvec::smallvec;

/// A kernel in a graph of its own: for the interpreter, for the text form, and for lowering.
pub struct Kernel {
    /// Graph of this kernel alone.
    pub graph: Graph,
    /// The `Op::Kernel` node, over the bodies in order.
    pub root: Id,
    /// Nests of each body.
    pub bodies: Vec<Vec<Id>>,
    /// Conditions on the workgroups of each body.
    pub when: Vec<When>,
}

impl Kernel {
    /// Copies the nests of each body from `g`, with the conditions (`when`) of
    /// each body's workgroups.
    pub fn new(g: &Graph, bodies: &[&[Id]], when: &[When]) -> Kernel {
        let mut own = Graph::new();
        let mut map = FxHashMap::default();
        let bodies: Vec<Vec<Id>> = bodies
            .iter()
            .map(|nests| {
                nests
                    .iter()
                    .map(|&n| strip(g, &mut own, n, &mut map))
                    .collect()
            })
            .collect();
        let body_nodes: Sources = bodies
            .iter()
            .map(|nests| {
                let src: Sources = nests.iter().copied().collect();
                let dtype = own[src[0]].dtype;
                own.intern(Node {
                    op: Op::Body,
                    dtype,
                    src,
                    arg: Arg::None,
                })
            })
            .collect();
        let mut stripped = |x: Option<Id>| x.map(|x| strip(g, &mut own, x, &mut map));
        let when = when
            .iter()
            .map(|w| When {
                skip: stripped(w.skip),
                prologue: stripped(w.prologue),
                ..*w
            })
            .collect();
        let dtype = own[body_nodes[0]].dtype;
        let root = own.intern(Node {
            op: Op::Kernel,
            dtype,
            src: body_nodes,
            arg: Arg::None,
        });
        Kernel {
            graph: own,
            root,
            bodies,
            when,
        }
    }
}

/// Copies a nest into another graph, with the dimensions of its parameters removed.
fn strip(from: &Graph, to: &mut Graph, nest: Id, map: &mut FxHashMap<Id, Id>) -> Id {
    for id in from.toposort(&[nest]) {
        if map.contains_key(&id) {
            continue;
        }
        let node = &from[id];
        let src: Sources = if node.op == Op::Param {
            smallvec![]
        } else {
            node.src.iter().map(|s| map[s]).collect()
        };
        let new = to.intern(Node {
            op: node.op,
            dtype: node.dtype,
            src,
            arg: node.arg.clone(),
        });
        map.insert(id, new);
    }
    map[&nest]
}
