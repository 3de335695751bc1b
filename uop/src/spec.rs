//! Specification of each IR level as a table of invariants by op and level.
//!
//! Passes are checked against it in tests and debug builds. A graph that satisfies it causes no
//! panic in later passes.

use crate::dtype::Scalar;
use crate::graph::Graph;
use crate::id::Id;
use crate::node::{Arg, Node};
use crate::op::{Arity, Class, Op, RangeKind, ReduceOp};
use crate::shape::Scoring;
use crate::text;
use std::fmt;

/// A level of the IR.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Level {
    /// Tensors with dims; no ranges.
    Tensor,
    /// Ranges, loads and stores of elements.
    Kernel,
}

/// An invariant of nodes.
pub struct SpecRule {
    /// Statement of the invariant.
    pub name: &'static str,
    /// Level to which it applies; `None` for both.
    pub level: Option<Level>,
    /// Ops to which it applies; empty for all.
    pub ops: &'static [Op],
    /// Returns whether a node satisfies it, given that all earlier rows hold.
    pub check: fn(&Graph, &Node) -> bool,
}

/// A node that violates the specification.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub struct SpecError {
    /// Level that was checked.
    pub level: Level,
    /// Name of the violated row.
    pub row: &'static str,
    /// Node and its sources, in the text form.
    pub node: String,
}

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} level: {}\n{}", self.level, self.row, self.node)
    }
}

macro_rules! rows { ($($level:tt [$($op:ident)*] $name:literal $check:expr;)*) => {
    /// The specification, in checking order.
    pub static ROWS: &[SpecRule] = &[
        $(SpecRule { name: $name, level: rows!(@$level), ops: &[$(Op::$op),*], check: $check }),*
    ];
};
    (@any) => { None };
    (@tensor) => { Some(Level::Tensor) };
    (@kernel) => { Some(Level::Kernel) };
}

