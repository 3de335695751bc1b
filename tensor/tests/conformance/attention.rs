//! Attention over a KV cache: shared and separate KV heads, masks, full, partial and empty chunks.

use crate::harness::{Case, Fill, Within};
use gristmill_encodings::by_name;
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::Scalar;
use gristmill_uop::shape::Scoring;

struct Shape {
    rows: usize,
    heads: usize,
    kv_heads: usize,
    depth: usize,
    out: usize,
}

/// Attention mask and scoring: window, sinks and score cap.
#[derive(Clone, Copy)]
struct Sight {
    window: Option<usize>,
    sinks: bool,
    cap: Option<f64>,
}

/// Plain causal attention, with unbounded scores.
const ALL: Sight = Sight {
    window: None,
    sinks: false,
    cap: None,
};

impl Sight {
    /// Attention of `q [tokens, heads, d]` over `k` and `v`, with the first token at position
    /// `pos`.
    fn attend<'g>(
        self,
        c: &'g Capture,
        q: Tensor<'g>,
        kv: [Tensor<'g>; 2],
        [pos, n]: [Tensor<'g>; 2],
        scale: f64,
    ) -> Tensor<'g> {
        let sinks = self
            .sinks
            .then(|| c.input("sinks", &[q.dim(1)], Scalar::F32));
        q.attention_within(
            kv,
            [pos, pos + n],
            Scoring {
                scale,
                cap: self.cap,
            },
            self.window,
            sinks,
        )
    }
    /// The options as a part of the case's name.
    fn words(self) -> String {
        let window = self
            .window
            .map_or(String::new(), |w| format!(", a window of {w}"));
        let cap = self
            .cap
            .map_or(String::new(), |cap| format!(", a cap of {cap}"));
        window + if self.sinks { ", sinks" } else { "" } + &cap
    }
}

