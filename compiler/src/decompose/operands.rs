//! What the forms of a packed contraction share: its operands, and how a form suits it.

use gristmill_uop::{Graph, Id, Node, Op};

/// Operands of a contraction, Σ over the last axis of `weight` times `x`.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// The packed weight, moved to the product's shape.
    pub weight: Id,
    /// Activations, moved to it too.
    pub x: Id,
    /// What `x` moves the rows of.
    pub base: Id,
}

/// How a form suits a contraction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Suits {
    /// It cannot compute it.
    Not,
    /// It computes it; measurements are for others.
    Legal,
    /// It computes it, and measurements are for it.
    Preferred,
}

impl Suits {
    /// Of a form that computes it, and that measurements are for or not.
    pub fn by(preferred: bool) -> Suits {
        if preferred { Suits::Preferred } else { Suits::Legal }
    }
}

/// Is `x` the same along that axis, to begin with?
pub fn repeats(g: &Graph, x: Id, axis: usize) -> bool {
    let n = &g[x];
    n.op == Op::Expand && g.int_value(g.dims(n.src[0])[axis]) == Some(1)
}

/// `x` with `new` in place of `base`, and of its type.
pub fn moved(g: &mut Graph, x: Id, base: Id, new: Id) -> Id {
    if x == base {
        return new;
    }
    let n = g[x].clone();
    let mut src = n.src;
    src[0] = moved(g, src[0], base, new);
    let dtype = g[src[0]].dtype;
    g.intern(Node { op: n.op, dtype, src, arg: n.arg })
}

/// Rows that were gathered, of those that `x` moves, and what chooses them. That may be dear, and each workgroup would choose all of them.
pub fn gathered(g: &Graph, x: Id) -> Vec<Id> {
    let below = |&x: &Id| (g[x].op.is_movement() || g[x].op == Op::Gather).then(|| g[x].src[0]);
    let gathers = std::iter::successors(Some(x), below).filter(|&x| g[x].op == Op::Gather);
    gathers.flat_map(|of| [of, g[of].src[1]]).filter(|&n| g[n].op != Op::Param).collect()
}
