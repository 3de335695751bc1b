//! Attention scores over an int8 KV cache, computed as integer dot products.
//!
//! Queries are quantised to int8 in groups of the cache's group size. The chunk's tile is staged as
//! words of four elements of a position, with adjacent positions as the lanes of a vector. Each
//! lane then has its own scale and sum, and no reduction across lanes is needed:
//!
//! ```text
//! codes  i8  [chunks, chunk/lanes, depth/4, lanes, 4]   or u8, code + 128, if the byte dot
//!                                                       product needs an unsigned operand
//! scales f32 [chunks, depth/group, chunk]
//! ```
//!
//! One copy of a tile serves all heads. For Youtu's 16 heads with AVX2 the copy takes 8 us and the
//! products 25 us (72 us in f32).

use super::tiled::AttentionShape;
use crate::decompose::int8::integers;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op, Scalar};

/// Zero point of unsigned codes: half the range of a byte.
const ZERO: i64 = 128;

/// An int8 KV cache: codes with a scale per group.
pub(super) struct QuantisedRows {
    /// i8 codes, `[rows, depth]`.
    codes: Id,
    /// f32 scales, `[rows, depth/group]`.
    scales: Id,
    group: i64,
    /// Adjacent positions that a staged word vector holds.
    lanes: i64,
    /// Whether the machine's byte dot product takes signed operands on both sides.
    signed: bool,
}

/// Returns the quantised rows of `k [rows, 1, depth]` if scores can be integer dot products.
///
/// That needs a CPU with byte dot products, f32 queries `q [tokens, heads, depth]`, one KV head,
/// groups of a multiple of 4 elements, and a vector length that divides `chunk`.
pub(super) fn rows(g: &Graph, q: Id, k: Id, chunk: i64, target: &Target) -> Option<QuantisedRows> {
    if target.machine.kind != MachineKind::Cpu
        || !integers(target)
        || g.scalar(q) != Scalar::F32
        || g[k].op != Op::Reshape
    {
        return None;
    }
    let (codes, scales, group) = g.decoded(g[k].src[0])?;
    let &[_, heads, depth] = g.dims(k) else {
        return None;
    };
    let one_head =
        g.int_value(heads) == Some(1) && g.dims(codes).len() == 2 && g.dims(codes)[1] == depth;
    let most = target.machine.lanes as i64;
    let lanes = [most, most / 2, most / 4]
        .into_iter()
        .find(|&l| l >= 4 && chunk % l == 0)?;
    (one_head && group % 4 == 0 && g.scalar(codes) == Scalar::I8).then_some(QuantisedRows {
        codes,
        scales,
        group,
        lanes,
        signed: target.machine.signed_bytes,
    })
}

/// Returns the queries after int8 quantisation and dequantisation, and their codes.
pub(super) fn queries(g: &mut Graph, q: Id, rows: &QuantisedRows) -> (Id, Id) {
    let (codes, scales) = g.encode_rows(q, rows.group);
    (g.decode_rows(codes, scales, rows.group), codes)
}

/// Returns the keys at positions `at [chunks, chunk]` and their two stages (codes, scales).
///
/// The keys have shape `[chunks, tokens, heads, chunk, depth]`.
pub(super) fn keys(
    g: &mut Graph,
    rows: &QuantisedRows,
    at: Id,
    shape: &AttentionShape,
) -> (Id, [Id; 2]) {
    let &AttentionShape {
        chunks,
        tokens,
        heads,
        chunk,
        ..
    } = shape;
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
    // Back to rows, in two reshapes: neither changes an axis that the other changes.
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
    (
        g.expand(keys, &[chunks, tokens, heads, chunk, depth]),
        [tile, stage],
    )
}
