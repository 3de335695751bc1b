//! Kernels of the user's own (`Op::Call`): what decides whether they are used, and what becomes of them.
//!
//! Where the device's dialect has a text for one, the call is a kernel that nothing is fused into: its arguments and its output have buffers. Its nest stores a
//! value that stands for the text, and reads each argument's buffer, so that parameters, levels, hazards, lifetimes and titles follow from it as from any other
//! kernel's. Elsewhere the call is its reference, and that is scheduled as if it had been written alone.

use crate::price::Price;
use crate::typical::typical;
use gristmill_uop::custom::CustomRef;
use gristmill_uop::program::{Estimate, Program};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Node, Op, RangeKind, Sources};
use rustc_hash::FxHashMap;

/// The user's kernel that a tensor-level node calls.
pub fn called(g: &Graph, id: Id) -> Option<CustomRef> {
    match (g[id].op, &g[id].arg) {
        (Op::Call, Arg::Custom(kernel)) => Some(kernel),
        _ => None,
    }
}

/// The calls below `roots`, each as a kernel, where there is a text for it in that language, or as its reference.
pub fn resolve(g: &mut Graph, roots: &mut [Id], language: Option<&str>) {
    let mut map: FxHashMap<Id, Id> = FxHashMap::default();
    for id in g.toposort(roots) {
        let Some(kernel) = called(g, id) else { continue };
        let src: Sources = g[id].src.clone();
        // Sources come first: what they call is settled.
        let settled: Vec<Id> = src.iter().map(|&s| g.substitute(s, &mut map)).collect();
        let new = if language.is_some_and(|language| kernel.text(language).is_some()) {
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

/// A call whose reference nobody computes: in its place are zeros of its dims.
fn as_kernel(g: &mut Graph, kernel: CustomRef, src: &[Id]) -> Id {
    let (dims, dtype) = (g.shape(src[0]), g[src[0]].dtype);
    let zero = g.constant(dtype, 0.0);
    let place = g.spread(zero, &dims);
    let arguments: Vec<Id> = src[2..].iter().map(|&s| unshaped(g, s)).collect();
    g.call(kernel, place, src[1], &arguments)
}

/// The tensor whose buffer holds the elements of `id` in their order: shapes do not move any, where only first dims vary.
fn unshaped(g: &Graph, mut id: Id) -> Id {
    let dense = |id: Id| g.dims(id).iter().skip(1).all(|&d| g.int_value(d).is_some());
    while g[id].op == Op::Reshape && !g.dims(g[id].src[0]).is_empty() && dense(id) && dense(g[id].src[0]) {
        id = g[id].src[0];
    }
    id
}

/// What a call reads from buffers: its tensors that are no parameters.
pub fn buffered(g: &Graph, call: Id) -> impl Iterator<Item = Id> {
    g[call].src[2..].iter().copied().filter(|&s| !matches!(g[s].op, Op::Var | Op::Param))
}

/// The nest of a call: the number of elements of its output, closed by one range, each a value that stands for the text. `buffer_of` finds what a tensor is read from.
pub fn nest(g: &mut Graph, call: Id, buffer: Id, buffer_of: impl Fn(Id) -> Id) -> Id {
    let node = g[call].clone();
    let zero = g.int(0);
    let mut src: Sources = Sources::new();
    for &s in &node.src[2..] {
        let read = if g[s].op == Op::Var { s } else { load(g, buffer_of(s), zero) };
        src.push(read);
    }
    src.push(node.src[1]);
    let value = g.intern(Node { op: Op::Call, dtype: node.dtype, src, arg: Arg::None });
    let dims = g.shape(call);
    let one = g.int(1);
    let elements = dims.iter().fold(one, |product, &d| g.mul(product, d));
    let range = g.range(elements, 1, RangeKind::Loop);
    g.store(buffer, range, value, &[range])
}

fn load(g: &mut Graph, buffer: Id, at: Id) -> Id {
    let scalar = g.scalar(buffer);
    g.load(buffer, at, scalar)
}

/// The value that stands for the text in a kernel's nests, where it is a user's.
pub fn value(g: &Graph, nests: &[Id]) -> Option<Id> {
    let &[nest] = nests else { return None };
    let value = g[nest].src[2];
    (g[value].op == Op::Call).then_some(value)
}

/// Is that program a user's own kernel? Then it has no statements: its text is all there is.
pub fn is_custom(program: &Program) -> bool {
    let g = &program.graph;
    let bodies = &g[program.root].src;
    bodies.len() == 1 && value(g, &g[bodies[0]].src).is_some()
}

/// What a call costs: its buffers' bytes, each once, or what it says of its operations; a launch.
pub fn price(g: &Graph, call: Id, kernel: CustomRef, target: &Target) -> Price {
    let elements = |id: Id| g.dims(id).iter().map(|&d| typical(g, d)).product::<f64>();
    let bytes = |id: Id| elements(id) * g.scalar(id).bytes() as f64;
    let tensors = g[call].src[2..].iter().copied().filter(|&s| g[s].op != Op::Var);
    let other_bytes = bytes(call) + tensors.map(bytes).sum::<f64>();
    let operations = elements(call) * f64::from(kernel.operations);
    let machine = &target.machine;
    let seconds = machine.launch + (other_bytes / machine.bandwidth).max(operations / machine.operations);
    Price { seconds, estimate: Estimate { weight_bytes: 0.0, other_bytes, operations }, stages: 0.0, floor: seconds }
}
