//! Attention over a latent int8 KV cache, with integer dot products for scores.

use crate::harness::{Case, Fill};
use gristmill_tensor::dims;
use gristmill_uop::Scalar;

/// A latent int8 KV cache with scales.
///
/// Rows are multiples of a power of two with a maximum of 127 units, so that quantisation is exact.
pub(super) fn bytes(
    heads: usize,
    tokens: usize,
    group: usize,
    vars: &[&[(&'static str, i64)]],
) -> Case {
    bytes_of(320, heads, tokens, group, vars)
}

fn bytes_of(
    rows: usize,
    heads: usize,
    tokens: usize,
    group: usize,
    vars: &[&[(&'static str, i64)]],
) -> Case {
    let (rank, rope) = (64, 32);
    let width = rank + rope;
    let row = |i: i64| if i % 16 == 5 { 127 } else { i * 37 % 253 - 126 };
    let rows_of = (0..29 * group as i64)
        .map(|i| row(i) as f64 / 64.0)
        .collect();
    Case::new(
        format!(
            "latent cache of bytes, {rows} rows, {group} a scale, {heads} heads, {tokens} tokens"
        ),
        |c| {
            let pos = c.var("pos", 0, rows - tokens);
            let n = if tokens == 1 {
                c.int(1)
            } else {
                c.var("n", 1, tokens)
            };
            let q = c.input("q", dims![n, heads, width], Scalar::F32);
            let (codes, scales) = c
                .input("row", dims![n, width], Scalar::F32)
                .encode_rows(group);
            let codes = c
                .state("cache", dims![rows, width], Scalar::I8)
                .assign(codes, pos);
            c.output_state(codes);
            let scales = c
                .state("scales", dims![rows, width / group], Scalar::F16)
                .assign(scales.cast(Scalar::F16), pos);
            c.output_state(scales);
            let k = codes.decode_rows(scales, group).unsqueeze(1);
            c.output("y", q.attention(k, k.slice(2, 0, rank), pos, pos + n, 0.2));
        },
    )
    .fill(1, Fill::Values(rows_of))
    .fill(2, Fill::Whole(-127, 128))
    .fill(3, Fill::Uniform(0.0, 0.02))
    .vars(vars)
}

/// Int8 KV caches with integer dot products for scores.
///
/// Chunks are full, partial or have one position. One cache is not divisible by chunks, and one has
/// a single chunk of half a vector.
pub fn integers() -> Vec<Case> {
    let one: &[&[(&str, i64)]] = &[
        &[("pos", 0)],
        &[("pos", 127)],
        &[("pos", 128)],
        &[("pos", 319)],
    ];
    let few: &[&[(&str, i64)]] = &[
        &[("pos", 0), ("n", 13)],
        &[("pos", 120), ("n", 13)],
        &[("pos", 307), ("n", 13)],
    ];
    let mut out = Vec::new();
    for group in [16, 32] {
        out.push(bytes(4, 1, group, one));
        out.push(bytes(20, 1, group, one));
        out.push(bytes(4, 13, group, few));
    }
    out.push(bytes_of(300, 4, 1, 32, &[&[("pos", 255)], &[("pos", 299)]]));
    out.push(bytes_of(20, 5, 1, 32, &[&[("pos", 0)], &[("pos", 19)]]));
    out
}