rows! {
    any [] "the number of sources is that of the op table" arity;
    any [] "at least one lane" |_, n| n.dtype.lanes > 0;
    tensor [] "only sources, movement, elementwise and tensor ops" |_, n| {
        matches!(n.op.class(), Class::Source | Class::Movement | Class::Elementwise | Class::Tensor)
    };
    kernel [] "only scalars, elementwise ops, reductions and kernel ops" |_, n| match n.op.class() {
        Class::Source => n.op != Op::Iota,
        class => matches!(class, Class::Elementwise | Class::Kernel) || matches!(n.op, Op::Reduce | Op::Call),
    };
    tensor [] "one lane" |_, n| n.dtype.lanes == 1;
    // Leaves.
    any [Const] "a constant is a number that its dtype holds" constant;
    any [Var] "a variable is an i64 within an interval" |_, n| {
        matches!(n.arg, Arg::Var(_, lo, hi) if lo <= hi) && n.dtype == Scalar::I64.one()
    };
    any [Param] "a parameter has a slot" |_, n| matches!(n.arg, Arg::Param(_) | Arg::Packed(..));
    any [Param Iota] "dims are non-negative i64 scalars with a known maximum" |g, n| n.src.iter().all(|&d| is_dim(g, d));
    tensor [Param] "a packed row is a whole number of blocks" packed;
    tensor [Iota] "one axis, within the rank; i64" |_, n| one_axis(n, n.src.len()) && n.dtype == Scalar::I64.one();
    // Elementwise.
    kernel [Cast Bitcast Neg Exp Exp2 Log Sqrt Recip Round Add Sub Mul Div IDiv Mod Max Min And Or Xor Shl Shr Lt Eq Where Fma Table Half Dot4 SignedDot4 Dot2 Halves Table4 Reduce]
        "operands are values, neither buffers nor effects" |g, n| n.src.iter().all(|&s| is_value(g, s));
    any [Neg Exp Exp2 Log Sqrt Recip Round Add Sub Mul Div IDiv Mod Max Min And Or Xor Fma] "operands have the dtype of the result"
        |g, n| n.src.iter().all(|&s| g[s].dtype == n.dtype);
    any [Neg Exp Exp2 Log Sqrt Recip Round Sub Div Fma] "floats" |_, n| n.dtype.scalar.is_float();
    any [IDiv Mod] "integers" |_, n| n.dtype.scalar.is_int();
    any [IDiv Mod] "the divisor is positive" |g, n| g.bounds(n.src[1]).is_none_or(|b| b.1 > 0);
    any [And Or Xor] "integers or booleans" |_, n| !n.dtype.scalar.is_float();
    any [Shl Shr] "an integer of the result's dtype, shifted by an integer" |g, n| {
        n.dtype.scalar.is_int() && g[n.src[0]].dtype == n.dtype && g.scalar(n.src[1]).is_int()
    };
    any [Lt Eq] "operands of one dtype, a boolean result" |g, n| {
        let d = g[n.src[0]].dtype;
        g[n.src[1]].dtype == d && n.dtype == Scalar::Bool.one().with_lanes(d.lanes)
    };
    any [Where] "the condition is boolean" |g, n| g.scalar(n.src[0]) == Scalar::Bool;
    any [Where] "both branches have the dtype of the result" |g, n| n.src[1..].iter().all(|&s| g[s].dtype == n.dtype);
    any [Cast] "a cast keeps the lanes" |g, n| g[n.src[0]].dtype.lanes == n.dtype.lanes;
    any [Bitcast] "a bitcast keeps the size" |g, n| {
        let d = g[n.src[0]].dtype;
        d.scalar.bytes() * d.lanes as usize == n.dtype.scalar.bytes() * n.dtype.lanes as usize
    };
    any [Table] "an integer within a table of i32" table;
    any [Dot4] "two words and an i32 sum, and the largest byte of the first" |g, n| {
        let words = n.src[..2].iter().all(|&s| g.scalar(s) == Scalar::U32);
        words && g.scalar(n.src[2]) == Scalar::I32 && n.dtype.scalar == Scalar::I32 && matches!(n.arg, Arg::Int(0..=255))
    };
    any [SignedDot4] "two words and an i32 sum" |g, n| {
        let words = n.src[..2].iter().all(|&s| g.scalar(s) == Scalar::U32);
        words && g.scalar(n.src[2]) == Scalar::I32 && n.dtype.scalar == Scalar::I32
    };
    any [Dot2] "three words, and the largest byte of the first" |g, n| {
        let words = n.src.iter().all(|&s| g.scalar(s) == Scalar::U32);
        words && n.dtype.scalar == Scalar::U32 && matches!(n.arg, Arg::Int(0..=255))
    };
    any [Half] "a word, converted to f32" |g, n| g.scalar(n.src[0]) == Scalar::U32 && n.dtype.scalar == Scalar::F32;
    any [Halves] "a word and an i32 sum" |g, n| {
        g.scalar(n.src[0]) == Scalar::U32 && g.scalar(n.src[1]) == Scalar::I32 && n.dtype.scalar == Scalar::I32
    };
    any [Table4] "a word and sixteen bytes" |g, n| {
        let bytes = matches!(&n.arg, Arg::Ints(t) if t.len() == 16 && t.iter().all(|v| (0..256).contains(v)));
        bytes && n.dtype.scalar == Scalar::U32 && g[n.src[0]].dtype == n.dtype
    };
    tensor [Cast Bitcast Neg Exp Exp2 Log Sqrt Recip Round Add Sub Mul Div IDiv Mod Max Min And Or Xor Shl Shr Lt Eq Where Fma Table]
        "operands are scalars or have the dims of the result" |g, n| {
            let dims: Vec<&[Id]> = n.src.iter().map(|&s| g.dims(s)).filter(|d| !d.is_empty()).collect();
            dims.iter().all(|d| same_dims(g, d, dims[0]))
        };
    // Movement.
    tensor [Reshape Permute Expand Shrink Cat] "moved elements keep their dtype" |g, n| {
        let values = if n.op == Op::Cat { n.src.len() - 1 } else { 1 };
        n.src[..values].iter().all(|&s| g[s].dtype == n.dtype)
    };
    tensor [Reshape Expand] "new dims are non-negative i64 scalars with a known maximum"
        |g, n| n.src[1..].iter().all(|&d| is_dim(g, d));
    tensor [Reshape] "the number of elements does not change" |g, n| same_product(g, g.dims(n.src[0]), &n.src[1..]);
    tensor [Permute] "every axis once" |g, n| match &n.arg {
        Arg::Axes(a) => {
            let mut sorted = a.clone();
            sorted.sort_unstable();
            sorted.len() == rank(g, n, 0) && sorted.iter().enumerate().all(|(i, &a)| i == a as usize)
        }
        _ => false,
    };
    tensor [Expand] "only axes of length 1 expand" |g, n| {
        let old = g.dims(n.src[0]);
        old.len() == n.src.len() - 1
            && old.iter().zip(&n.src[1..]).all(|(&a, &b)| same_dim(g, a, b) || g.int_value(a) == Some(1))
    };
    tensor [Shrink] "a begin and a length for each axis" |g, n| {
        n.src.len() == 1 + 2 * rank(g, n, 0) && n.src[1..].iter().all(|&d| is_dim(g, d))
    };
    tensor [Shrink] "the window lies within the tensor" |g, n| {
        // Checked for constants only; symbolic windows depend on their variables.
        g.dims(n.src[0]).iter().zip(n.src[1..].chunks(2)).all(|(&d, w)| {
            match (g.int_value(d), g.int_value(w[0]), g.int_value(w[1])) {
                (Some(d), Some(begin), Some(len)) => begin.checked_add(len).is_some_and(|end| end <= d),
                _ => true,
            }
        })
    };
    tensor [Cat] "one axis, within the rank; the parts, then the joined dim" |g, n| {
        n.src.len() > 1 && one_axis(n, rank(g, n, 0)) && n.src.last().is_some_and(|&d| is_dim(g, d))
    };
    tensor [Cat] "parts have equal dims except on the joined axis" cat;
    // Tensor ops.
    tensor [Reduce] "distinct axes within the rank, and one source" |g, n| match &n.arg {
        Arg::Reduce(_, axes) => {
            n.src.len() == 1
                && axes.iter().all(|&a| (a as usize) < rank(g, n, 0))
                && axes.iter().enumerate().all(|(i, a)| !axes[..i].contains(a))
        }
        _ => false,
    };
    any [Reduce] "a reduction keeps the dtype" |g, n| g[n.src[0]].dtype == n.dtype;
    tensor [Gather] "rows are indexed by an integer" |g, n| g.scalar(n.src[1]).is_int() && rank(g, n, 0) > 0;
    tensor [Gather] "rows keep their dtype" |g, n| g[n.src[0]].dtype == n.dtype;
    tensor [Decode] "f32 of a packed tensor" |g, n| n.dtype == Scalar::F32.one() && is_packed(g, n.src[0]);
    tensor [Assign] "state, value, and the first row or the index of each: rows of one dtype and equal dims" assign;
    tensor [ScatterAdd] "a tensor, rows to add and the index of each: f32, f16 or i32 of one type and equal dims" scatter_add;
    tensor [Copy] "a tensor and a number" |g, n| {
        matches!(n.arg, Arg::Int(_)) && g[n.src[0]].dtype == n.dtype && rank(g, n, 0) > 0
    };
    tensor [Call] "the kernel's tensors and variables as arguments, and a number of workgroups" call;
    tensor [Call] "accessor functions are of tensors" accessors;
    tensor [Attention] "q, k, v of three matching axes, i64 positions, a constant window, a sink per head, a scale, a positive cap" attention;
    tensor [PagedAttention] "q of three axes, k and v of four matching axes, a position and a block table row of constant length for each row of q" paged_attention;
    tensor [Scan] "a state, queries, keys, values, gates and optional rates, floats of matching dims; arg 0 or 1" scan;
    // Kernel ops.
    kernel [Reduce] "reduced over ranges" |g, n| {
        matches!(&n.arg, Arg::Reduce(_, axes) if axes.is_empty()) && n.src[1..].iter().all(|&r| g[r].op == Op::Range)
    };
    kernel [Reduce] "no global range is reduced" |g, n| {
        n.src[1..].iter().all(|&r| g.range_kind(r) != Some(RangeKind::Global))
    };
    kernel [Reduce] "a nested reduction shares none of its ranges, except lanes of a group" |g, n| {
        let twice = |r: &Id| n.src[1..].contains(r) && g.range_kind(*r) != Some(RangeKind::VectorReduce);
        !g.any(n.src[0], |_, m| m.op == Op::Reduce && m.src[1..].iter().any(twice))
    };
    kernel [Range] "an i64 with a number, a kind and an i64 bound" |g, n| {
        matches!(n.arg, Arg::Range(..)) && n.dtype == Scalar::I64.one() && g[n.src[0]].dtype == Scalar::I64.one()
    };
    kernel [Load Store] "the buffer is a parameter or a local buffer" |g, n| is_buffer(g, n.src[0]);
    kernel [Load Store] "the offset is an i64" |g, n| g.scalar(n.src[1]) == Scalar::I64 && is_value(g, n.src[1]);
    kernel [Load] "the buffer's dtype, unless packed, or a word of its bytes" |g, n| {
        let word = n.dtype.scalar == Scalar::U32 && g.scalar(n.src[0]).bytes() == 1;
        is_packed(g, n.src[0]) || word || g.scalar(n.src[0]) == n.dtype.scalar
    };
    kernel [Store] "a value of the buffer's dtype, unless packed" |g, n| {
        let same = is_packed(g, n.src[0]) || g.scalar(n.src[2]) == g.scalar(n.src[0]);
        is_value(g, n.src[2]) && same && g[n.src[2]].dtype == n.dtype
    };
    kernel [Store] "overwrites an element, or adds f32, f16 or i32 to an element of a parameter" |g, n| match n.arg {
        Arg::None => true,
        Arg::Reduce(ReduceOp::Add, ref axes) => {
            let number = matches!(n.dtype.scalar, Scalar::F32 | Scalar::F16 | Scalar::I32);
            axes.is_empty() && number && g[n.src[0]].op == Op::Param && !is_packed(g, n.src[0])
        }
        _ => false,
    };
    kernel [Store] "only an adding store has reduction ranges" |g, n| {
        n.arg != Arg::None || n.src[3..].iter().all(|&r| g.range_kind(r) != Some(RangeKind::Reduce))
    };
    kernel [Rescaled] "a sum and its maximum" |g, n| {
        n.dtype.scalar.is_float() && n.src.iter().all(|&s| is_value(g, s) && g[s].dtype == n.dtype)
    };
    kernel [Store] "closes ranges" |g, n| n.src[3..].iter().all(|&r| g[r].op == Op::Range);
    kernel [Store] "the offset or value depends on each closed global range" |g, n| {
        n.src[3..].iter().all(|&r| {
            g.range_kind(r) != Some(RangeKind::Global) || n.src[1..3].iter().any(|&s| g.free_ranges(s).contains(&r))
        })
    };
    kernel [Local] "a number and a positive constant size" |g, n| {
        matches!(n.arg, Arg::Int(_)) && g.int_value(n.src[0]).is_some_and(|v| v > 0)
    };
    kernel [Body] "the sources of a body are stores or bodies" |g, n| n.src.iter().all(|&s| matches!(g[s].op, Op::Store | Op::Body));
    kernel [Kernel] "the sources of a kernel are stores or bodies" |g, n| n.src.iter().all(|&s| matches!(g[s].op, Op::Store | Op::Body));
}

