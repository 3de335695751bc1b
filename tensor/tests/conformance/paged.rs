//! Attention over a paged KV cache: rows of several sequences and prefill chunks.
//!
//! Sequences end at page borders and next to them. Rows are written by slot and read in the same
//! function.

use crate::harness::{Case, Fill, Random, Within};
use gristmill_encodings::Q4_0;
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_tensor::tensor::{PagedRows, Tensor};
use gristmill_uop::Scalar;
use gristmill_uop::shape::Scoring;

/// Positions in a page.
const PAGE: usize = 64;
/// Pages in the pool; no sequence uses the last.
const PAGES: usize = 9;
/// Length of a block table.
const BLOCKS: usize = 4;

/// Sequence and position of each query row.
type Rows = &'static [(usize, usize)];

/// Decode rows only: first position, last of a page, first of the next, and more than two pages.
const DECODING: Rows = &[(0, 0), (1, 63), (2, 64), (3, 130), (4, 9)];
/// A mixed batch: two decode rows and a prefill chunk across a page border.
const WITH_PROMPT: Rows = &[
    (0, 0),
    (1, 127),
    (2, 61),
    (2, 62),
    (2, 63),
    (2, 64),
    (2, 65),
];
/// Prefill chunks of two sequences, the second at a greater depth.
const PROMPTS: Rows = &[
    (0, 0),
    (0, 1),
    (0, 2),
    (1, 189),
    (1, 190),
    (1, 191),
    (1, 192),
];
/// Rows with small windows that begin in various pages, cross a border, or begin the sequence.
const LATE: Rows = &[(0, 255), (1, 130), (2, 3), (0, 192), (1, 63), (0, 202)];

/// Block tables with random distinct pages except the pool's last; `None` after the last position.
fn tables(rows: Rows) -> Vec<Vec<Option<usize>>> {
    let sequences = rows.iter().map(|r| r.0 + 1).max().unwrap_or(0);
    let mut free: Vec<usize> = (0..PAGES - 1).collect();
    let mut random = Random::from_name("pages");
    let mut table = |s: usize| {
        let last = rows
            .iter()
            .filter(|r| r.0 == s)
            .map(|r| r.1)
            .max()
            .unwrap_or(0);
        let mut page = || free.swap_remove(random.below(free.len() as i64) as usize);
        (0..BLOCKS)
            .map(|block| (block <= last / PAGE).then(&mut page))
            .collect()
    };
    (0..sequences).map(&mut table).collect()
}

/// Contents of the block-table slot; −1 after a row's last position.
fn entries(rows: Rows) -> Fill {
    let of = tables(rows);
    let row = |&(s, p): &(usize, usize)| {
        (0..BLOCKS).map({
            let of = &of[s];
            move |b| {
                of[b]
                    .filter(|_| b <= p / PAGE)
                    .map_or(-1.0, |page| page as f64)
            }
        })
    };
    // Rows that are outside a run do not repeat rows inside it.
    Fill::Values(rows.iter().flat_map(row).collect::<Vec<f64>>())
}

/// Pool rows of `width` numbers: random where some row attends to them, NaN elsewhere.
fn seen_alone(name: &str, rows: Rows, width: usize, window: Option<usize>) -> Fill {
    let (of, mut random) = (tables(rows), Random::from_name(name));
    let mut seen = vec![false; PAGES * PAGE];
    for &(s, last) in rows {
        let first = window.map_or(0, |window| (last + 1).saturating_sub(window));
        (first..=last).for_each(|p| {
            seen[of[s][p / PAGE].expect("a page of its own") * PAGE + p % PAGE] = true
        });
    }
    let number = |i: usize| {
        if seen[i / width] {
            2.0 * random.unit() - 1.0
        } else {
            f64::NAN
        }
    };
    Fill::Values((0..PAGES * PAGE * width).map(number).collect())
}

