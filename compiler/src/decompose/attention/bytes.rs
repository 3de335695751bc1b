//! Scores over a cache of bytes as sums of products of whole numbers. Queries are encoded in eight bits by groups as large as the cache's. The chunk's
//! tile is a stage of words, four elements of a position, with positions side by side as lanes of a vector, so that a vector's scales are
//! known whole and nothing is added across lanes:
//!
//! ```text
//! codes  i8  [chunks, chunk/lanes, depth/4, lanes, 4]   or u8, code + 128, where one side of a product of bytes has to be unsigned
//! scales f32 [chunks, depth/group, chunk]
//! ```
//!
//! One copy of a tile serves all heads: for Youtu's 16, 8 us beside 25 of products (72 of floats), with AVX2.

use super::tiled::AttentionShape;
use crate::decompose::int8::integers;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op, Scalar};

/// Half of what a byte can be: codes from 0 up have it as their zero.
const ZERO: i64 = 128;

/// A cache of bytes.
pub(super) struct QuantisedRows {
    /// i8 `[rows, depth]`.
    codes: Id,
    /// f32 `[rows, depth/group]`.
    scales: Id,
    group: i64,
    /// Positions side by side.
    lanes: i64,
    /// Does the machine multiply signed bytes?
    signed: bool,
}

/// The bytes that `k [rows, 1, depth]` is, if their products with `q [tokens, heads, depth]` are to be of whole numbers, in chunks of `chunk` positions.
pub(super) fn rows(g: &Graph, q: Id, k: Id, chunk: i64, target: &Target) -> Option<QuantisedRows> {
    if target.machine.kind != MachineKind::Cpu
        || !integers(target)
        || g.scalar(q) != Scalar::F32
        || g[k].op != Op::Reshape
    {
        return None;
    }
    let (codes, scales, group) = g.decoded(g[k].src[0])?;
    let &[_, heads, depth] = g.dims(k) else { return None };
    let one_head = g.int_value(heads) == Some(1) && g.dims(codes).len() == 2 && g.dims(codes)[1] == depth;
    let most = target.machine.lanes as i64;
    let lanes = [most, most / 2, most / 4].into_iter().find(|&l| l >= 4 && chunk % l == 0)?;
    (one_head && group % 4 == 0 && g.scalar(codes) == Scalar::I8).then_some(QuantisedRows {
        codes,
        scales,
        group,
        lanes,
        signed: target.machine.signed_bytes,
    })
}

/// Queries as they are multiplied with such rows, and their codes.
pub(super) fn queries(g: &mut Graph, q: Id, rows: &QuantisedRows) -> (Id, Id) {
    let (codes, scales) = g.encode_rows(q, rows.group);
    (g.decode_rows(codes, scales, rows.group), codes)
}

/// The keys at positions `at [chunks, chunk]`, `[chunks, tokens, heads, chunk, depth]`, and the two stages they are read from.
pub(super) fn keys(g: &mut Graph, rows: &QuantisedRows, at: Id, shape: &AttentionShape) -> (Id, [Id; 2]) {
    let &AttentionShape { chunks, tokens, heads, chunk, .. } = shape;
    let depth = g.shape(rows.codes)[1];
    let (groups, words) = (g.max_of(chunk) / rows.lanes, g.max_of(depth) / 4);
    let [one, four, groups, lanes, words] = [1, 4, groups, rows.lanes, words].map(|n| g.int(n));
    let tile = g.gather(rows.codes, at);
    let tile = g.reshape(tile, &[chunks, groups, lanes, words, four]);
    let tile = g.permute(tile, &[0, 1, 3, 2, 4]);
    let tile = match rows.signed {
        true => tile,
        false => {
            let turn = g.int_of(Scalar::I8, -ZERO);
            let tile = g.xor(tile, turn);
            g.bitcast(tile, Scalar::U8)
        }
    };
    // Back to rows; both steps leave axes alone that the other one changes.
    let codes = g.permute(tile, &[0, 1, 3, 2, 4]);
    let codes = g.reshape(codes, &[chunks, chunk, words, four]);
    let codes = g.reshape(codes, &[chunks, chunk, depth]);
    let codes = match rows.signed {
        true => codes,
        false => {
            let codes = g.cast(codes, Scalar::I32);
            let zero = g.int_of(Scalar::I32, -ZERO);
            g.add(codes, zero)
        }
    };
    let scales = g.gather(rows.scales, at);
    let stage = g.permute(scales, &[0, 2, 1]);
    let scales = g.permute(stage, &[0, 2, 1]);
    let keys = g.decode_rows(codes, scales, rows.group);
    let keys = g.reshape(keys, &[chunks, one, one, chunk, depth]);
    (g.expand(keys, &[chunks, tokens, heads, chunk, depth]), [tile, stage])
}
