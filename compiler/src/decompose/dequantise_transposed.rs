//! Contractions of a packed weight that is read across its rows, as the keys of every head are computed of latents: terms of a sum lie in different rows, so that they share no
//! scales, and neither integers nor unpacked fragments serve them. Where a GPU's warps multiply halves and many rows of halves meet the weight, it is unpacked into
//! a buffer of halves first, in the order in which it is read: a product of plain halves is left. A step unpacks a weight once, however many rows there are (GLM-4.7-Flash's
//! keys: 2 million elements, 4 MB, of a step that moves 200).
//!
//! The weight itself may lie in memory as those who read along its rows have it.

use super::attention::plan::buffered;
use super::f16_split;
use super::operands::{Operands, moved, repeats};
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, ReduceOp, Scalar};
use rustc_hash::FxHashSet;

/// Fewest rows that share an unpacked weight: of fewer, each of which reads it once, most of the time would go into unpacking. Not measured: steps have
/// 64 tokens or 512 and more, and 2 million elements are unpacked in what 4 MB take to be written.
const LEAST: i64 = 128;

/// Such a contraction.
pub struct DequantiseTransposed {
    /// The weight, and what it is multiplied with.
    pub of: Operands,
    /// The weight's elements before they are moved to the product's shape, packed along another axis.
    turned: Id,
}

/// The elements of a packed weight that `id` moves, where they are turned from along its rows.
fn turned(g: &Graph, id: Id) -> Option<Id> {
    let mut at = id;
    loop {
        let n = &g[at];
        match n.op {
            Op::Permute if g[n.src[0]].op == Op::Decode => {
                let Arg::Axes(axes) = &n.arg else { return None };
                return (axes.last() != Some(&(axes.len() as u8 - 1))).then_some(at);
            }
            Op::Reshape | Op::Expand | Op::Permute => at = n.src[0],
            _ => return None,
        }
    }
}

impl DequantiseTransposed {
    /// The contraction that a node is, if it is one.
    fn from_node(g: &Graph, id: Id, target: &Target) -> Option<DequantiseTransposed> {
        let n = &g[id];
        let Arg::Reduce(ReduceOp::Add, axes) = &n.arg else { return None };
        let fragment = target.machine.fragment(Scalar::F16).filter(|_| target.machine.kind == MachineKind::Gpu)?;
        let (product, last) = (&g[n.src[0]], g.dims(n.src[0]).len().checked_sub(1)?);
        if product.op != Op::Mul || axes[..] != [last as u8] || g.scalar(id) != Scalar::F32 {
            return None;
        }
        let sides = [(product.src[0], product.src[1]), (product.src[1], product.src[0])];
        let (weight, x, turned) = sides.into_iter().find_map(|(w, x)| Some((w, x, turned(g, w)?)))?;
        let dims = g.dims(n.src[0]);
        let whole = g.int_value(dims[last]).is_some_and(|terms| terms % fragment.terms == 0);
        let shared = (0..last).filter(|&axis| repeats(g, weight, axis)).map(|axis| g.max_of(dims[axis]));
        let fits = whole && f16_split::are_halves(g, x) && shared.product::<i64>() >= LEAST;
        fits.then_some(DequantiseTransposed { of: Operands { weight, x, base: x }, turned })
    }
    /// The contraction that a node is, where the weight's slot `lies` in another layout than its file's, as those do that are [`copied`].
    pub fn of_copy(g: &Graph, id: Id, lies: impl Fn(u32) -> bool, target: &Target) -> Option<DequantiseTransposed> {
        let across = DequantiseTransposed::from_node(g, id, target)?;
        let packed = g[g[across.turned].src[0]].src[0];
        matches!(g[packed].arg, Arg::Packed(slot, _) if lies(slot)).then_some(across)
    }
    /// It as one of plain halves, and the weight's halves, which have a buffer.
    pub fn product(&self, g: &mut Graph) -> (Id, Id) {
        let Operands { weight, x, .. } = self.of;
        let half = g.cast(self.turned, Scalar::F16);
        let wide = g.cast(half, Scalar::F32);
        let weight = moved(g, weight, self.turned, wide);
        let product = g.mul(weight, x);
        let last = g.dims(product).len() - 1;
        (g.reduce(product, &[last], ReduceOp::Add), half)
    }
}

/// Has a function of these nodes too few tokens for keys of every head: an attention of a short step, or of rows of several sequences alone? Of a step that has both, the piece of a prompt decides. Without a loop over rows in
/// stages 512 tokens lost 4 % with such keys (experiments, 102), with it they gain (105).
fn has_few_tokens(g: &Graph, order: &[Id], target: &Target) -> bool {
    let tokens = |op: Op| order.iter().filter(move |&&id| g[id].op == op).map(|&id| g.max_of(g.dims(g[id].src[0])[0]));
    match tokens(Op::Attention).min() {
        Some(tokens) => tokens <= buffered(target),
        None => tokens(Op::PagedAttention).next().is_some(),
    }
}

/// Weights that are read across their rows below `roots`, by such contractions alone: each by what turns its elements.
pub fn copied(g: &Graph, roots: &[Id], target: &Target) -> FxHashSet<Id> {
    let (mut copied, mut others) = (FxHashSet::default(), FxHashSet::default());
    let order = g.toposort(roots);
    // Of few tokens rules choose a form that reads the weight along its rows; without rules it would lie otherwise than for many.
    if target.alternatives && has_few_tokens(g, &order, target) {
        return copied;
    }
    for id in order {
        match DequantiseTransposed::from_node(g, id, target) {
            Some(across) => drop(copied.insert(across.turned)),
            None if g[id].op == Op::Reduce => {
                let product = &g[g[id].src[0]];
                others.extend(product.src.iter().filter_map(|&side| turned(g, side)));
            }
            None => {}
        }
    }
    copied.retain(|turned| !others.contains(turned));
    copied
}
