//! Operations on the bytes of words, by word operations: products of signed bytes, and lookup
//! tables packed into words.

use super::conversions::retyped;
use super::word_types::made;
use gristmill_uop::Scalar::{I32, U32};
use gristmill_uop::{Arg, Graph, Id, Node, Op};
use smallvec::smallvec;
use std::sync::Arc;

/// A word of four bytes that are 1.
const ONES: i64 = 0x0101_0101;

/// Rewrites a product of unsigned by signed bytes as a product of signed bytes. Returns the new
/// first factor, and a correction to add if the unsigned bytes may exceed 127.
pub fn signed_product(g: &mut Graph, n: &Node) -> (Id, Option<Id>) {
    let (a, b) = (n.src[0], n.src[1]);
    if matches!(n.arg, Arg::Int(most) if most <= i8::MAX.into()) {
        return (a, None);
    }
    // Subtracts 128 from each unsigned byte; the correction is 128 times the sum of the signed
    // bytes.
    let [signs, ones] = [128 * ONES, ONES].map(|v| g.int_of(U32, v));
    let [zero, by] = [0, 128].map(|v| g.int_of(I32, v));
    let first = made(g, Op::Xor, U32, &[a, signs]);
    let rest = made(g, Op::SignedDot4, I32, &[ones, b, zero]);
    (first, Some(made(g, Op::Mul, I32, &[rest, by])))
}

/// Returns the width in bits (8, 16 or 32) that holds all entries as signed integers.
fn bits(table: &[i32]) -> i64 {
    let fits = |bits: i64| {
        table
            .iter()
            .all(|&v| (-(1i64 << (bits - 1))..1i64 << (bits - 1)).contains(&v.into()))
    };
    [8, 16].into_iter().find(|&bits| fits(bits)).unwrap_or(32)
}

/// Returns a dot product of unsigned and signed bytes, plus a sum.
pub fn product(g: &mut Graph, n: &Node) -> Id {
    let (first, rest) = signed_product(g, n);
    let product = made(g, Op::SignedDot4, I32, &[first, n.src[1], n.src[2]]);
    rest.map_or(product, |rest| made(g, Op::Add, I32, &[product, rest]))
}

/// Returns the entries of a lookup table.
pub fn entries(n: &Node) -> Arc<[i32]> {
    let Arg::Ints(table) = &n.arg else {
        unreachable!("a table: {n:?}")
    };
    table.clone()
}

/// Looks up a table entry, with narrow entries packed side by side into words. If `fits` is false
/// the index is first masked to the table's size.
pub fn entry(g: &mut Graph, table: &[i32], at: Id, fits: bool) -> Id {
    let (bits, last) = (bits(table), table.len() as i64 - 1);
    let each = 32 / bits;
    let look_up = |g: &mut Graph, at: Id, words: Vec<i32>| {
        let (dtype, arg) = (I32.one(), Arg::Ints(words.into()));
        g.intern(Node {
            op: Op::Table,
            dtype,
            src: smallvec![at],
            arg,
        })
    };
    if each == 1 {
        return look_up(g, at, table.to_vec());
    }
    let mask = u32::MAX >> (32 - bits);
    let word = |of: &[i32]| {
        of.iter()
            .rev()
            .fold(0u64, |word, &v| word << bits | u64::from(v as u32 & mask)) as u32 as i32
    };
    let words: Vec<i32> = table.chunks(each as usize).map(word).collect();
    let [places, within, size, left, last_place] = [
        each.ilog2().into(),
        each - 1,
        bits.ilog2().into(),
        32 - bits,
        last,
    ]
    .map(|v| g.int_of(U32, v));
    let at = retyped(g, at, U32);
    let at = if fits {
        at
    } else {
        made(g, Op::And, U32, &[at, last_place])
    };
    let place = made(g, Op::Shr, U32, &[at, places]);
    let word = look_up(g, place, words);
    let by = made(g, Op::And, U32, &[at, within]);
    let by = made(g, Op::Shl, U32, &[by, size]);
    // Shift up to the highest bits, then down with sign extension.
    let up = made(g, Op::Xor, U32, &[by, left]);
    let high = made(g, Op::Shl, I32, &[word, up]);
    made(g, Op::Shr, I32, &[high, left])
}

/// Looks up four entries of a 16-byte table, by the low four bits of a word's bytes.
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