/// Checks the graph below `root` against a level; the error names the first
/// violation, sources before users.
pub fn check(g: &Graph, root: Id, level: Level) -> Result<(), SpecError> {
    for id in g.toposort(&[root]) {
        let n = &g[id];
        let rows = ROWS.iter().filter(|r| {
            r.level.is_none_or(|l| l == level) && (r.ops.is_empty() || r.ops.contains(&n.op))
        });
        for row in rows {
            if !(row.check)(g, n) {
                let mut node = text::print_node(g, id);
                for &s in &n.src {
                    node.push_str("\n  of ");
                    node.push_str(&text::print_node(g, s));
                }
                return Err(SpecError {
                    level,
                    row: row.name,
                    node,
                });
            }
        }
    }
    Ok(())
}

fn arity(_: &Graph, n: &Node) -> bool {
    match n.op.info().arity {
        Arity::Exact(k) => n.src.len() == k as usize,
        Arity::AtLeast(k) => n.src.len() >= k as usize,
    }
}

fn constant(_: &Graph, n: &Node) -> bool {
    match (&n.arg, n.dtype.scalar.range()) {
        (Arg::Int(v), Some((lo, hi))) => (lo..=hi).contains(v),
        (Arg::Float(_), None) => true,
        _ => false,
    }
}

