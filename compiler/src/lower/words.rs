//! Words: for a machine that computes with numbers of 32 bits by arithmetic alone, what others compute with narrower ones, in arithmetic of wider ones whose results are rounded or wrapped, and
//! exponentials and logarithms as polynomials. Narrow numbers are loaded, written, chosen and converted all the same.

mod bytes;
mod conversions;
mod functions;
mod made;

use super::code::{Code, Statement};
use super::rewriting::Rewriting;
use conversions::{cast, cast_in_words};
use gristmill_uop::{Arg, Graph, Id, Node, Op, ReduceOp, Scalar, Sources};
use made::made;

/// The body's statements in words.
pub fn words(g: &mut Graph, code: Code) -> Code {
    let mut r = Rewriting::new(g);
    code.statements.iter().for_each(|s| statement(&mut r, s));
    Code { statements: r.out, ..code }
}

/// Statements in words which have that value beside those that they define; and what other values are called then.
pub fn in_words(g: &mut Graph, statements: &[Statement], known: Id, values: &[Id]) -> (Vec<Statement>, Vec<Id>) {
    let mut r = Rewriting::new(g);
    r.knows(known);
    statements.iter().for_each(|s| statement(&mut r, s));
    let values = values.iter().map(|&v| r.value(v)).collect();
    (r.out, values)
}

/// A statement in words.
fn statement(r: &mut Rewriting, s: &Statement) {
    let id = match *s {
        Statement::Define(id) => id,
        Statement::Accumulate(acc, product) if r.g[product].op == Op::Dot4 => return added(r, acc, product),
        _ => return r.replaced(s),
    };
    let own = r.node(id);
    let new = value(r.g, own);
    r.define(new);
    if new != id {
        r.values.insert(id, new);
    }
}

/// A product of bytes that is added to a sum.
fn added(r: &mut Rewriting, acc: Id, product: Id) {
    let product = r.node(product);
    let n = r.g[product].clone();
    let (first, rest) = bytes::signed_product(r.g, &n);
    let sum = n.src[2];
    let product = made(r.g, Op::SignedDot4, Scalar::I32, &[first, n.src[1], sum]);
    r.define(first);
    r.push(Statement::Accumulate(r.value(acc), product));
    if let Some(rest) = rest {
        r.define(rest);
        let value = made(r.g, Op::Add, Scalar::I32, &[sum, rest]);
        r.push(Statement::Accumulate(r.value(acc), value));
    }
}

/// The type in which numbers of that one are computed with; none where it is their own.
fn wider(scalar: Scalar) -> Option<Scalar> {
    match scalar {
        Scalar::I8 | Scalar::I16 => Some(Scalar::I32),
        Scalar::U8 | Scalar::U16 => Some(Scalar::U32),
        Scalar::F16 | Scalar::BF16 => Some(Scalar::F32),
        _ => None,
    }
}

/// A value in words, of sources that are. No rule is tried: what is written is what is computed.
fn value(g: &mut Graph, id: Id) -> Id {
    let n = g[id].clone();
    let Some(&first) = n.src.first().filter(|_| n.dtype.lanes == 1) else { return id };
    let from = g.scalar(first);
    match n.op {
        Op::Cast => cast_in_words(g, first, from, n.dtype.scalar),
        Op::Exp | Op::Exp2 | Op::Log if from == Scalar::F32 => functions::of(g, n.op, first),
        Op::Table => bytes::entry(g, id),
        Op::Table4 => bytes::looked_up(g, &n),
        Op::Dot4 => {
            let (first, rest) = bytes::signed_product(g, &n);
            let product = made(g, Op::SignedDot4, Scalar::I32, &[first, n.src[1], n.src[2]]);
            rest.map_or(product, |rest| made(g, Op::Add, Scalar::I32, &[product, rest]))
        }
        op if from.is_half() && op.is_float_arithmetic() => in_wider(g, n, Scalar::F32),
        Op::Add | Op::Mul | Op::Shl => match wider(n.dtype.scalar) {
            Some(wide) => in_wider(g, n, wide),
            None => id,
        },
        _ => id,
    }
}

/// An operation in a wider type; a comparison's result stays as it is.
fn in_wider(g: &mut Graph, n: Node, wide: Scalar) -> Id {
    let own = n.dtype.scalar;
    let src: Sources = n.src.iter().map(|&s| if wider(g.scalar(s)).is_some() { cast(g, s, wide) } else { s }).collect();
    let result = if wider(own).is_some() { wide } else { own };
    let value = g.intern(Node { dtype: result.one(), src, ..n });
    let value = self::value(g, value);
    cast(g, value, own)
}

/// A sum of narrow numbers, or a maximum of halves, of such terms, in a wider type; none where its own will do, as for a maximum of whole numbers, which of none is the least of that type.
pub fn sum_in_words(g: &mut Graph, reduce: Id, terms: Id) -> Option<Id> {
    let n = g[reduce].clone();
    let own = n.dtype.scalar;
    let wraps = own.is_half() || matches!(n.arg, Arg::Reduce(ReduceOp::Add, _));
    let wide = wider(own).filter(|_| n.op == Op::Reduce && wraps)?;
    let mut src = n.src.clone();
    src[0] = g.cast(terms, wide);
    let sum = g.intern(Node { dtype: wide.one(), src, ..n });
    Some(g.cast(sum, g.scalar(reduce)))
}
