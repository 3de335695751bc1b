//! Lowers sums of `Dot4` over the words of a group of elements to int8 MMA operations.
//!
//! `kernel/workgroup.rs` has laid rows and tokens out over the warp as an MMA fragment. The
//! assignment of words to lanes is free as long as rows and tokens agree; neighbours are chosen, so
//! that they are one load.

use crate::ir::mma::lane_tile::{LaneTile, Side};
use crate::ir::nest::replaced;
use gristmill_uop::fragment::Fragment;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Node, Op, ReduceOp, Scalar, Sources};
use smallvec::smallvec;

const BYTES: i64 = 4;

/// Replaces such sums in `value` by MMA operations; `closed` are the ranges of its nest.
pub fn products(g: &mut Graph, value: Id, closed: &[Id], target: &Target) -> Id {
    replaced(g, value, |g, n| product(g, n, closed, target))
}

fn product(g: &mut Graph, id: Id, closed: &[Id], target: &Target) -> Option<Id> {
    let n = &g[id];
    if n.op != Op::Reduce || !matches!(n.arg, Arg::Reduce(ReduceOp::Add, _)) || n.src.len() != 2 {
        return None;
    }
    let (dot, word) = (g[n.src[0]].clone(), n.src[1]);
    let words = g.int_value(g[word].src[0])?;
    if !matches!(dot.op, Op::Dot4 | Op::SignedDot4) || g.int_value(dot.src[2]) != Some(0) {
        return None;
    }
    let of = fragment(target, BYTES * words)?;
    let tile = LaneTile::from_ranges(g, of, closed, None)?;
    let operands = [(Side::First, dot.src[0]), (Side::Second, dot.src[1])];
    if !tile.fits(g, dot.src[0], dot.src[1]) {
        return None;
    }
    let mut src = Sources::new();
    for (side, value) in operands {
        let (lane, each) = (tile.part(side), g.int(tile.words(side)));
        for mut register in tile.operand(g, side) {
            let (first, next) = (g.mul(lane, each), g.int(register.word));
            register.at.insert(word, g.add(first, next));
            src.push(g.substitute(value, &mut register.at));
        }
    }
    // The argument is the largest unsigned byte of the rows; none if they are signed.
    let dtype = g[id].dtype;
    let sums = dtype.with_lanes(of.sums.registers() as u16);
    let all = g.intern(Node {
        op: Op::Mma,
        dtype: sums,
        src,
        arg: dot.arg,
    });
    let at = tile.sum(g);
    Some(g.intern(Node {
        op: Op::Part,
        dtype,
        src: smallvec![all, at],
        arg: Arg::None,
    }))
}

/// Returns the machine's int8 fragment with this many terms.
fn fragment(target: &Target, terms: i64) -> Option<&'static Fragment> {
    let mut all = target
        .machine
        .fragments
        .iter()
        .filter(|f| f.operand == Scalar::I8);
    all.find(|f| f.terms == terms && f.first.lanes() > 1)
}