/// A call of a user-written kernel: arguments and workgroup count.
fn call(g: &Graph, n: &Node) -> bool {
    let Arg::Custom(kernel) = n.arg else {
        return false;
    };
    let is_argument = |&s: &Id| g[s].op == Op::Var || !g.dims(s).is_empty();
    let groups = n.src[1];
    let is_count = g.dims(groups).is_empty() && g[groups].dtype == Scalar::I64.one();
    is_count && n.src.len() == 2 + kernel.arguments.len() && n.src[2..].iter().all(is_argument)
}

/// Accessor functions of a call exist for tensors only, since a variable is a number.
fn accessors(g: &Graph, n: &Node) -> bool {
    let Arg::Custom(kernel) = n.arg else {
        return false;
    };
    let is_tensor = |name: &str| {
        let argument = kernel
            .arguments
            .iter()
            .zip(&n.src[2..])
            .find(|argument| *argument.0 == name);
        name == kernel.output || argument.is_some_and(|(_, &s)| g[s].op != Op::Var)
    };
    kernel
        .accessors
        .iter()
        .all(|accessor| is_tensor(accessor.0))
}

fn packed(g: &Graph, n: &Node) -> bool {
    let Arg::Packed(_, e) = &n.arg else {
        return true;
    };
    let row = n.src.last().and_then(|&d| g.int_value(d));
    n.dtype == Scalar::U8.one()
        && row.is_some_and(|d| usize::try_from(d).is_ok_and(|d| e.row_bytes(d).is_some()))
}

