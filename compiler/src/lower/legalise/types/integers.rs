//! Integer and boolean operations: in 32 bits if all operands and the result fit, in 64 bits
//! otherwise; narrow types wrap.

use super::conversions::{retyped, wrapped};
use super::word_types::made;
use super::word_types::type_of;
use gristmill_uop::Scalar::{Bool, I32, I64};
use gristmill_uop::{Graph, Id, Node, Op, Sources};

/// Returns the operation of a node on legalised sources.
pub fn integer(g: &mut Graph, id: Id, mut src: Sources) -> Id {
    let (n, to) = (g[id].clone(), type_of(g, id));
    // Operands of one type; excludes the condition of a select and the distance of a shift.
    let (operands, of) = match n.op {
        Op::Where => (1..3, n.src[1]),
        Op::Shl | Op::Shr => (0..1, n.src[0]),
        Op::Load | Op::Fold => {
            return g.intern(Node {
                src,
                dtype: to.one(),
                ..n
            });
        }
        _ => (0..src.len(), n.src[0]),
    };
    if g.scalar(of) == Bool {
        return of_truths(g, &Node { src, ..n });
    }
    let mut wide = to;
    if g.scalar(of) == I64 {
        let long = to == I64 || src[operands.clone()].iter().any(|&s| g.scalar(s) == I64);
        wide = if long { I64 } else { I32 };
        src[operands]
            .iter_mut()
            .for_each(|s| *s = retyped(g, *s, wide));
    }
    let dtype = if n.dtype.scalar == Bool { Bool } else { wide }.one();
    let value = match n.op {
        Op::IDiv | Op::Mod if g.bounds(of).is_none_or(|b| b.0 < 0) => {
            rounded_down(g, n.op, [src[0], src[1]])
        }
        _ => g.intern(Node {
            src,
            dtype,
            ..n.clone()
        }),
    };
    match n.op {
        Op::Add | Op::Mul | Op::Shl if n.dtype.scalar != I64 => wrapped(g, value, n.dtype.scalar),
        _ => retyped(g, value, to),
    }
}

/// Maps arithmetic on booleans to bit operations.
pub fn of_truths(g: &mut Graph, n: &Node) -> Id {
    let src = &n.src;
    let op = match n.op {
        Op::Add | Op::Max => Op::Or,
        Op::Mul | Op::Min => Op::And,
        Op::Xor | Op::Lt => {
            let no = g.int_of(Bool, 0);
            let not = |g: &mut Graph, x: Id| made(g, Op::Eq, Bool, &[x, no]);
            if n.op == Op::Lt {
                let first = not(g, src[0]);
                return made(g, Op::And, Bool, &[first, src[1]]);
            }
            let same = made(g, Op::Eq, Bool, src);
            return not(g, same);
        }
        op => op,
    };
    g.intern(Node { op, ..n.clone() })
}

/// Returns the quotient rounded down (floor), or its remainder, of `a` by a positive `b`. For a
/// negative `a` it computes with `-1 - a` and mirrors the result.
fn rounded_down(g: &mut Graph, op: Op, [a, b]: [Id; 2]) -> Id {
    let scalar = g.scalar(a);
    let [zero, minus] = [0, -1].map(|v| g.int_of(scalar, v));
    let less = |g: &mut Graph, from: Id, x: Id| {
        let x = made(g, Op::Mul, scalar, &[x, minus]);
        made(g, Op::Add, scalar, &[x, from])
    };
    let turned = less(g, minus, a);
    let turned = made(g, Op::Max, scalar, &[a, turned]);
    let found = made(g, op, scalar, &[turned, b]);
    let last = match (op, g.int_value(b)) {
        (Op::IDiv, _) => minus,
        (_, Some(b)) => g.int_of(scalar, b - 1),
        _ => made(g, Op::Add, scalar, &[b, minus]),
    };
    let (negative, other) = (made(g, Op::Lt, Bool, &[a, zero]), less(g, last, found));
    made(g, Op::Where, scalar, &[negative, other, found])
}