/// One run per entry of `ends`, with that number of leading rows.
fn runs(rows: Rows, ends: &[usize]) -> Vec<[(&'static str, i64); 2]> {
    let length = |n: usize| rows[..n].iter().map(|r| r.1 as i64 + 1).max().unwrap_or(1);
    ends.iter()
        .map(|&n| [("n", n as i64), ("length", length(n))])
        .collect()
}

/// Declares the first two slots of every case: positions and block table.
fn at(c: &Capture, most: usize) -> (Tensor<'_>, PagedRows<'_>) {
    let n = c.var("n", 1, most);
    let positions = c.input("positions", dims![n], Scalar::I32);
    let table = c.input("table", dims![n, BLOCKS], Scalar::I32);
    (
        n,
        PagedRows {
            positions,
            length: c.var("length", 1, BLOCKS * PAGE),
            table,
            page: PAGE,
        },
    )
}

fn finished(case: Case, rows: Rows, ends: &[usize]) -> Case {
    let runs = runs(rows, ends);
    let runs: Vec<&[(&'static str, i64)]> = runs.iter().map(|r| &r[..]).collect();
    let positions = rows.iter().map(|r| r.1 as f64).collect();
    case.fill(0, Fill::Values(positions))
        .fill(1, entries(rows))
        .vars(&runs)
}

/// Attention mask and scoring: window, sinks and score cap.
#[derive(Clone, Copy)]
struct Sight {
    window: Option<usize>,
    sinks: bool,
    cap: Option<f64>,
}

/// Capped scores, many of them near the cap.
const CAPPED: Sight = Sight {
    cap: Some(0.7),
    ..ALL
};
const ALL: Sight = Sight {
    window: None,
    sinks: false,
    cap: None,
};

/// The score cap as a part of the case's name.
fn capped_at(sight: Sight) -> String {
    sight
        .cap
        .map_or(String::new(), |cap| format!(", a cap of {cap}"))
}

/// Attention without writes, over pools that are NaN at every position that no row attends to.
fn reading(
    heads: usize,
    kv_heads: usize,
    [depth, out]: [usize; 2],
    rows: Rows,
    ends: &[usize],
    sight: Sight,
) -> Case {
    let words = format!(
        "window {:?}, sinks {}, {} rows",
        sight.window,
        sight.sinks,
        rows.len()
    );
    let cap = capped_at(sight);
    let name =
        format!("pages, {heads} heads of {depth}, {kv_heads} shared, {out} out, {words}{cap}");
    let case = Case::new(&name, |c| {
        let (n, at) = at(c, rows.len());
        let q = c.input("q", dims![n, heads, depth], Scalar::F32);
        let k = c.input("k", dims![PAGES, PAGE, kv_heads, depth], Scalar::F32);
        let v = c.input("v", dims![PAGES, PAGE, kv_heads, out], Scalar::F32);
        let sinks = sight
            .sinks
            .then(|| c.input("sinks", dims![heads], Scalar::F32));
        c.output(
            "y",
            q.paged_attention(
                [k, v],
                &at,
                Scoring {
                    scale: 0.7,
                    cap: sight.cap,
                },
                sight.window,
                sinks,
            ),
        );
    });
    let seen = |name, width| seen_alone(name, rows, kv_heads * width, sight.window);
    let case = case
        .fill(3, seen("keys", depth))
        .fill(4, seen("values", out));
    finished(case, rows, ends).within(Within::Scale(1e-5))
}

/// Separate key and value caches, written and then read in the same function.
fn grouped(
    [heads, kv_heads]: [usize; 2],
    [depth, out]: [usize; 2],
    cache: Scalar,
    (rows, ends): (Rows, &[usize]),
    sight: Sight,
) -> Case {
    let mut name = format!(
        "pages of {}, {kv_heads} groups of {heads} heads, {} rows",
        cache.name(),
        rows.len()
    );
    name += &sight
        .window
        .map_or(String::new(), |window| format!(", window {window}"));
    name += &capped_at(sight);
    let case = Case::new(name, |c| {
        let (n, at) = at(c, rows.len());
        let q = c.input("q", dims![n, heads, depth], Scalar::F32);
        let slots = at.slots(PAGES);
        let cached = |what: &'static str, width: usize| {
            let row = c.input(what, dims![n, width], Scalar::F32);
            let state = c
                .state(what, dims![PAGES * PAGE, width], cache)
                .scatter(row.cast(cache), slots);
            c.output_state(state);
            state.cast(Scalar::F32)
        };
        let k = cached("keys", kv_heads * depth).reshape(dims![PAGES, PAGE, kv_heads, depth]);
        let v = cached("values", kv_heads * out).reshape(dims![PAGES, PAGE, kv_heads, out]);
        let q = if cache == Scalar::F16 {
            q.cast(cache).cast(Scalar::F32)
        } else {
            q
        };
        c.output(
            "y",
            q.paged_attention(
                [k, v],
                &at,
                Scoring {
                    scale: 0.2,
                    cap: sight.cap,
                },
                sight.window,
                None,
            ),
        );
    });
    finished(case, rows, ends).within(within(cache))
}

/// Attention over pools, followed by a product with a packed matrix.
///
/// Where that is an f16 MMA, the combine weights of a data-dependent number of chunks are computed
/// in the kernel that rounds the product's operand.
fn projected(heads: usize, kv_heads: usize, width: usize, rows: Rows, ends: &[usize]) -> Case {
    let name = format!(
        "pages, {heads} heads of {width}, {kv_heads} shared, {} rows, times a matrix",
        rows.len()
    );
    let case = Case::new(name, |c| {
        let (n, at) = at(c, rows.len());
        let q = c.input("q", dims![n, heads, width], Scalar::F32);
        let [k, v] =
            ["k", "v"].map(|name| c.input(name, dims![PAGES, PAGE, kv_heads, width], Scalar::F32));
        let y = q
            .paged_attention([k, v], &at, 0.7, None, None)
            .reshape(dims![n, heads * width]);
        c.output("y", y.linear(c.weight("w", &[32, heads * width], &Q4_0)));
    });
    let seen = |name| seen_alone(name, rows, kv_heads * width, None);
    let case = case.fill(3, seen("keys")).fill(4, seen("values"));
    finished(case, rows, ends)
}

/// A latent KV cache shared by all heads; values are the first part of its rows.
fn latent(
    heads: usize,
    [rank, rope]: [usize; 2],
    cache: Scalar,
    rows: Rows,
    ends: &[usize],
) -> Case {
    let name = format!(
        "latent pages of {}, {heads} heads of {rank} and {rope}, {} rows",
        cache.name(),
        rows.len()
    );
    let case = Case::new(name, |c| {
        let (n, at) = at(c, rows.len());
        let (latent, rotated) = (
            c.input("latent", dims![n, heads, rank], Scalar::F32),
            c.input("rotated", dims![n, heads, rope], Scalar::F32),
        );
        let row = c.input("row", dims![n, rank + rope], Scalar::F32);
        let state = c
            .state("cache", dims![PAGES * PAGE, rank + rope], cache)
            .scatter(row.cast(cache), at.slots(PAGES));
        c.output_state(state);
        let k = state
            .cast(Scalar::F32)
            .reshape(dims![PAGES, PAGE, 1, rank + rope]);
        let q = Tensor::cat(
            &[latent, rotated + 0.5].map(|q| q.cast(cache).cast(Scalar::F32)),
            2,
        );
        c.output(
            "y",
            q.paged_attention([k, k.slice(3, 0, rank)], &at, 0.2, None, None),
        );
    });
    finished(case, rows, ends).within(within(cache))
}

/// A latent int8 KV cache with scales; its rows quantise exactly, without ties.
fn bytes(heads: usize, rows: Rows, ends: &[usize]) -> Case {
    let (rank, rope, group) = (64, 32, 32);
    let width = rank + rope;
    let row = |i: i64| if i % 16 == 5 { 127 } else { i * 37 % 253 - 126 };
    let rows_of = (0..29 * group as i64)
        .map(|i| row(i) as f64 / 64.0)
        .collect();
    let case = Case::new(
        format!("latent pages of bytes, {heads} heads, {} rows", rows.len()),
        |c| {
            let (n, at) = at(c, rows.len());
            let q = c.input("q", dims![n, heads, width], Scalar::F32);
            let slots = at.slots(PAGES);
            let (codes, scales) = c
                .input("row", dims![n, width], Scalar::F32)
                .encode_rows(group);
            let codes = c
                .state("cache", dims![PAGES * PAGE, width], Scalar::I8)
                .scatter(codes, slots);
            c.output_state(codes);
            let scales = c
                .state("scales", dims![PAGES * PAGE, width / group], Scalar::F16)
                .scatter(scales.cast(Scalar::F16), slots);
            c.output_state(scales);
            let k = codes
                .decode_rows(scales, group)
                .reshape(dims![PAGES, PAGE, 1, width]);
            c.output(
                "y",
                q.paged_attention([k, k.slice(3, 0, rank)], &at, 0.2, None, None),
            );
        },
    );
    let case = case
        .fill(3, Fill::Values(rows_of))
        .fill(4, Fill::Whole(-127, 128))
        .fill(5, Fill::Uniform(0.0, 0.02));
    finished(case, rows, ends)
}

/// Maximum tokens in a prefill chunk.
const PIECE: usize = 6;
/// Block table of the chunks' sequence, in arbitrary order.
const OWN: [f64; BLOCKS] = [7.0, 2.0, 0.0, 5.0];
/// Chunks by tokens and position: within the first page, across two and three pages, at a page's
/// end.
const PIECES: &[&[(&str, i64)]] = &[
    &[("n", 1), ("pos", 0)],
    &[("n", 5), ("pos", 61)],
    &[("n", 6), ("pos", 126)],
    &[("n", 1), ("pos", 63)],
];

/// A prefill chunk of one sequence: rows are written and gathered by number, then dense attention.
fn piece(heads: usize, [rank, rope]: [usize; 2], cache: Scalar, own_values: bool) -> Case {
    let width = rank + rope;
    let name = format!(
        "a piece over pages of {}, {heads} heads of {rank} and {rope}, own values {own_values}",
        cache.name()
    );
    let case = Case::new(name, |c| {
        let (n, pos) = (c.var("n", 1, PIECE), c.var("pos", 0, BLOCKS * PAGE - PIECE));
        let table = c.input("pages", dims![BLOCKS], Scalar::I32);
        let slots = |positions| table.slots_of(positions, [PAGES, PAGE]);
        let at = slots(c.iota(dims![n], 0).cast(Scalar::I64) + pos);
        let before = slots(
            c.iota(dims![BLOCKS * PAGE], 0)
                .cast(Scalar::I64)
                .minimum(pos + n - 1),
        );
        let q = c
            .input("q", dims![n, heads, width], Scalar::F32)
            .cast(cache)
            .cast(Scalar::F32);
        let row = c.input("row", dims![n, width], Scalar::F32);
        let state = c
            .state("cache", dims![PAGES * PAGE, width], cache)
            .scatter(row.cast(cache), at);
        c.output_state(state);
        let rows = state.gather(before).cast(Scalar::F32);
        let [k, v] = match own_values {
            // One part of a head's row is its keys, another its values.
            true => [
                rows.slice(1, 0, rank)
                    .unsqueeze(1)
                    .expand(dims![BLOCKS * PAGE, heads, rank]),
                rows.slice(1, rank, rope)
                    .unsqueeze(1)
                    .expand(dims![BLOCKS * PAGE, heads, rope]),
            ],
            false => [rows.unsqueeze(1), rows.slice(1, 0, rank).unsqueeze(1)],
        };
        let q = if own_values { q.slice(2, 0, rank) } else { q };
        c.output(
            "y",
            q.attention_within([k, v], [pos, pos + n], 0.2, None, None),
        );
    });
    case.fill(0, Fill::Values(OWN.to_vec()))
        .vars(PIECES)
        .within(within(cache))
}

/// Tolerance as in `attention.rs`: f16 queries have f16 weights and partial results.
fn within(cache: Scalar) -> Within {
    match cache {
        Scalar::F16 => Within::Absolute(3.0 / 4096.0 + 1e-5),
        _ => Within::Scale(1e-5),
    }
}

pub fn cases() -> Vec<Case> {
    let sees = |window, sinks| Sight {
        window,
        sinks,
        cap: None,
    };
    vec![
        reading(4, 1, [24, 16], DECODING, &[1, 2, 3, 5], ALL),
        reading(4, 4, [8, 12], WITH_PROMPT, &[2, 4, 7], ALL),
        reading(6, 2, [16, 20], PROMPTS, &[3, 7], sees(None, true)),
        reading(6, 2, [16, 20], PROMPTS, &[1, 7], sees(Some(65), false)),
        reading(2, 1, [12, 12], DECODING, &[5], sees(Some(1), true)),
        reading(4, 2, [16, 20], LATE, &[1, 3, 6], sees(Some(20), true)),
        grouped([4, 2], [32, 16], Scalar::F32, (DECODING, &[1, 4]), ALL),
        grouped([4, 4], [16, 16], Scalar::F16, (WITH_PROMPT, &[3, 7]), ALL),
        grouped(
            [4, 2],
            [32, 16],
            Scalar::F16,
            (LATE, &[1, 3, 6]),
            sees(Some(20), false),
        ),
        reading(
            4,
            2,
            [16, 20],
            LATE,
            &[1, 6],
            Sight {
                cap: Some(0.7),
                ..sees(Some(20), true)
            },
        ),
        grouped([4, 2], [32, 16], Scalar::F16, (PROMPTS, &[3, 7]), CAPPED),
        latent(4, [32, 16], Scalar::F32, PROMPTS, &[3, 5]),
        bytes(4, DECODING, &[2, 5]),
        piece(4, [32, 16], Scalar::F32, false),
        piece(4, [32, 16], Scalar::F16, true),
    ]
}

/// The cases with f16 MMA, on machines that have it.
pub fn halves() -> Vec<Case> {
    vec![
        grouped([16, 2], [64, 32], Scalar::F16, (DECODING, &[1, 5]), ALL),
        grouped(
            [16, 2],
            [64, 32],
            Scalar::F16,
            (LATE, &[2, 6]),
            Sight {
                window: Some(70),
                ..ALL
            },
        ),
        grouped(
            [16, 2],
            [64, 32],
            Scalar::F16,
            (LATE, &[2, 6]),
            Sight {
                window: Some(70),
                ..CAPPED
            },
        ),
        latent(16, [32, 16], Scalar::F16, WITH_PROMPT, &[2, 7]),
        latent(20, [64, 64], Scalar::F16, DECODING, &[3, 5]),
        piece(16, [64, 64], Scalar::F16, false),
    ]
}

/// The cases followed by a product, for one unit of a GPU ([`super::packed::with_groups`]).
///
/// With one unit there are enough workgroups to write the product's operand in its read layout.
pub fn projections() -> Vec<Case> {
    vec![
        projected(8, 2, 64, DECODING, &[1, 3, 5]),
        projected(16, 2, 32, DECODING, &[2, 5]),
    ]
}
