//! Lane lifting: evaluates an expression of a byte for four adjacent bytes as one expression of
//! a 32-bit word.
//!
//! A shift of bytes becomes a shift of the word and a mask, because bits
//! cross into neighbouring bytes.

use crate::dtype::Scalar;
use crate::graph::Graph;
use crate::id::Id;
use crate::node::{Arg, Node};
use crate::op::Op;
use rustc_hash::FxHashMap;

/// Builds the word with byte number `i` equal to `x` (between −128 and 255) at value `i` of the
/// range `byte`, of four.
pub fn word(g: &mut Graph, x: Id, byte: Id) -> Id {
    match bits(g, x, byte, 255) {
        Some(w) => w,
        None => packed(g, x, byte),
    }
}

/// Builds a word of signed bytes `(code + zero) << shift`; returns the word and the shift.
///
/// Byte number `i` has the value at `byte = i`; `zero` is a constant.
/// Returns `None` if `x` has another form.
///
/// If the zero point is half the range of a b-bit code, the code is shifted to the top of its byte
/// and one XOR flips the sign bit. Otherwise there is no shift, and one subtraction on all bytes
/// suffices, with the top bits absorbing the borrow.
pub fn signed_word(g: &mut Graph, x: Id, byte: Id) -> Option<(Id, i64)> {
    let n = g[x].clone();
    let zero = g.int_value(*n.src.get(1)?).filter(|_| n.op == Op::Add)?;
    let code = n.src[0];
    let high = each(g, 128);
    if let Some(shift) = (0..8).find(|s| zero << s == -128)
        && g.within(code, 0, (256 >> shift) - 1)
    {
        let by = g.int_of(g.scalar(code), shift);
        let code = g.shl(code, by);
        let w = bits(g, code, byte, 255)?;
        return Some((g.xor(w, high), shift));
    }
    if !g.within(code, 0, 127) || !(-128..=0).contains(&zero) {
        return None;
    }
    let w = bits(g, code, byte, 255)?;
    let w = g.or(w, high);
    // (x | 128) − |zero| does not borrow; written as adding the negated word modulo 2^32.
    let minus = g.int_of(Scalar::U32, (-((-zero) * 0x0101_0101)).rem_euclid(1 << 32));
    let w = g.add(w, minus);
    Some((g.xor(w, high), 0))
}

/// Replicates `v` into each of the four bytes.
fn each(g: &mut Graph, v: i64) -> Id {
    g.int_of(Scalar::U32, (v & 255) * 0x0101_0101)
}

fn at(g: &mut Graph, x: Id, byte: Id, i: i64) -> Id {
    let i = g.int(i);
    g.substitute(x, &mut FxHashMap::from_iter([(byte, i)]))
}

/// Packs byte by byte: always possible.
fn packed(g: &mut Graph, x: Id, byte: Id) -> Id {
    let low = g.int_of(Scalar::U32, 255);
    let mut w = g.int_of(Scalar::U32, 0);
    for i in 0..4 {
        let one = at(g, x, byte, i);
        let one = g.cast(one, Scalar::U32);
        let one = g.and(one, low);
        let by = g.int_of(Scalar::U32, 8 * i);
        let one = g.shl(one, by);
        w = g.or(w, one);
    }
    w
}