fn table(g: &Graph, n: &Node) -> bool {
    match &n.arg {
        Arg::Ints(t) => {
            let x = n.src[0];
            n.dtype.scalar == Scalar::I32
                && g.scalar(x).is_int()
                && g.within(x, 0, t.len() as i64 - 1)
        }
        _ => false,
    }
}

fn rank(g: &Graph, n: &Node, source: usize) -> usize {
    g.dims(n.src[source]).len()
}

fn one_axis(n: &Node, rank: usize) -> bool {
    matches!(&n.arg, Arg::Axes(a) if a.len() == 1 && (a[0] as usize) < rank)
}

/// An i64 scalar that is never negative and has a known maximum.
fn is_dim(g: &Graph, id: Id) -> bool {
    g[id].dtype == Scalar::I64.one()
        && g.dims(id).is_empty()
        && g.bounds(id).is_some_and(|b| b.0 >= 0)
}

/// Whether the node is a value: neither a buffer nor a statement.
pub fn is_value(g: &Graph, id: Id) -> bool {
    !matches!(
        g[id].op,
        Op::Param | Op::Local | Op::Store | Op::Body | Op::Kernel
    )
}

fn is_buffer(g: &Graph, id: Id) -> bool {
    matches!(g[id].op, Op::Param | Op::Local)
}

