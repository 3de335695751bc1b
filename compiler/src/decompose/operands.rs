//! Operands of packed contractions, and how well a matmul variant suits them.

use gristmill_uop::{Graph, Id, Node, Op};

/// Operands of a contraction: Σ over the last axis of `weight · x`.
#[derive(Clone, Copy, Debug)]
pub struct Operands {
    /// Packed weight, moved to the product's shape.
    pub weight: Id,
    /// Activations, moved to the product's shape.
    pub x: Id,
    /// Activations before `x` moves their rows.
    pub base: Id,
}

/// How a matmul variant suits a contraction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Suits {
    /// Cannot compute the contraction.
    Not,
    /// Can compute the contraction, but measurements favour another variant.
    Legal,
    /// Can compute the contraction, and measurements favour it.
    Preferred,
}

impl Suits {
    /// `Preferred` or `Legal`, for a variant that can compute the contraction.
    pub fn by(preferred: bool) -> Suits {
        if preferred {
            Suits::Preferred
        } else {
            Suits::Legal
        }
    }
}

/// Returns whether `x` is an expansion along `axis`.
pub fn repeats(g: &Graph, x: Id, axis: usize) -> bool {
    let n = &g[x];
    n.op == Op::Expand && g.int_value(g.dims(n.src[0])[axis]) == Some(1)
}

/// Rebuilds `x`, which moves `base`, on top of `new`, with the type of `new`.
pub fn moved(g: &mut Graph, x: Id, base: Id, new: Id) -> Id {
    if x == base {
        return new;
    }
    let n = g[x].clone();
    let mut src = n.src;
    src[0] = moved(g, src[0], base, new);
    let dtype = g[src[0]].dtype;
    g.intern(Node {
        op: n.op,
        dtype,
        src,
        arg: n.arg,
    })
}

/// Returns the gathers below `x` and their computed indices, which are to be materialised.
///
/// Indices may be expensive, and each workgroup would compute all of them.
pub fn gathered(g: &Graph, x: Id) -> Vec<Id> {
    let below = |&x: &Id| (g[x].op.is_movement() || g[x].op == Op::Gather).then(|| g[x].src[0]);
    let gathers = std::iter::successors(Some(x), below).filter(|&x| g[x].op == Op::Gather);
    gathers
        .flat_map(|of| [of, g[of].src[1]])
        .filter(|&n| g[n].op != Op::Param)
        .collect()
}