fn attention(s: &Shape, tokens: usize, vars: &[&[(&'static str, i64)]]) -> Case {
    seeing(ALL, s, tokens, vars)
}

fn seeing(sight: Sight, s: &Shape, tokens: usize, vars: &[&[(&'static str, i64)]]) -> Case {
    let name = format!(
        "{} rows, {} heads of {}, {} shared, {} out, {tokens} tokens{}",
        s.rows,
        s.heads,
        s.depth,
        s.kv_heads,
        s.out,
        sight.words()
    );
    Case::new(name, |c| {
        let pos = c.var("pos", 0, s.rows - tokens);
        let n = if tokens == 1 {
            c.int(1)
        } else {
            c.var("n", 1, tokens)
        };
        let q = c.input("q", dims![n, s.heads, s.depth], Scalar::F32);
        let k = c.input("k", dims![s.rows, s.kv_heads, s.depth], Scalar::F32);
        let v = c.input("v", dims![s.rows, s.kv_heads, s.out], Scalar::F32);
        c.output("y", sight.attend(c, q, [k, v], [pos, n], 0.7));
    })
    .vars(vars)
    .within(Within::Scale(1e-5))
}

/// A latent KV cache: keys and values are views of one state, whose new rows are written first.
fn latent(heads: usize, tokens: usize, cache: Scalar, vars: &[&[(&'static str, i64)]]) -> Case {
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

fn absorbed_seeing(
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
fn within(queries: Scalar) -> Within {
    match queries {
        Scalar::F16 => Within::Absolute(3.0 / 4096.0 + 1e-5),
        _ => Within::Scale(1e-5),
    }
}

/// Prefill with keys of a latent f16 cache shared by all heads, and f32 values per head.
fn prompt(
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

/// A latent int8 KV cache with scales.
///
/// Rows are multiples of a power of two with a maximum of 127 units, so that quantisation is exact.
fn bytes(heads: usize, tokens: usize, group: usize, vars: &[&[(&'static str, i64)]]) -> Case {
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

/// Grouped-query attention over separate keys and values; steps are positions with token counts.
fn group_of(
    heads: usize,
    kv_heads: usize,
    widths: [usize; 2],
    cache: Scalar,
    steps: &[(usize, usize)],
) -> Case {
    group_seeing(ALL, heads, kv_heads, widths, cache, steps)
}

fn group_seeing(
    sight: Sight,
    heads: usize,
    kv_heads: usize,
    [depth, out]: [usize; 2],
    cache: Scalar,
    steps: &[(usize, usize)],
) -> Case {
    let (rows, tokens) = (200, steps.iter().map(|s| s.1).max().unwrap_or(1));
    let (held, words) = (cache.name(), sight.words());
    let name = format!(
        "{kv_heads} groups of {heads} heads of {depth} and {out}, cache {held}, {tokens} tokens{words}"
    );
    let vars: Vec<[(&'static str, i64); 2]> = steps
        .iter()
        .map(|&(p, n)| [("pos", p as i64), ("n", n as i64)])
        .collect();
    let vars: Vec<&[(&'static str, i64)]> = vars
        .iter()
        .map(|v| if tokens == 1 { &v[..1] } else { &v[..] })
        .collect();
    // Int8 rows quantise exactly, without ties in rounding.
    let row = |i: i64| if i % 16 == 5 { 127 } else { i * 37 % 253 - 126 };
    let exact = |width: usize| {
        Fill::Values(
            (0..29 * width as i64)
                .map(|i| row(i) as f64 / 64.0)
                .collect(),
        )
    };
    let [keys, values] = [kv_heads * depth, kv_heads * out];
    let case = Case::new(name, |c| {
        let pos = c.var("pos", 0, rows - tokens);
        let n = if tokens == 1 {
            c.int(1)
        } else {
            c.var("n", 1, tokens)
        };
        let q = c.input("q", dims![n, heads, depth], Scalar::F32);
        let cached = |what: &'static str, width: usize| {
            let row = c.input(what, dims![n, width], Scalar::F32);
            if cache.is_float() {
                let state = c
                    .state(what, dims![rows, width], cache)
                    .assign(row.cast(cache), pos);
                c.output_state(state);
                return state.cast(Scalar::F32);
            }
            let (codes, scales) = row.encode_rows(32);
            let codes = c
                .state(what, dims![rows, width], Scalar::I8)
                .assign(codes, pos);
            c.output_state(codes);
            let scales = c
                .state("scales", dims![rows, width / 32], Scalar::F16)
                .assign(scales.cast(Scalar::F16), pos);
            c.output_state(scales);
            codes.decode_rows(scales, 32)
        };
        let k = cached("keys", keys).reshape(dims![rows, kv_heads, depth]);
        let v = cached("values", values).reshape(dims![rows, kv_heads, out]);
        let q = if cache == Scalar::F16 {
            q.cast(cache).cast(Scalar::F32)
        } else {
            q
        };
        c.output("y", sight.attend(c, q, [k, v], [pos, n], 0.2));
    });
    let case = match cache {
        Scalar::I8 => [
            (1, exact(keys)),
            (2, Fill::Whole(-127, 128)),
            (3, Fill::Uniform(0.0, 0.02)),
        ]
        .into_iter()
        .chain([
            (4, exact(values)),
            (5, Fill::Whole(-127, 128)),
            (6, Fill::Uniform(0.0, 0.02)),
        ])
        .fold(case, |case, (slot, fill)| case.fill(slot, fill)),
        _ => case,
    };
    case.vars(&vars).within(within(cache))
}

/// Grouped-query attention of one and several tokens, over caches of every type.
///
/// Groups fit a workgroup or not, fragments divide widths or not, values are wider or narrower than
/// keys.
pub fn grouped() -> Vec<Case> {
    let mut out = grouped_halves();
    for cache in [Scalar::F32, Scalar::I8] {
        out.push(group_of(4, 2, [32, 64], cache, ONE));
        out.push(group_of(4, 2, [64, 32], cache, FEW));
    }
    out.push(group_of(14, 2, [32, 40], Scalar::F16, ONE));
    out.push(group_of(6, 3, [24, 32], Scalar::F16, FEW));
    out
}

/// The cases with f16 MMA, on machines that have it.
pub fn grouped_halves() -> Vec<Case> {
    let of = |heads, widths, steps| group_of(heads, 2, widths, Scalar::F16, steps);
    vec![
        of(8, [64, 64], ONE),
        of(14, [64, 96], ONE),
        of(4, [64, 32], FEW),
    ]
}

/// Sliding windows that begin in the first chunk, at its end or later, with and without sinks.
///
/// Windows are of one position up to more than the context; one or several tokens, with windows
/// that begin in different chunks; f32 sums and f16 MMA; rows shared by heads and by tokens.
pub fn windows() -> Vec<Case> {
    let sees = |window, sinks| Sight {
        window,
        sinks,
        ..ALL
    };
    let one: &[&[(&str, i64)]] = &[
        &[("pos", 0)],
        &[("pos", 63)],
        &[("pos", 164)],
        &[("pos", 299)],
    ];
    let few: &[&[(&str, i64)]] = &[
        &[("pos", 0), ("n", 13)],
        &[("pos", 124), ("n", 13)],
        &[("pos", 287), ("n", 13)],
    ];
    let mut out = Vec::new();
    for (sight, heads, kv_heads) in [
        (sees(Some(100), true), 4, 1),
        (sees(Some(1), false), 4, 4),
        (sees(Some(65), true), 6, 2),
        (sees(Some(1000), true), 2, 1),
    ] {
        let shape = Shape {
            rows: 300,
            heads,
            kv_heads,
            depth: 24,
            out: 16,
        };
        out.push(seeing(sight, &shape, 1, one));
        out.push(seeing(sight, &shape, 13, few));
    }
    out.extend(window_halves());
    out.push(group_seeing(
        sees(None, true),
        4,
        2,
        [32, 64],
        Scalar::I8,
        ONE,
    ));
    out.push(group_seeing(
        sees(Some(70), false),
        4,
        2,
        [32, 64],
        Scalar::I8,
        FEW,
    ));
    out
}

/// The cases with f16 MMA, on machines that have it.
pub fn window_halves() -> Vec<Case> {
    let of = |window, heads, widths, steps| {
        group_seeing(
            Sight {
                window: Some(window),
                sinks: true,
                ..ALL
            },
            heads,
            2,
            widths,
            Scalar::F16,
            steps,
        )
    };
    vec![of(64, 8, [64, 64], ONE), of(40, 4, [64, 32], FEW)]
}

/// Capped scores, most of them near the cap: f32 and integer sums, with and without window and
/// sink.
///
/// Rows are shared by heads and by tokens.
pub fn caps() -> Vec<Case> {
    let sees = |window, sinks| Sight {
        window,
        sinks,
        cap: Some(0.7),
    };
    let one: &[&[(&str, i64)]] = &[&[("pos", 0)], &[("pos", 164)], &[("pos", 299)]];
    let few: &[&[(&str, i64)]] = &[&[("pos", 0), ("n", 13)], &[("pos", 287), ("n", 13)]];
    let mut out = Vec::new();
    for (sight, heads, kv_heads) in [(sees(None, false), 4, 4), (sees(Some(65), true), 6, 2)] {
        let shape = Shape {
            rows: 300,
            heads,
            kv_heads,
            depth: 24,
            out: 16,
        };
        out.push(seeing(sight, &shape, 1, one));
        out.push(seeing(sight, &shape, 13, few));
    }
    out.push(group_seeing(
        sees(None, false),
        4,
        2,
        [32, 64],
        Scalar::F32,
        FEW,
    ));
    out.push(group_seeing(
        sees(None, true),
        4,
        1,
        [32, 64],
        Scalar::I8,
        ONE,
    ));
    out.push(group_seeing(
        sees(Some(70), false),
        4,
        2,
        [32, 64],
        Scalar::I8,
        FEW,
    ));
    out.push(absorbed_seeing(
        sees(None, false),
        16,
        [512, 64],
        128,
        Scalar::F32,
        &[(0, 1), (127, 1)],
    ));
    out.extend(capped_halves());
    out
}

/// The cases with f16 MMA: one and several tokens, and a prefill with rows per head.
pub fn capped_halves() -> Vec<Case> {
    let sees = |window, sinks| Sight {
        window,
        sinks,
        cap: Some(0.7),
    };
    let of =
        |sight, heads, widths, steps| group_seeing(sight, heads, 2, widths, Scalar::F16, steps);
    let prompts: &[&[(&str, i64)]] = &[&[("pos", 0), ("n", 17)], &[("pos", 250), ("n", 20)]];
    vec![
        of(sees(None, false), 8, [64, 64], ONE),
        of(sees(Some(40), true), 4, [64, 32], FEW),
        absorbed_seeing(
            sees(None, false),
            16,
            [512, 64],
            128,
            Scalar::F16,
            &[(0, 1), (127, 1)],
        ),
        prompt(sees(None, true), 3, [128, 64, 32], 20, Scalar::F16, prompts),
        prompt(
            sees(None, false),
            2,
            [48, 16, 128],
            66,
            Scalar::F16,
            &[&[("pos", 70), ("n", 66)]],
        ),
    ]
}

/// Positions and token counts: in the first chunk of the cache, at its end, and in the last.
const ONE: &[(usize, usize)] = &[(0, 1), (64, 1), (199, 1)];
const FEW: &[(usize, usize)] = &[(0, 1), (60, 9), (182, 18)];

pub fn cases() -> Vec<Case> {
    let one: &[&[(&str, i64)]] = &[
        &[("pos", 0)],
        &[("pos", 1)],
        &[("pos", 63)],
        &[("pos", 127)],
    ];
    let few: &[&[(&str, i64)]] = &[
        &[("pos", 0), ("n", 1)],
        &[("pos", 0), ("n", 9)],
        &[("pos", 55), ("n", 9)],
    ];
    let mut out = Vec::new();
    for (heads, kv_heads, depth, value) in [
        (1, 1, 8, 8),
        (4, 1, 48, 32),
        (4, 4, 24, 16),
        (6, 2, 16, 20),
        (5, 5, 7, 9),
    ] {
        let shape = |rows| Shape {
            rows,
            heads,
            kv_heads,
            depth,
            out: value,
        };
        out.push(attention(&shape(128), 1, one));
        out.push(attention(&shape(64), 9, few));
    }
    out
}

/// Contexts of several chunks of the KV cache.
pub fn long() -> Vec<Case> {
    let one: &[&[(&str, i64)]] = &[
        &[("pos", 0)],
        &[("pos", 127)],
        &[("pos", 128)],
        &[("pos", 129)],
        &[("pos", 255)],
        &[("pos", 299)],
    ];
    let few: &[&[(&str, i64)]] = &[
        &[("pos", 0), ("n", 13)],
        &[("pos", 120), ("n", 13)],
        &[("pos", 128), ("n", 2)],
        &[("pos", 250), ("n", 6)],
        &[("pos", 287), ("n", 13)],
    ];
    let mut out = Vec::new();
    for (heads, kv_heads, depth, value) in [(4, 1, 48, 32), (4, 4, 24, 16), (3, 1, 12, 12)] {
        let shape = |rows| Shape {
            rows,
            heads,
            kv_heads,
            depth,
            out: value,
        };
        out.push(attention(&shape(300), 1, one));
        out.push(attention(&shape(300), 13, few));
        // A cache divisible by chunks.
        out.push(attention(&shape(384), 13, few));
    }
    for cache in [Scalar::F32, Scalar::F16] {
        out.push(latent(4, 1, cache, one));
        out.push(latent(20, 1, cache, one));
        out.push(latent(4, 13, cache, few));
    }
    for group in [16, 32] {
        out.push(bytes(4, 1, group, one));
        out.push(bytes(20, 1, group, one));
        out.push(bytes(4, 13, group, few));
    }
    out
}