/// A packed parameter, or rows of one: movement preserves the blocks.
fn is_packed(g: &Graph, mut id: Id) -> bool {
    while g[id].op.is_movement() || g[id].op == Op::Gather {
        id = g[id].src[0];
    }
    matches!(g[id].arg, Arg::Packed(..))
}

fn same_dim(g: &Graph, a: Id, b: Id) -> bool {
    a == b || g.int_value(a).is_some_and(|v| g.int_value(b) == Some(v))
}

fn same_dims(g: &Graph, a: &[Id], b: &[Id]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(&a, &b)| same_dim(g, a, b))
}

/// Equal products: by their factors, or by their smallest and largest values.
fn same_product(g: &Graph, a: &[Id], b: &[Id]) -> bool {
    let factors = |dims: &[Id]| {
        let (mut constant, mut rest, mut todo) = (1i64, Vec::new(), dims.to_vec());
        while let Some(d) = todo.pop() {
            match (g.int_value(d), g[d].op) {
                (Some(v), _) => constant = constant.saturating_mul(v),
                (None, Op::Mul) => todo.extend(&g[d].src),
                _ => rest.push(d),
            }
        }
        rest.sort_unstable();
        (constant, rest)
    };
    let ends = |dims: &[Id]| {
        dims.iter().try_fold((1i64, 1i64), |p, &d| {
            let b = g.bounds(d)?;
            Some((p.0.checked_mul(b.0)?, p.1.checked_mul(b.1)?))
        })
    };
    factors(a) == factors(b) || (ends(a).is_some_and(|e| e.0 != e.1) && ends(a) == ends(b))
}

fn cat(g: &Graph, n: &Node) -> bool {
    let Arg::Axes(axes) = &n.arg else {
        return false;
    };
    let axis = axes[0] as usize;
    let (parts, total) = (&n.src[..n.src.len() - 1], n.src[n.src.len() - 1]);
    let first = g.dims(parts[0]);
    let agree = parts.iter().all(|&p| {
        let d = g.dims(p);
        d.len() == first.len() && (0..d.len()).all(|a| a == axis || same_dim(g, d[a], first[a]))
    });
    // If all are constant, the sum is checked too.
    let sum: Option<i64> = parts
        .iter()
        .map(|&p| g.dims(p).get(axis).and_then(|&d| g.int_value(d)))
        .sum();
    agree && sum.is_none_or(|s| g.int_value(total).is_none_or(|t| t == s))
}

fn assign(g: &Graph, n: &Node) -> bool {
    let (state, value) = (g.dims(n.src[0]), g.dims(n.src[1]));
    n.src[..2].iter().all(|&s| g[s].dtype == n.dtype)
        && n.src.len() == 3
        && !value.is_empty()
        && (is_dim(g, n.src[2])
            || g.scalar(n.src[2]).is_int() && same_dims(g, g.dims(n.src[2]), &value[..1]))
        && !state.is_empty()
        && state.len() == value.len()
        && same_dims(g, &state[1..], &value[1..])
        && g.bounds(value[0])
            .zip(g.bounds(state[0]))
            .is_some_and(|(v, s)| v.0 <= s.1)
}

fn scatter_add(g: &Graph, n: &Node) -> bool {
    let &[x, value, index] = &n.src[..] else {
        return false;
    };
    let (into, rows) = (g.dims(x), g.dims(value));
    matches!(n.dtype.scalar, Scalar::F32 | Scalar::F16 | Scalar::I32)
        && matches!(n.arg, Arg::None | Arg::Int(0 | 1))
        && [x, value].iter().all(|&s| g[s].dtype == n.dtype)
        && g.scalar(index).is_int()
        && !into.is_empty()
        && !rows.is_empty()
        && same_dims(g, &into[1..], &rows[1..])
        && same_dims(g, g.dims(index), &rows[..1])
}

