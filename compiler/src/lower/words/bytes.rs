//! Bytes of words by what words alone have: products of signed ones, and tables of words.

use super::conversions::cast;
use super::made::made;
use gristmill_uop::Scalar::{I32, U32};
use gristmill_uop::{Arg, Graph, Id, Node, Op};
use smallvec::smallvec;

/// A word of four bytes that are 1.
const ONES: i64 = 0x0101_0101;

/// A product of unsigned bytes and signed ones as one of signed bytes: its first factor, and what is added besides, where the largest byte is not the same with a sign.
pub fn signed_product(g: &mut Graph, n: &Node) -> (Id, Option<Id>) {
    let (a, b) = (n.src[0], n.src[1]);
    if matches!(n.arg, Arg::Int(most) if most <= i8::MAX.into()) {
        return (a, None);
    }
    // Less 128 each, which are added to the sum times the signed bytes.
    let [signs, ones] = [128 * ONES, ONES].map(|v| g.int_of(U32, v));
    let [zero, by] = [0, 128].map(|v| g.int_of(I32, v));
    let first = made(g, Op::Xor, U32, &[a, signs]);
    let rest = made(g, Op::SignedDot4, I32, &[ones, b, zero]);
    (first, Some(made(g, Op::Mul, I32, &[rest, by])))
}

/// Bits of a table's entries, with a sign.
fn bits(table: &[i32]) -> i64 {
    let fits = |bits: i64| table.iter().all(|&v| (-(1i64 << (bits - 1))..1i64 << (bits - 1)).contains(&v.into()));
    [8, 16].into_iter().find(|&bits| fits(bits)).unwrap_or(32)
}

/// An entry of a table as a part of one of words, in which narrow entries lie side by side.
pub fn entry(g: &mut Graph, id: Id) -> Id {
    let n = g[id].clone();
    let Arg::Ints(table) = &n.arg else { unreachable!("a table: {n:?}") };
    let (bits, last) = (bits(table), table.len() as i64 - 1);
    let each = 32 / bits;
    if each == 1 {
        return id;
    }
    let mask = u32::MAX >> (32 - bits);
    let word =
        |of: &[i32]| of.iter().rev().fold(0u64, |word, &v| word << bits | u64::from(v as u32 & mask)) as u32 as i32;
    let words: Vec<i32> = table.chunks(each as usize).map(word).collect();
    let [places, within, size, left, last_place] =
        [each.ilog2().into(), each - 1, bits.ilog2().into(), 32 - bits, last].map(|v| g.int_of(U32, v));
    let at = cast(g, n.src[0], U32);
    // Of an index into 16 entries only the low bits count.
    let at = if g.within(at, 0, last) { at } else { made(g, Op::And, U32, &[at, last_place]) };
    let place = made(g, Op::Shr, U32, &[at, places]);
    let word = g.intern(Node { src: smallvec![place], dtype: I32.one(), arg: Arg::Ints(words.into()), ..n });
    let by = made(g, Op::And, U32, &[at, within]);
    let by = made(g, Op::Shl, U32, &[by, size]);
    // Up to the highest bits, and down with the sign.
    let up = made(g, Op::Xor, U32, &[by, left]);
    let high = made(g, Op::Shl, I32, &[word, up]);
    let value = made(g, Op::Shr, I32, &[high, left]);
    if n.dtype.scalar == I32 { value } else { made(g, Op::Cast, n.dtype.scalar, &[value]) }
}

/// Entries of a table of 16 bytes, by the low bits of each of a word's.
pub fn looked_up(g: &mut Graph, n: &Node) -> Id {
    let Arg::Ints(table) = &n.arg else { unreachable!("a table: {n:?}") };
    let entries: Vec<i32> = table.iter().map(|&v| i32::from(v as i8)).collect();
    let entry = |g: &mut Graph, by: i64| {
        let [by, low, byte] = [by, 15, 255].map(|v| g.int_of(U32, v));
        let at = made(g, Op::Shr, U32, &[n.src[0], by]);
        let at = made(g, Op::And, U32, &[at, low]);
        let (dtype, arg) = (I32.one(), Arg::Ints(entries.clone().into()));
        let looked_up = g.intern(Node { op: Op::Table, dtype, src: smallvec![at], arg });
        let entry = self::entry(g, looked_up);
        let entry = made(g, Op::Cast, U32, &[entry]);
        let entry = made(g, Op::And, U32, &[entry, byte]);
        made(g, Op::Shl, U32, &[entry, by])
    };
    let first = entry(g, 0);
    [8, 16, 24].into_iter().fold(first, |word, by| {
        let entry = entry(g, by);
        made(g, Op::Or, U32, &[word, entry])
    })
}
