//! The nest of a custom kernel, and the elementwise ops fused into it: into arguments that its text
//! reads through functions, and into an output that it writes through one.

use super::draft::{Destination, Illegal};
use super::rangeify::{Expander, unflatten};
use crate::custom::{OUTPUT, argument, called};
use crate::decompose::int8::Derived;
use gristmill_uop::custom::CustomRef;
use gristmill_uop::{Arg, Graph, Id, Node, Op, RangeKind, Sources};
use rustc_hash::{FxHashMap, FxHashSet};

/// The custom call that the kernel of `root` runs, given its fused nodes.
///
/// # Errors
/// Several calls in one kernel.
pub fn call_of(g: &Graph, root: Id, fused: &FxHashSet<Id>) -> Result<Option<Id>, Illegal> {
    let mut calls = fused
        .iter()
        .copied()
        .chain([root])
        .filter(|&n| called(g, n).is_some());
    match (calls.next(), calls.next()) {
        (call, None) => Ok(call),
        _ => Err(Illegal::SeveralTexts),
    }
}

/// Inputs for the nest of a custom kernel.
pub struct CallContext<'a> {
    /// The `Op::Call` node.
    pub call: Id,
    /// Node that is written: the call, or an expression of it.
    pub node: Id,
    /// Materialised nodes with their buffers.
    pub buffers: &'a FxHashMap<Id, Id>,
    /// Layouts of these buffers.
    pub derived: &'a Derived,
}

/// Builds the nest: a range over the elements of the call's output, and the stored value as an
/// expression of the node that stands for the text.
///
/// The sources of that node are the text's inputs: an element load for a pointer argument, and for
/// a function argument its value at an index with a range of its own.
pub fn nest(
    g: &mut Graph,
    kernel: CustomRef,
    of: &CallContext,
    to: Destination,
) -> Result<Id, Illegal> {
    let only: FxHashSet<Id> = FxHashSet::from_iter([of.call]);
    let mut x = Expander::new(of.buffers, &only, of.derived);
    if !of.is_elementwise(g, of.node) {
        return Err(Illegal::InsideText);
    }
    let mut closed = Vec::new();
    let (at, index) = elements(g, of.call, of.node, OUTPUT);
    closed.push(at);
    let mut src = Sources::new();
    for (i, (name, s)) in kernel
        .arguments
        .iter()
        .zip(g[of.call].src[2..].to_vec())
        .enumerate()
    {
        src.push(if g[s].op == Op::Var {
            s
        } else if kernel.calls(name).is_none() {
            let (buffer, zero) = (of.buffers.get(&s).copied().unwrap_or(s), g.int(0));
            let scalar = g.scalar(buffer);
            g.load(buffer, zero, scalar)
        } else if !of.buffers.contains_key(&s) && !of.is_elementwise(g, s) {
            return Err(Illegal::InsideText);
        } else {
            let (at, index) = elements(g, s, s, argument(i));
            closed.push(at);
            x.value(g, s, &index)
        });
    }
    src.push(g[of.call].src[1]);
    let text = g.intern(Node {
        op: Op::Call,
        dtype: g[of.call].dtype,
        src,
        arg: Arg::None,
    });
    let value = if of.node == of.call {
        text
    } else {
        x.compute(g, of.node, &index)
    };
    let reads = g.toposort_within(&[value], |n| g.has_placeholder(n));
    let reads = reads.into_iter().filter(|&n| g[n].op == Op::Index);
    let value = g.replace(value, &mut reads.map(|read| (read, text)).collect());
    let offset = (to.address)(g, &index);
    closed.retain(|&r| g[r].op == Op::Range);
    Ok(g.store(to.buffer, offset, value, &closed))
}

/// A row-major range over the elements of `of` (maximum dims), and the index into `shaped`, which
/// has the same elements in the same order.
fn elements(g: &mut Graph, of: Id, shaped: Id, number: u32) -> (Id, Vec<Id>) {
    let dims = g.shape(of);
    let inner: i64 = dims.iter().skip(1).map(|&d| g.max_of(d)).product();
    let (one, inner) = (g.int(1), g.int(inner));
    let count = g.mul(dims.first().copied().unwrap_or(one), inner);
    let range = g.range(count, number, RangeKind::Loop);
    let shape = g.shape(shaped);
    (range, unflatten(g, &[count], &[range], &shape).to_vec())
}

impl CallContext<'_> {
    /// Whether an element of `node` can be computed at the text's place: from buffers by
    /// elementwise and movement ops, and from the call only by the element of the same index.
    fn is_elementwise(&self, g: &Graph, node: Id) -> bool {
        let is_read = |n: Id| {
            n == self.call || n != node && self.buffers.contains_key(&n) || g[n].op == Op::Param
        };
        // Nodes computed from the call's result.
        let mut own: FxHashSet<Id> = FxHashSet::default();
        let mut below: FxHashSet<Id> = FxHashSet::default();
        let mut stack = vec![node];
        while let Some(n) = stack.pop() {
            if below.insert(n) && !is_read(n) {
                stack.extend(&g[n].src);
            }
        }
        for n in g.toposort_within(&[node], |n| below.contains(&n)) {
            let of = &g[n];
            if n == self.call {
                own.insert(n);
            } else if !is_read(n) {
                let after = of.src.iter().any(|s| own.contains(s));
                let moves = of.op.is_movement() && of.op != Op::Cat;
                let same = of.op.is_elementwise()
                    || of.op == Op::Reshape && dense(g, n) && dense(g, of.src[0]);
                let other = moves
                    || matches!(
                        of.op,
                        Op::Gather | Op::Decode | Op::Const | Op::Var | Op::Iota
                    );
                if !same && (after || !other) {
                    return false;
                }
                own.extend(after.then_some(n));
            }
        }
        true
    }
}

/// Whether only the first dim varies, so that all shapes have the same element order.
fn dense(g: &Graph, id: Id) -> bool {
    g.dims(id).iter().skip(1).all(|&d| g.int_value(d).is_some())
}
