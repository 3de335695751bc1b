//! Attention over a latent KV cache (MLA): absorbed decode, and prefill.

use super::{ALL, Sight};
use crate::harness::{Case, Within};
use gristmill_encodings::by_name;
use gristmill_tensor::dims;
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::Scalar;

/// A latent KV cache: keys and values are views of one state, whose new rows are written first.
pub(super) fn latent(
    heads: usize,
    tokens: usize,
    cache: Scalar,
    vars: &[&[(&'static str, i64)]],
) -> Case {
    let (rank, rope, rows) = (32, 16, 320);
    Case::new(
        format!(
            "latent cache {}, {heads} heads, {tokens} tokens",
            cache.name()
        ),
        |c| {
            let pos = c.var("pos", 0, rows - tokens);
            let n = if tokens == 1 {
                c.int(1)
            } else {
                c.var("n", 1, tokens)
            };
            let q = c.input("q", dims![n, heads, rank + rope], Scalar::F32);
            let row = c.input("row", dims![n, rank + rope], Scalar::F32);
            let state = c
                .state("cache", dims![rows, rank + rope], cache)
                .assign(row.cast(cache), pos);
            c.output_state(state);
            let k = state.cast(Scalar::F32).unsqueeze(1);
            c.output("y", q.attention(k, k.slice(2, 0, rank), pos, pos + n, 0.2));
        },
    )
    .vars(vars)
}

/// Absorbed MLA with enough heads for f16 MMA; queries are f32 or f16.
///
/// The latent and the rotated part of a query are separate inputs that are joined. Steps are
/// positions with numbers of tokens.
fn absorbed(
    heads: usize,
    widths: [usize; 2],
    rows: usize,
    queries: Scalar,
    steps: &[(usize, usize)],
) -> Case {
    absorbed_seeing(ALL, heads, widths, rows, queries, steps)
}

pub(super) fn absorbed_seeing(
    sight: Sight,
    heads: usize,
    [rank, rope]: [usize; 2],
    rows: usize,
    queries: Scalar,
    steps: &[(usize, usize)],
) -> Case {
    let tokens = steps.iter().map(|s| s.1).max().unwrap_or(1);
    let (held, words) = (queries.name(), sight.words());
    let name = format!(
        "absorbed, {tokens} by {heads} heads of {rank} and {rope}, {held}, {rows} rows{words}"
    );
    let vars: Vec<[(&'static str, i64); 2]> = steps
        .iter()
        .map(|&(p, n)| [("pos", p as i64), ("n", n as i64)])
        .collect();
    let vars: Vec<&[(&'static str, i64)]> = vars
        .iter()
        .map(|v| if tokens == 1 { &v[..1] } else { &v[..] })
        .collect();
    Case::new(name, |c| {
        let pos = c.var("pos", 0, rows - tokens);
        let n = if tokens == 1 {
            c.int(1)
        } else {
            c.var("n", 1, tokens)
        };
        let latent = c.input("latent", dims![n, heads, rank], Scalar::F32);
        let rotated = c.input("rotated", dims![n, heads, rope], Scalar::F32);
        let row = c.input("row", dims![n, rank + rope], Scalar::F32);
        let state = c
            .state("cache", dims![rows, rank + rope], Scalar::F16)
            .assign(row.cast(Scalar::F16), pos);
        c.output_state(state);
        let k = state.cast(Scalar::F32).unsqueeze(1);
        let q = Tensor::cat(
            &[latent, rotated + 0.5].map(|q| q.cast(queries).cast(Scalar::F32)),
            2,
        );
        c.output(
            "y",
            sight.attend(c, q, [k, k.slice(2, 0, rank)], [pos, n], 0.2),
        );
    })
    .vars(&vars)
    .within(within(queries))
}

/// Tolerance. With f16 queries, weights, partial results and the sum of weights each have relative
/// error 2⁻¹²; values and their mean are at most one.
pub(super) fn within(queries: Scalar) -> Within {
    match queries {
        Scalar::F16 => Within::Absolute(3.0 / 4096.0 + 1e-5),
        _ => Within::Scale(1e-5),
    }
}

/// Prefill with keys of a latent f16 cache shared by all heads, and f32 values per head.
pub(super) fn prompt(
    sight: Sight,
    heads: usize,
    [rank, rope, value]: [usize; 3],
    tokens: usize,
    queries: Scalar,
    vars: &[&[(&'static str, i64)]],
) -> Case {
    let (rows, held, words) = (320, queries.name(), sight.words());
    let name = format!(
        "prompt of {tokens}, {heads} heads of {rank} and {rope}, {value} out, {held}{words}"
    );
    Case::new(name, |c| {
        let pos = c.var("pos", 0, rows - tokens);
        let n = c.var("n", 1, tokens);
        let q = c
            .input("q", dims![n, heads, rank + rope], Scalar::F32)
            .cast(queries)
            .cast(Scalar::F32);
        let row = c.input("row", dims![n, rank + rope], Scalar::F32);
        let state = c
            .state("cache", dims![rows, rank + rope], Scalar::F16)
            .assign(row.cast(Scalar::F16), pos);
        c.output_state(state);
        let length = pos + n;
        let k = state
            .slice(0, 0, length)
            .cast(Scalar::F32)
            .unsqueeze(1)
            .expand(dims![length, heads, rank + rope]);
        let v = c.input("v", dims![length, heads, value], Scalar::F32);
        c.output("y", sight.attend(c, q, [k, v * 0.5], [pos, n], 0.2));
    })
    .vars(vars)
    .within(within(queries))
}

/// Prefill with keys and values of every head decompressed from a latent f16 cache.
///
/// Keys use a packed weight that is read across its rows. With f16 MMA, its elements, keys and
/// values are rounded to f16, each with relative error 2⁻¹².
fn computed(
    heads: usize,
    [rank, nope, rope, value]: [usize; 4],
    tokens: usize,
    vars: &[&[(&'static str, i64)]],
) -> Case {
    let rows = 1300;
    let name = format!(
        "prompt of {tokens}, {heads} heads of {nope} and {rope}, {value} out, computed of {rank}"
    );
    Case::new(name, |c| {
        let pos = c.var("pos", 0, rows - tokens);
        let n = c.var("n", 1, tokens);
        let q = c
            .input("q", dims![n, heads, nope + rope], Scalar::F32)
            .cast(Scalar::F16)
            .cast(Scalar::F32);
        let row = c.input("row", dims![n, rank + rope], Scalar::F32);
        let state = c
            .state("cache", dims![rows, rank + rope], Scalar::F16)
            .assign(row.cast(Scalar::F16), pos);
        c.output_state(state);
        let length = pos + n;
        let seen = state.slice(0, 0, length).cast(Scalar::F32);
        let of_keys = c
            .weight(
                "k_b",
                &[heads, rank, nope],
                by_name("q4_0").expect("an encoding"),
            )
            .permute(&[0, 2, 1]);
        let of_values = c.weight(
            "v_b",
            &[heads, value, rank],
            by_name("q4_0").expect("an encoding"),
        );
        let latents = seen.slice(1, 0, rank).reshape(dims![length, 1, 1, rank]);
        let rotated = seen
            .slice(1, rank, rope)
            .unsqueeze(1)
            .expand(dims![length, heads, rope]);
        let keys = Tensor::cat(&[(of_keys * latents).sum(&[3]), rotated], 2);
        c.output(
            "y",
            q.attention(keys, (of_values * latents).sum(&[3]), pos, length, 0.2),
        );
    })
    .vars(vars)
    .within(Within::Scale(4e-3))
}

/// Prefill long enough that all heads' keys are rounded once, at depth 0 and deeper.
pub fn every_head() -> Vec<Case> {
    let vars: &[&[(&str, i64)]] = &[&[("pos", 0), ("n", 66)], &[("pos", 200), ("n", 65)]];
    vec![computed(2, [32, 32, 16, 32], 1030, vars)]
}

/// Prefill with divisible and odd chunks, token tiles and depths, in the first and last chunk.
pub fn prompts() -> Vec<Case> {
    let vars: &[&[(&str, i64)]] = &[
        &[("pos", 0), ("n", 1)],
        &[("pos", 0), ("n", 17)],
        &[("pos", 250), ("n", 20)],
        &[("pos", 256), ("n", 20)],
    ];
    let of = |heads, widths, queries| prompt(ALL, heads, widths, 20, queries, vars);
    let (f32, f16) = (Scalar::F32, Scalar::F16);
    vec![
        of(2, [32, 16, 16], f32),
        of(3, [128, 64, 32], f32),
        of(2, [32, 16, 16], f16),
        of(3, [128, 64, 32], f16),
    ]
}

/// Enough tokens that one has a tile to itself, with MMA of four warps over all rows and columns.
pub fn long_prompts() -> Vec<Case> {
    let vars: &[&[(&str, i64)]] = &[&[("pos", 70), ("n", 66)]];
    vec![prompt(ALL, 2, [48, 16, 128], 66, Scalar::F16, vars)]
}

/// F16 MMA with divisible and odd numbers of heads, over full, partial and one-position chunks.
///
/// Also caches that chunks do not divide, one with fewer tiles than warps, and several tokens on
/// either side of a chunk's end.
pub fn halves() -> Vec<Case> {
    let of = |queries| {
        vec![
            absorbed(
                20,
                [512, 64],
                160,
                queries,
                &[0, 63, 64, 130].map(|p| (p, 1)),
            ),
            absorbed(16, [512, 64], 128, queries, &[0, 127].map(|p| (p, 1))),
            absorbed(
                18,
                [32, 16],
                100,
                queries,
                &[0, 62, 64, 98, 99].map(|p| (p, 1)),
            ),
            absorbed(8, [48, 16], 200, queries, &[0, 199].map(|p| (p, 1))),
            absorbed(40, [64, 64], 16, queries, &[0, 7, 15].map(|p| (p, 1))),
        ]
    };
    let mut out: Vec<Case> = [Scalar::F32, Scalar::F16]
        .into_iter()
        .flat_map(of)
        .collect();
    let steps = [
        (0, 1),
        (60, 3),
        (60, 4),
        (61, 9),
        (64, 9),
        (62, 64),
        (127, 64),
    ];
    out.push(absorbed(8, [48, 16], 256, Scalar::F16, &steps));
    out
}

/// The largest number of partial results that the consumer combines, and more, which need a kernel.
pub fn deep() -> Vec<Case> {
    let of = |rows: usize| {
        [Scalar::F32, Scalar::F16].map(|queries| {
            absorbed(
                8,
                [192, 64],
                rows,
                queries,
                &[0, 200, rows - 1].map(|p| (p, 1)),
            )
        })
    };
    [8192, 8448].into_iter().flat_map(of).collect()
}
