//! Human-readable titles of kernels: the weights a kernel reads, in parameter order, and a
//! summary of its operations.
//!
//! A title is shown next to the kernel's name, which is a hash of its text. No decision
//! depends on a title.

use gristmill_uop::function::{Function, Slot, SlotKind};
use gristmill_uop::program::{Access, Param};
use gristmill_uop::{Arg, Graph, Id, Op, ReduceOp, Scalar};

/// Maximum number of weights listed in a title; the others are counted.
const NAMED: usize = 4;

/// Title of a kernel without weights or recognised operations.
const COPY: &str = "copy";

/// The title of the kernel `root` of `function`, with these parameters.
pub fn title(g: &Graph, root: Id, function: &Function, params: &[Param]) -> String {
    let used: Vec<Used> = params
        .iter()
        .map(|p| Used {
            slot: p.slot,
            access: p.access,
        })
        .collect();
    of_nodes(g, &g.toposort(&[root]), function, &used)
}

/// The title of a kernel with these nests.
pub fn title_of_nests(g: &Graph, function: &Function, nests: &[Id]) -> String {
    let nodes = g.toposort(nests);
    let slot = |n: Id| match g[n].arg {
        Arg::Param(slot) | Arg::Packed(slot, _) if g[n].op == Op::Param => Some(slot),
        _ => None,
    };
    let written: Vec<u32> = nests.iter().filter_map(|&n| slot(g[n].src[0])).collect();
    let mut used: Vec<Used> = Vec::new();
    for slot in nodes.iter().filter_map(|&n| slot(n)) {
        if !used.iter().any(|u| u.slot == slot) {
            let access = if written.contains(&slot) {
                Access::ReadWrite
            } else {
                Access::Read
            };
            used.push(Used { slot, access });
        }
    }
    of_nodes(g, &nodes, function, &used)
}

/// The title of the custom kernel `name`: its name, then the title of its fused nodes, if any.
pub fn title_of_text(g: &Graph, function: &Function, name: &str, nests: &[Id]) -> String {
    match title_of_nests(g, function, nests) {
        nothing if nothing == COPY => name.to_owned(),
        words => format!("{name} · {words}"),
    }
}

/// A slot that a kernel uses, and how.
struct Used {
    slot: u32,
    access: Access,
}

fn of_nodes(g: &Graph, nodes: &[Id], function: &Function, params: &[Used]) -> String {
    let slot = |used: &Used| function.slots.get(used.slot as usize);
    let of_kind = |kind: SlotKind| {
        params
            .iter()
            .filter(move |p| slot(p).is_some_and(|s| s.kind == kind))
    };
    let weights: Vec<&Slot> = of_kind(SlotKind::Weight).filter_map(slot).collect();
    let mut words: Vec<String> = weights
        .iter()
        .take(NAMED)
        .map(|slot| slot.name.clone())
        .collect();
    if weights.len() > NAMED {
        words.push(format!("{} more", weights.len() - NAMED));
    }
    let reads_state = of_kind(SlotKind::State).any(|p| p.access == Access::Read);
    words.extend(operations(
        g,
        nodes,
        reads_state,
        weights.iter().filter(|slot| slot.dims.len() > 1).count(),
    ));
    words.extend(
        of_kind(SlotKind::State)
            .filter(|p| p.access != Access::Read)
            .filter_map(slot)
            .map(|s| format!("into {}", s.name)),
    );
    if words.is_empty() {
        words.push(COPY.into());
    }
    words.join(" · ")
}

/// Names of the operations that the nodes amount to, products with weights excluded.
fn operations(g: &Graph, nodes: &[Id], reads_state: bool, matrices: usize) -> Vec<String> {
    let has = |op: Op| nodes.iter().any(|&n| g[n].op == op);
    let reduces = |op: ReduceOp, float: bool| {
        nodes.iter().any(|&n| {
            g.scalar(n).is_float() == float
                && matches!(&g[n].arg, Arg::Reduce(it, _) if g[n].op == Op::Reduce && *it == op)
        })
    };
    let exponential = has(Op::Exp) || has(Op::Exp2);
    let (softmax, norm) = (
        exponential && reduces(ReduceOp::Max, true),
        has(Op::Sqrt) && reduces(ReduceOp::Add, true),
    );
    let mut words = Vec::new();
    if reads_state && softmax {
        words.push("attention");
    } else if softmax && !sums_exponentials(g, nodes) {
        words.push("attention combine");
    } else if is_sigmoid(g, nodes) {
        words.push(if matrices > 1 { "SwiGLU" } else { "sigmoid" });
    } else if softmax {
        words.push("softmax");
    }
    if norm && matrices == 0 {
        words.push("norm");
    }
    let is_code = |n: &Id| {
        g[*n].op == Op::Store
            && g[g[*n].src[0]].op == Op::Param
            && g.scalar(g[*n].src[0]) == Scalar::I8
    };
    if words.is_empty() && matrices == 0 {
        let simple = [
            (nodes.iter().any(is_code), "eight bits"),
            (exponential, "exp"),
            (
                reduces(ReduceOp::Max, true) || reduces(ReduceOp::Max, false),
                "maximum",
            ),
            (reduces(ReduceOp::Add, true), "sum"),
            (reduces(ReduceOp::Add, false), "count"),
        ];
        words.extend(simple.iter().filter(|s| s.0).map(|s| s.1));
    }
    words.into_iter().map(String::from).collect()
}

/// Whether the nodes contain 1 / (1 + exp(x)).
fn is_sigmoid(g: &Graph, nodes: &[Id]) -> bool {
    let is = |n: Id, op: Op| g[n].op == op;
    let one_more = |n: Id| is(n, Op::Add) && g[n].src.iter().any(|&s| is(s, Op::Exp));
    nodes
        .iter()
        .any(|&n| is(n, Op::Recip) && one_more(g[n].src[0]))
}

/// Whether the nodes sum exponentials, as the denominator of a softmax does. The kernel that
/// combines attention's chunks sums products with exponentials of maxima instead.
fn sums_exponentials(g: &Graph, nodes: &[Id]) -> bool {
    nodes.iter().any(|&n| {
        let is_sum = matches!(&g[n].arg, Arg::Reduce(ReduceOp::Add, _) if g[n].op == Op::Reduce);
        is_sum && is_exponential(g, nodes, g[n].src[0])
    })
}

/// Whether the value is an exponential: converted, masked, or read back from a local buffer.
fn is_exponential(g: &Graph, nodes: &[Id], value: Id) -> bool {
    match g[value].op {
        Op::Exp | Op::Exp2 => true,
        Op::Cast => is_exponential(g, nodes, g[value].src[0]),
        Op::Where => g[value].src[1..]
            .iter()
            .any(|&s| is_exponential(g, nodes, s)),
        Op::Load if g[g[value].src[0]].op == Op::Local => nodes
            .iter()
            .filter(|&&n| g[n].op == Op::Store && g[n].src[0] == g[value].src[0])
            .any(|&n| g[g[n].src[2]].op != Op::Load && is_exponential(g, nodes, g[n].src[2])),
        _ => false,
    }
}
