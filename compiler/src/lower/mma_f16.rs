//! Matrix products of halves: sums of products of two f16 values, added up in f32, in a nest that `map/fragment_tiling.rs` has laid out over warps.
//!
//! A warp multiplies 16 rows with 8 columns: four outputs beside one another, each the sum of two parts (`decompose/f16_split.rs`), or eight of one part. Lane
//! `4g + t` holds the sums of rows `g` and `g + 8` and of columns `2t` and `2t + 1`: of both parts of output `t`, whose sum it is, or of two
//! outputs. Its operands are words of two terms each: of rows `g` and `g + 8`, and of column `g`. Which terms a lane takes is free, as long as rows
//! and columns agree: neighbours, so that their loads are wide.

use crate::fragment::{LANES, ROWS, Sum, TERMS};
use crate::nest::{ranges_of_kind, replaced};
use gristmill_uop::{Arg, Graph, Id, Node, Op, RangeKind, ReduceOp, Scalar, Sources};
use rustc_hash::FxHashMap;
use smallvec::smallvec;

/// The ranges of a warp's tile: lanes, and the copies of each.
struct Tile {
    g: Id,
    t: Id,
    copies: Vec<Id>,
}

/// `value` with such sums as matrix products; `closed` are the ranges of its nest.
pub fn products(g: &mut Graph, value: Id, closed: &[Id]) -> Id {
    let Some(tile) = tile(g, closed) else { return value };
    replaced(g, value, |g, n| product(g, n, &tile))
}

/// The tile, if the nest has one: the last threads are 8 by 4.
fn tile(g: &Graph, closed: &[Id]) -> Option<Tile> {
    let (threads, copies) =
        (ranges_of_kind(g, closed, RangeKind::Vector), ranges_of_kind(g, closed, RangeKind::Upcast));
    let is = |r: Id, n: i64| g.int_value(g[r].src[0]) == Some(n);
    let &[.., group, t] = &threads[..] else { return None };
    (is(group, LANES) && is(t, ROWS / 4)).then_some(Tile { g: group, t, copies })
}

fn product(g: &mut Graph, id: Id, tile: &Tile) -> Option<Id> {
    let sum = Sum::of(g, id)?;
    // The terms of a step, which the lanes share, and the parts; what is left are loops.
    let unrolled = ranges_of_kind(g, &g[id].src[1..], RangeKind::Unroll);
    let free = |x: Id, r: Id| !g.free_ranges(x).contains(&r);
    let others: Vec<Id> = unrolled.iter().copied().filter(|&r| Some(r) != sum.part).collect();
    let &[term] = &others[..] else { return None };
    // The last copies are a lane's rows and, where parts are none, its columns.
    let (i, j) = match (sum.part, &tile.copies[..]) {
        (Some(part), &[.., i]) => (i, part),
        (None, &[.., i, j]) => (i, j),
        _ => return None,
    };
    let pairs = [i, j].iter().all(|&r| g.int_value(g[r].src[0]) == Some(2));
    let whole = free(sum.rows, tile.t) && free(sum.rows, j) && free(sum.columns, tile.g) && free(sum.columns, i);
    let terms = g.int_value(g[term].src[0])?;
    if !pairs || terms % TERMS != 0 || !whole {
        return None;
    }
    let two = g.int(2);
    let (half, odd) = (g.idiv(tile.g, two), g.modulo(tile.g, two));
    // Neighbours in memory are one load; of a stage lanes take a word each, and the next where four of them end.
    let (of_lane, apart) = if sum.staged_rows(g) { (2, TERMS / 2) } else { (terms / 4, 2) };
    let of_lane = g.int(of_lane);
    let lane = g.mul(tile.t, of_lane);
    let vector = Scalar::F32.one().with_lanes(4);
    let zero = g.constant(vector, 0.0);
    let mut all = None;
    for step in 0..terms / TERMS {
        let mut src = Sources::new();
        for word in [2 * step, 2 * step + 1] {
            let at = g.int(apart * word);
            let at = g.add(lane, at);
            for row in 0..2 {
                let map = FxHashMap::from_iter([(i, g.int(row))]);
                src.push(pair(g, sum.rows, term, at, &map));
            }
        }
        for word in [2 * step, 2 * step + 1] {
            let at = g.int(apart * word);
            let at = g.add(lane, at);
            src.push(pair(g, sum.columns, term, at, &FxHashMap::from_iter([(tile.t, half), (j, odd)])));
        }
        src.push(zero);
        let new = g.intern(Node { op: Op::MmaHalf, dtype: vector, src, arg: Arg::None });
        // Each product is added to the accumulator by itself.
        all = Some(match all {
            Some(all) => g.intern(Node { op: Op::Add, dtype: vector, src: smallvec![all, new], arg: Arg::None }),
            None => new,
        });
    }
    let loops: Sources = g[id].src[1..].iter().copied().filter(|r| !unrolled.contains(r)).collect();
    let src: Sources = all.into_iter().chain(loops).collect();
    let all = g.intern(Node { op: Op::Reduce, dtype: vector, src, arg: Arg::Reduce(ReduceOp::Add, smallvec![]) });
    let row = g.mul(i, two);
    let column = |g: &mut Graph, j: Id| {
        let at = g.add(row, j);
        g.intern(Node { op: Op::Part, dtype: Scalar::F32.one(), src: smallvec![all, at], arg: Arg::None })
    };
    if sum.part.is_none() {
        return Some(column(g, j));
    }
    let [a, b] = [0, 1].map(|j| {
        let j = g.int(j);
        column(g, j)
    });
    Some(g.add(a, b))
}

/// The word of the halves at terms `at` and the next.
fn pair(g: &mut Graph, value: Id, term: Id, at: Id, map: &FxHashMap<Id, Id>) -> Id {
    let one = g.int(1);
    let next = g.add(at, one);
    let [low, high] = [at, next].map(|k| {
        let mut map = map.clone();
        map.insert(term, k);
        g.substitute(value, &mut map)
    });
    if let Some(word) = neighbours(g, low, high) {
        return word;
    }
    let [low, high] = [low, high].map(|x| {
        let bits = g.bitcast(x, Scalar::U16);
        g.cast(bits, Scalar::U32)
    });
    let sixteen = g.int_of(Scalar::U32, 16);
    let high = g.shl(high, sixteen);
    g.or(low, high)
}

/// Two loads of halves that are a word in memory, as its load.
fn neighbours(g: &mut Graph, low: Id, high: Id) -> Option<Id> {
    let (a, b) = (g[low].clone(), g[high].clone());
    if a.op != Op::Load || b.op != Op::Load || a.src[0] != b.src[0] || g.unit_bytes(a.src[0]) != 2 {
        return None;
    }
    let (first, mut second) = (g.linear(a.src[1]), g.linear(b.src[1]));
    let aligned = std::iter::once(first.constant).chain(first.terms.iter().map(|t| t.1)).all(|c| c % 2 == 0);
    second.constant -= 1;
    (aligned && first == second).then(|| g.load(a.src[0], a.src[1], Scalar::U32))
}
