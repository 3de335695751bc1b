//! Dequantises to f16 a packed weight that is read across its rows, as keys of every head are
//! computed from latents (MLA).
//!
//! The terms of a sum then lie in different rows and share no scales, so neither integer products
//! nor fused dequantisation apply. On a GPU with f16 MMA, if many f16 rows are multiplied with the
//! weight, it is first dequantised into an f16 buffer in the order in which it is read. A product
//! of plain f16 operands remains. A step dequantises a weight once for all rows (GLM-4.7-Flash's
//! keys: 2 million elements, 4 MB, in a step that moves 200 MB).
//!
//! The packed weight keeps the layout that suits its readers along the rows.

use super::attention::plan::buffered;
use super::f16_split;
use super::operands::{Operands, moved};
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, ReduceOp, Scalar};
use rustc_hash::FxHashSet;

/// Fewest rows that share a dequantised weight: with fewer, dequantising takes most of the time.
/// Not measured: steps have 64 tokens, or 512 and more, and dequantising 2 million elements takes
/// the time of writing 4 MB.
const LEAST: i64 = 128;

/// A contraction with a weight to be dequantised in transposed order.
pub struct DequantiseTransposed {
    /// The weight and its activations.
    pub of: Operands,
    /// Node that permutes the decoded weight, so that it is packed along another axis.
    turned: Id,
    /// Type of the activations, f16 or bf16, which the weight is rounded to.
    operand: Scalar,
}

/// Finds the permutation that moves a packed weight's row axis away from the last axis, below `id`.
fn turned(g: &Graph, id: Id) -> Option<Id> {
    let mut at = id;
    loop {
        let n = &g[at];
        match n.op {
            Op::Permute if g[n.src[0]].op == Op::Decode => {
                let Arg::Axes(axes) = &n.arg else { return None };
                return (axes.last() != Some(&(axes.len() as u8 - 1))).then_some(at);
            }
            Op::Reshape | Op::Expand | Op::Permute | Op::Gather => at = n.src[0],
            _ => return None,
        }
    }
}

impl DequantiseTransposed {
    /// Matches a reduction node; `None` if it is not such a contraction.
    fn from_node(g: &Graph, id: Id, target: &Target) -> Option<DequantiseTransposed> {
        let n = &g[id];
        let Arg::Reduce(ReduceOp::Add, axes) = &n.arg else {
            return None;
        };
        if target.machine.kind != MachineKind::Gpu {
            return None;
        }
        let (product, last) = (&g[n.src[0]], g.dims(n.src[0]).len().checked_sub(1)?);
        if product.op != Op::Mul || axes[..] != [last as u8] || g.scalar(id) != Scalar::F32 {
            return None;
        }
        let sides = [
            (product.src[0], product.src[1]),
            (product.src[1], product.src[0]),
        ];
        let (weight, x, turned) = sides
            .into_iter()
            .find_map(|(w, x)| Some((w, x, turned(g, w)?)))?;
        let operand = g.scalar(f16_split::operand(g, x)?);
        let fragment = target.machine.fragment(operand)?;
        let dims = g.dims(n.src[0]);
        let whole = g
            .int_value(dims[last])
            .is_some_and(|terms| terms % fragment.terms == 0);
        let all: i64 = dims.iter().map(|&dim| g.max_of(dim)).product();
        let fits = whole && all / g.max_elements(turned).max(1) >= LEAST;
        fits.then_some(DequantiseTransposed {
            of: Operands { weight, x, base: x },
            turned,
            operand,
        })
    }
    /// Matches a contraction if `lies` says that its weight's slot has a repacked layout.
    ///
    /// Such weights are those that [`copied`] returns.
    pub fn of_copy(
        g: &Graph,
        id: Id,
        lies: impl Fn(u32) -> bool,
        target: &Target,
    ) -> Option<DequantiseTransposed> {
        let across = DequantiseTransposed::from_node(g, id, target)?;
        let packed = g[g[across.turned].src[0]].src[0];
        matches!(g[packed].arg, Arg::Packed(slot, _) if lies(slot)).then_some(across)
    }
    /// Rewrites it as a product of such operands; returns the sum and the weight to materialise.
    pub fn product(&self, g: &mut Graph) -> (Id, Id) {
        let Operands { weight, x, .. } = self.of;
        let half = g.cast(self.turned, self.operand);
        let wide = g.cast(half, Scalar::F32);
        let weight = moved(g, weight, self.turned, wide);
        let product = g.mul(weight, x);
        let last = g.dims(product).len() - 1;
        (g.reduce(product, &[last], ReduceOp::Add), half)
    }
}

/// Whether a function has too few tokens to compute keys for every head.
///
/// True for a small attention, or if all attentions are paged. In a mixed batch the prefill chunk
/// decides. Without a loop over staged rows 512 tokens lost 4 % with such keys
/// (docs/experiments/102); with it they gain (docs/experiments/105).
fn has_few_tokens(g: &Graph, order: &[Id], target: &Target) -> bool {
    let tokens = |op: Op| {
        order
            .iter()
            .filter(move |&&id| g[id].op == op)
            .map(|&id| g.max_of(g.dims(g[id].src[0])[0]))
    };
    match tokens(Op::Attention).min() {
        Some(tokens) => tokens <= buffered(target),
        None => tokens(Op::PagedAttention).next().is_some(),
    }
}

/// Returns the permutations of weights that only such contractions read across their rows.
pub fn copied(g: &Graph, roots: &[Id], target: &Target) -> FxHashSet<Id> {
    let (mut copied, mut others) = (FxHashSet::default(), FxHashSet::default());
    let order = g.toposort(roots);
    // With few tokens, rewrite rules choose a form that reads the weight along its rows; its layout
    // must not differ from the one for many tokens.
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