/// Builds a word that agrees with `x` in the bits of `mask` of each byte;
/// other bits are unspecified.
fn bits(g: &mut Graph, x: Id, byte: Id, mask: i64) -> Option<Id> {
    let n = g[x].clone();
    if let Some(v) = g.int_value(x) {
        return Some(each(g, v));
    }
    if !g.free_ranges(x).contains(&byte) {
        return Some(repeated(g, x));
    }
    match n.op {
        Op::Cast if g.scalar(n.src[0]).is_int() => bits(g, n.src[0], byte, mask),
        Op::Load | Op::Index if n.dtype.scalar.bytes() == 1 => neighbours(g, &n, byte),
        Op::And => {
            let keep = g.int_value(n.src[1])?;
            let w = bits(g, n.src[0], byte, mask & keep)?;
            Some(if mask & !keep == 0 {
                w
            } else {
                only(g, w, keep)
            })
        }
        Op::Or => {
            let (a, b) = (
                bits(g, n.src[0], byte, mask)?,
                bits(g, n.src[1], byte, mask)?,
            );
            Some(g.or(a, b))
        }
        Op::Xor => {
            let (a, b) = (
                bits(g, n.src[0], byte, mask)?,
                bits(g, n.src[1], byte, mask)?,
            );
            Some(g.xor(a, b))
        }
        Op::Shr if !g.free_ranges(n.src[1]).contains(&byte) && g.within(n.src[0], 0, 255) => {
            shifted_down(g, &n, byte, mask)
        }
        Op::Shl => {
            let by = g.int_value(n.src[1]).filter(|s| (0..8).contains(s))?;
            let w = bits(g, n.src[0], byte, mask >> by)?;
            let w = only(g, w, mask >> by);
            let by = g.int_of(Scalar::U32, by);
            Some(g.shl(w, by))
        }
        Op::Table => {
            let Arg::Ints(t) = &n.arg else { return None };
            if t.len() > 16 || !t.iter().all(|v| (0..256).contains(v)) || !g.within(n.src[0], 0, 15)
            {
                return None;
            }
            let mut t = t.to_vec();
            t.resize(16, 0);
            let w = bits(g, n.src[0], byte, 255)?;
            Some(g.table4(w, &t))
        }
        _ => None,
    }
}

/// Keeps exactly these bits of each byte of a word and clears the others.
fn only(g: &mut Graph, word: Id, keep: i64) -> Id {
    if keep & 255 == 255 {
        return word;
    }
    let keep = each(g, keep);
    g.and(word, keep)
}

/// Replicates the low byte of a value into all bytes of a word.
fn repeated(g: &mut Graph, x: Id) -> Id {
    let w = g.cast(x, Scalar::U32);
    let low = g.int_of(Scalar::U32, 255);
    let w = g.and(w, low);
    let ones = g.int_of(Scalar::U32, 0x0101_0101);
    g.mul(w, ones)
}

/// Loads four adjacent bytes as one word.
fn neighbours(g: &mut Graph, n: &Node, byte: Id) -> Option<Id> {
    let (&last, front) = n.src.split_last()?;
    if g.linear(last).coefficient(byte) != 1 {
        return None;
    }
    let first = at(g, last, byte, 0);
    if n.op == Op::Load {
        let rest_free = !g.free_ranges(first).contains(&byte);
        return rest_free.then(|| g.load(n.src[0], first, Scalar::U32));
    }
    // A placeholder from kernel construction: elements along its last axis are adjacent.
    let straight = !front[1..].iter().any(|&i| g.free_ranges(i).contains(&byte));
    let mut src = n.src.clone();
    *src.last_mut()? = first;
    straight.then(|| {
        g.intern(Node {
            op: Op::Index,
            dtype: Scalar::U32.one(),
            src,
            arg: Arg::None,
        })
    })
}

/// Shifts bytes right by less than eight.
fn shifted_down(g: &mut Graph, n: &Node, byte: Id, mask: i64) -> Option<Id> {
    let (lo, hi) = g.bounds(n.src[1]).filter(|b| b.0 >= 0 && b.1 < 8)?;
    let needed = (lo..=hi).fold(0, |m, s| m | mask << s) & 255;
    let w = bits(g, n.src[0], byte, needed)?;
    let by = g.cast(n.src[1], Scalar::U32);
    let w = g.shr(w, by);
    match mask << hi <= 255 {
        true => Some(w),
        // Clears bits shifted in from the neighbouring byte.
        false if lo == hi => Some(only(g, w, 255 >> hi)),
        false => None,
    }
}
