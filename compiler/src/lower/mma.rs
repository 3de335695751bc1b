//! Matrix products of a warp: a sum of `DOT4`s over the words of a group of elements, where the workgroup's shape (`schedule/workgroup.rs`) has
//! laid rows and tokens out over the warp as the instruction wants them.
//!
//! A warp multiplies 16 rows with 8 tokens: lane `4g + t` holds the sums of rows `g + 8i` and tokens `2t + j`, for i and j of 0 and 1. Its operands
//! are words of rows `g` and `g + 8`, and words of token `g`. Which words is free, as long as rows and tokens agree: neighbours, so that they
//! are one load.

use crate::nest::{ranges_of_kind, replaced};
use gristmill_uop::{Arg, Graph, Id, Node, Op, RangeKind, ReduceOp, Sources};
use rustc_hash::FxHashMap;
use smallvec::smallvec;

/// The ranges of a warp's tile.
struct Tile {
    g: Id,
    t: Id,
    i: Id,
    j: Id,
}

/// `value` with such sums as matrix products; `closed` are the ranges of its nest.
pub fn products(g: &mut Graph, value: Id, closed: &[Id]) -> Id {
    let Some(tile) = tile(g, closed) else { return value };
    replaced(g, value, |g, n| product(g, n, &tile))
}

/// The tile, if the nest has one: the last threads are 8 by 4, the last copies 2 by 2.
fn tile(g: &Graph, closed: &[Id]) -> Option<Tile> {
    let is = |r: Id, n: i64| g.int_value(g[r].src[0]) == Some(n);
    let (threads, copies) =
        (ranges_of_kind(g, closed, RangeKind::Vector), ranges_of_kind(g, closed, RangeKind::Upcast));
    let (&[.., group, t], &[.., i, j]) = (&threads[..], &copies[..]) else { return None };
    (is(group, 8) && is(t, 4) && is(i, 2) && is(j, 2)).then_some(Tile { g: group, t, i, j })
}

fn product(g: &mut Graph, id: Id, tile: &Tile) -> Option<Id> {
    let n = &g[id];
    if n.op != Op::Reduce || !matches!(n.arg, Arg::Reduce(ReduceOp::Add, _)) || n.src.len() != 2 {
        return None;
    }
    let (dot, word) = (g[n.src[0]].clone(), n.src[1]);
    let words = g.int_value(g[word].src[0])?;
    if !matches!(dot.op, Op::Dot4 | Op::SignedDot4) || g.int_value(dot.src[2]) != Some(0) || ![4, 8].contains(&words) {
        return None;
    }
    let (a, b) = (dot.src[0], dot.src[1]);
    // Its argument says how large the rows' bytes are: none if they are signed.
    let free = |x: Id, r: Id| !g.free_ranges(x).contains(&r);
    if !(free(a, tile.t) && free(a, tile.j) && free(b, tile.g) && free(b, tile.i)) {
        return None;
    }
    let two = g.int(2);
    let (half, odd) = (g.idiv(tile.g, two), g.modulo(tile.g, two));
    let of_lane = |g: &mut Graph, h: i64| {
        if words == 4 {
            return tile.t;
        }
        let h = g.int(h);
        let first = g.mul(tile.t, two);
        g.add(first, h)
    };
    let mut src = Sources::new();
    for h in 0..words / 4 {
        for i in 0..2 {
            let (w, i) = (of_lane(g, h), g.int(i));
            src.push(g.substitute(a, &mut FxHashMap::from_iter([(word, w), (tile.i, i)])));
        }
    }
    for h in 0..words / 4 {
        let w = of_lane(g, h);
        src.push(g.substitute(b, &mut FxHashMap::from_iter([(word, w), (tile.t, half), (tile.j, odd)])));
    }
    let dtype = g[id].dtype;
    let all = g.intern(Node { op: Op::Mma, dtype: dtype.with_lanes(4), src, arg: dot.arg });
    let row = g.mul(tile.i, two);
    let at = g.add(row, tile.j);
    Some(g.intern(Node { op: Op::Part, dtype, src: smallvec![all, at], arg: Arg::None }))
}
