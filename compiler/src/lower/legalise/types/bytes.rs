//! Bytes of words by what words alone have: products of signed ones, and tables of words.

use super::conversions::retyped;
use super::word_types::made;
use gristmill_uop::Scalar::{I32, U32};
use gristmill_uop::{Arg, Graph, Id, Node, Op};
use smallvec::smallvec;
use std::sync::Arc;

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

/// A product of unsigned bytes and signed ones, plus a sum.
pub fn product(g: &mut Graph, n: &Node) -> Id {
    let (first, rest) = signed_product(g, n);
    let product = made(g, Op::SignedDot4, I32, &[first, n.src[1], n.src[2]]);
    rest.map_or(product, |rest| made(g, Op::Add, I32, &[product, rest]))
}

/// The entries of a table.
pub fn entries(n: &Node) -> Arc<[i32]> {
    let Arg::Ints(table) = &n.arg else { unreachable!("a table: {n:?}") };
    table.clone()
}

/// An entry of a table as a part of one of words, in which narrow entries lie side by side. Of an index into 16 entries that may be beyond them only the low bits count.
pub fn entry(g: &mut Graph, table: &[i32], at: Id, fits: bool) -> Id {
    let (bits, last) = (bits(table), table.len() as i64 - 1);
    let each = 32 / bits;
    let look_up = |g: &mut Graph, at: Id, words: Vec<i32>| {
        let (dtype, arg) = (I32.one(), Arg::Ints(words.into()));
        g.intern(Node { op: Op::Table, dtype, src: smallvec![at], arg })
    };
    if each == 1 {
        return look_up(g, at, table.to_vec());
    }
    let mask = u32::MAX >> (32 - bits);
    let word =
        |of: &[i32]| of.iter().rev().fold(0u64, |word, &v| word << bits | u64::from(v as u32 & mask)) as u32 as i32;
    let words: Vec<i32> = table.chunks(each as usize).map(word).collect();
    let [places, within, size, left, last_place] =
        [each.ilog2().into(), each - 1, bits.ilog2().into(), 32 - bits, last].map(|v| g.int_of(U32, v));
    let at = retyped(g, at, U32);
    let at = if fits { at } else { made(g, Op::And, U32, &[at, last_place]) };
    let place = made(g, Op::Shr, U32, &[at, places]);
    let word = look_up(g, place, words);
    let by = made(g, Op::And, U32, &[at, within]);
    let by = made(g, Op::Shl, U32, &[by, size]);
    // Up to the highest bits, and down with the sign.
    let up = made(g, Op::Xor, U32, &[by, left]);
    let high = made(g, Op::Shl, I32, &[word, up]);
    made(g, Op::Shr, I32, &[high, left])
}

/// Entries of a table of 16 bytes, by the low bits of each of a word's.
pub fn looked_up(g: &mut Graph, n: &Node) -> Id {
    let entries: Vec<i32> = entries(n).iter().map(|&v| i32::from(v as i8)).collect();
    let entry = |g: &mut Graph, by: i64| {
        let [by, low, byte] = [by, 15, 255].map(|v| g.int_of(U32, v));
        let at = made(g, Op::Shr, U32, &[n.src[0], by]);
        let at = made(g, Op::And, U32, &[at, low]);
        let entry = self::entry(g, &entries, at, true);
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