/// A scale, and optionally a positive finite cap.
fn scores(arg: &Arg) -> bool {
    Scoring::from_arg(arg).is_some_and(|of| of.cap.is_none_or(|cap| cap > 0.0 && cap.is_finite()))
}

fn attention(g: &Graph, n: &Node) -> bool {
    let (q, k, v) = (g.dims(n.src[0]), g.dims(n.src[1]), g.dims(n.src[2]));
    let heads = |d: &[Id]| g.int_value(d[1]);
    n.dtype.scalar.is_float()
        && scores(&n.arg)
        && n.src[..3].iter().all(|&s| g.scalar(s).is_float())
        && n.src[3..].iter().take(3).all(|&p| is_dim(g, p))
        && n.src
            .get(5)
            .is_none_or(|&window| g.int_value(window).is_some_and(|w| w >= 0))
        && n.src
            .get(6)
            .is_none_or(|&s| g.scalar(s).is_float() && same_dims(g, g.dims(s), &q[1..2]))
        && n.src.len() <= 7
        && [q, k, v].iter().all(|d| d.len() == 3)
        && same_dim(g, q[2], k[2])
        && same_dims(g, &k[..2], &v[..2])
        && heads(q)
            .zip(heads(k))
            .is_some_and(|(h, kv)| kv > 0 && h % kv == 0)
}

fn paged_attention(g: &Graph, n: &Node) -> bool {
    let of: Vec<&[Id]> = n.src.iter().map(|&s| g.dims(s)).collect();
    let [q, k, v, positions, _, table, ..] = of[..] else {
        return false;
    };
    let whole = |i: usize| g.scalar(n.src[i]).is_int();
    let fixed = |d: &[Id]| d.iter().all(|&d| g.int_value(d).is_some_and(|d| d > 0));
    n.dtype.scalar.is_float()
        && scores(&n.arg)
        && n.src[..3].iter().all(|&s| g.scalar(s).is_float())
        && [q.len(), k.len(), v.len(), table.len()] == [3, 4, 4, 2]
        && whole(3)
        && same_dims(g, positions, &q[..1])
        && is_dim(g, n.src[4])
        && whole(5)
        && same_dim(g, table[0], q[0])
        && [&k[1..], &v[1..], &table[1..], &q[1..]]
            .into_iter()
            .all(fixed)
        && same_dim(g, q[2], k[3])
        && same_dims(g, &k[..3], &v[..3])
        && g.int_value(q[1])
            .zip(g.int_value(k[2]))
            .is_some_and(|(h, kv)| h % kv == 0)
        && n.src
            .get(6)
            .is_none_or(|&window| g.int_value(window).is_some_and(|w| w >= 0))
        && n.src
            .get(7)
            .is_none_or(|&s| g.scalar(s).is_float() && same_dims(g, g.dims(s), &q[1..2]))
        && n.src.len() <= 8
}

fn scan(g: &Graph, n: &Node) -> bool {
    if !(5..=6).contains(&n.src.len()) {
        return false;
    }
    let dims: Vec<&[Id]> = n.src.iter().map(|&s| g.dims(s)).collect();
    let [state, q, k, v, gates, ..] = dims[..] else {
        return false;
    };
    matches!(n.arg, Arg::Int(0 | 1))
        && n.dtype.scalar.is_float()
        && n.src.iter().all(|&s| g[s].dtype == n.dtype)
        && state.len() == 3
        && state.iter().all(|&d| g.int_value(d).is_some_and(|d| d > 0))
        && q.len() == 3
        && v.len() == 3
        && same_dims(g, q, k)
        && same_dims(g, &q[1..], &[state[0], state[2]])
        && same_dims(g, v, &[q[0], state[0], state[1]])
        && dims[4..].iter().all(|d| same_dims(g, d, &q[..2]))
        && gates.len() == 2
}
