//! Custom kernels of the user (`Op::Call`): selects the custom source or the reference,
//! and models its cost.
//!
//! If the device's dialect has source text for the call, the call becomes a kernel whose nest
//! stores a value that stands for the text, or an expression of it. The nest reads each argument's
//! buffer or the expression passed as a function (`kernel/custom.rs`), so that parameters, levels,
//! hazards, lifetimes and titles follow as for any other kernel. Otherwise the call is replaced by
//! its reference, which is scheduled like ordinary ops.

use crate::cost::{Cost, TextCost};
use crate::ir::size_estimate::typical;
use gristmill_uop::custom::{CustomRef, Language};
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, Sources};
use rustc_hash::FxHashMap;

/// Number of the range over the elements of a call's output.
pub const OUTPUT: u32 = 1;

/// Number of the range over the elements of that argument, if the text reads it through a function.
pub fn argument(number: usize) -> u32 {
    OUTPUT + 1 + number as u32
}

/// The custom kernel that a tensor-level node calls.
pub fn called(g: &Graph, id: Id) -> Option<CustomRef> {
    match (g[id].op, &g[id].arg) {
        (Op::Call, Arg::Custom(kernel)) => Some(kernel),
        _ => None,
    }
}

/// Whether the call has a text in that language, and the language can express the
/// text's tensor accesses.
fn is_known(g: &Graph, node: Id, kernel: CustomRef, language: Language) -> bool {
    let by_function = |name: &str| kernel.calls(name).is_some();
    let mut arguments = kernel.arguments.iter().zip(&g[node].src[2..]);
    let pointers = !by_function(kernel.output)
        || arguments.any(|(name, &s)| g[s].op != Op::Var && !by_function(name));
    kernel.text(language.name).is_some() && (language.has_pointers || !pointers)
}

/// Replaces the calls below `roots`: by a kernel if `language` has a text for it,
/// else by its reference.
pub fn resolve(g: &mut Graph, roots: &mut [Id], language: Option<Language>) {
    let mut map: FxHashMap<Id, Id> = FxHashMap::default();
    for id in g.toposort(roots) {
        let Some(kernel) = called(g, id) else {
            continue;
        };
        let src: Sources = g[id].src.clone();
        // Sources precede the call, so their calls are already resolved.
        let settled: Vec<Id> = src.iter().map(|&s| g.substitute(s, &mut map)).collect();
        let new = if language.is_some_and(|language| is_known(g, id, kernel, language)) {
            as_kernel(g, kernel, &settled)
        } else {
            settled[0]
        };
        map.insert(id, new);
    }
    for root in roots {
        *root = g.substitute(*root, &mut map);
    }
}

/// The call with its reference replaced by zeros of the same dims, since the
/// reference is not computed.
fn as_kernel(g: &mut Graph, kernel: CustomRef, src: &[Id]) -> Id {
    let (dims, dtype) = (g.shape(src[0]), g[src[0]].dtype);
    let zero = g.constant(dtype, 0.0);
    let place = g.spread(zero, &dims);
    let arguments: Vec<Id> = src[2..].iter().map(|&s| unshaped(g, s)).collect();
    g.call(kernel, place, src[1], &arguments)
}

/// The tensor whose buffer holds the elements of `id` in the same order: skips reshapes in which
/// only the first dim varies.
fn unshaped(g: &Graph, mut id: Id) -> Id {
    let dense = |id: Id| g.dims(id).iter().skip(1).all(|&d| g.int_value(d).is_some());
    while g[id].op == Op::Reshape
        && !g.dims(g[id].src[0]).is_empty()
        && dense(id)
        && dense(g[id].src[0])
    {
        id = g[id].src[0];
    }
    id
}

/// Tensors that a call reads and that are not parameters, each with whether the text reads it
/// through a function. Empty for other nodes.
pub fn tensors(g: &Graph, node: Id) -> Vec<(Id, bool)> {
    let Some(kernel) = called(g, node) else {
        return vec![];
    };
    let arguments = kernel.arguments.iter().zip(&g[node].src[2..]);
    let tensors = arguments.filter(|(_, s)| !matches!(g[**s].op, Op::Var | Op::Param));
    tensors
        .map(|(name, &s)| (s, kernel.calls(name).is_some()))
        .collect()
}

/// The value that stands for the text in the nests of a custom kernel; `None` for other kernels.
pub fn value(g: &Graph, nests: &[Id]) -> Option<Id> {
    let &[nest] = nests else { return None };
    g.toposort(&[g[nest].src[2]])
        .into_iter()
        .find(|&n| g[n].op == Op::Call)
}

/// Whether a program is a custom kernel, which consists of its text and has no statements.
pub fn is_custom(program: &Program) -> bool {
    let g = &program.graph;
    let bodies = &g[program.root].src;
    bodies.len() == 1 && value(g, &g[bodies[0]].src).is_some()
}

/// The closed range of a nest with that number.
pub fn range(g: &Graph, nest: Id, number: u32) -> Option<Id> {
    g[nest].src[3..]
        .iter()
        .copied()
        .find(|&r| g.range_number(r) == number)
}

/// The cost of a call's nest: tensors accessed by pointer and the output once, fused functions as
/// often as the text calls them, and the operations that the kernel declares.
pub fn cost(g: &Graph, call: Id, nest: Id, target: &Target) -> Cost {
    let (Some(kernel), Some(value)) = (called(g, call), value(g, &[nest])) else {
        return Cost::default();
    };
    let elements = |id: Id| g.dims(id).iter().map(|&d| typical(g, d)).product::<f64>();
    let stored = g[nest].src[2];
    let mut all = TextCost::default();
    all.estimate.operations = elements(call) * f64::from(kernel.operations);
    all.bytes(elements(call) * g.scalar(stored).bytes() as f64);
    let calls = kernel.calls(kernel.output).unwrap_or(1);
    all.expression(g, stored, range(g, nest, OUTPUT), f64::from(calls));
    for (i, (name, &tensor)) in kernel.arguments.iter().zip(&g[call].src[2..]).enumerate() {
        if let Some(calls) = kernel.calls(name) {
            all.expression(
                g,
                g[value].src[i],
                range(g, nest, argument(i)),
                f64::from(calls),
            );
        } else if g[tensor].op != Op::Var {
            all.bytes(elements(tensor) * g.scalar(tensor).bytes() as f64);
        }
    }
    all.cost(&target.machine)
}
