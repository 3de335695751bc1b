//! Matrix products of two factors that are rounded to f16 or bf16 where they are computed, as in
//! gradients. Both are materialised, so that matrix units read them once for many sums, and so is
//! the product: matrix units compute one sum a kernel.

use super::f16_split::operand;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, ReduceOp};

/// Returns the rounded factors of a reduction node, which are to be materialised; `None` if it is
/// no such product, or the target has no halves or no matrix units for them.
pub fn factors(g: &Graph, id: Id, target: &Target) -> Option<[Id; 2]> {
    // Elsewhere the reader of a sum, such as keys that are rounded for attention, has it fused.
    if !target.has_halves() {
        return None;
    }
    let n = &g[id];
    let Arg::Reduce(ReduceOp::Add, axes) = &n.arg else {
        return None;
    };
    let (product, last) = (&g[n.src[0]], g.dims(n.src[0]).len().checked_sub(1)?);
    if product.op != Op::Mul || axes[..] != [last as u8] {
        return None;
    }
    let [a, b] = [operand(g, product.src[0])?, operand(g, product.src[1])?];
    let computed = [a, b].iter().all(|&half| g[half].op == Op::Cast);
    let of = target
        .machine
        .fragment(g.scalar(a))
        .filter(|_| target.machine.kind == MachineKind::Gpu)?;
    let terms = g.int_value(g.dims(n.src[0])[last])?;
    let fits = g.scalar(a) == g.scalar(b) && terms % of.terms == 0;
    (computed && fits).then_some([a, b])
}
