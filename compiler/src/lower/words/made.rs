//! Nodes as they are said to be.

use gristmill_uop::{Arg, Graph, Id, Node, Op, Scalar, Sources};

/// That very node.
pub fn made(g: &mut Graph, op: Op, scalar: Scalar, src: &[Id]) -> Id {
    g.intern(Node { op, dtype: scalar.one(), src: Sources::from_slice(src), arg: Arg::None })
}
