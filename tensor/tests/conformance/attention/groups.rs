//! Grouped-query attention over separate keys and values.

use super::latent::within;
use super::{ALL, FEW, ONE, Sight};
use crate::harness::Within;
use crate::harness::{Case, Fill};
use gristmill_tensor::dims;
use gristmill_uop::Scalar;

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

pub(super) fn group_seeing(
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
    // Rows of 8 bits (I8) and of 4 bits (U8) quantise exactly, without ties in rounding.
    let row = |i: i64| match cache {
        Scalar::U8 if i % 16 == 5 => -8,
        Scalar::U8 => i * 37 % 15 - 7,
        _ if i % 16 == 5 => 127,
        _ => i * 37 % 253 - 126,
    };
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
            let packed = cache == Scalar::U8;
            let (codes, scales) = match packed {
                true => row.encode_rows4(32),
                false => row.encode_rows(32),
            };
            let columns = if packed { width / 2 } else { width };
            let codes = c
                .state(what, dims![rows, columns], cache)
                .assign(codes, pos);
            c.output_state(codes);
            let scales = c
                .state("scales", dims![rows, width / 32], Scalar::F16)
                .assign(scales.cast(Scalar::F16), pos);
            c.output_state(scales);
            match packed {
                true => codes.decode_rows4(scales, 32),
                false => codes.decode_rows(scales, 32),
            }
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
    let codes = match cache {
        Scalar::U8 => Fill::Whole(0, 256),
        _ => Fill::Whole(-127, 128),
    };
    let case = match cache {
        Scalar::I8 | Scalar::U8 => [
            (1, exact(keys)),
            (2, codes.clone()),
            (3, Fill::Uniform(0.0, 0.02)),
        ]
        .into_iter()
        .chain([
            (4, exact(values)),
            (5, codes),
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
    for cache in [Scalar::F32, Scalar::I8, Scalar::U8] {
        out.push(group_of(4, 2, [32, 64], cache, ONE));
        out.push(group_of(4, 2, [64, 32], cache, FEW));
    }
    out.push(group_of(14, 2, [32, 40], Scalar::F16, ONE));
    out.push(group_of(6, 3, [24, 32], Scalar::F16, FEW));
    out
}

/// Prefills over quantised caches, which may be dequantised to f16: 8 and 4 bits, e4m3, full
/// attention, a sliding window, sinks; more tokens than a tile has.
pub fn quantised_prompts() -> Vec<Case> {
    let steps: &[(usize, usize)] = &[(0, 1), (0, 70), (130, 66)];
    let sees = |window, sinks| Sight {
        window,
        sinks,
        ..ALL
    };
    vec![
        group_seeing(ALL, 4, 2, [64, 32], Scalar::I8, steps),
        group_seeing(sees(Some(40), false), 4, 2, [32, 64], Scalar::I8, steps),
        group_seeing(sees(Some(100), true), 4, 4, [32, 32], Scalar::U8, steps),
        e4m3_cache(sees(None, true), steps),
        e4m3_cache(sees(Some(33), false), &[(0, 9), (60, 9), (182, 18)]),
        e4m3_cache(ALL, ONE),
    ]
}

/// Grouped-query attention over an e4m3 cache, of four heads and two groups.
fn e4m3_cache(sight: Sight, steps: &[(usize, usize)]) -> Case {
    let (rows, width) = (200, 64);
    let tokens = steps.iter().map(|s| s.1).max().unwrap_or(1);
    let vars: Vec<[(&'static str, i64); 2]> = steps
        .iter()
        .map(|&(p, n)| [("pos", p as i64), ("n", n as i64)])
        .collect();
    let vars: Vec<&[(&'static str, i64)]> = vars
        .iter()
        .map(|v| if tokens == 1 { &v[..1] } else { &v[..] })
        .collect();
    let name = format!("cache of e4m3, {tokens} tokens{}", sight.words());
    Case::new(name, |c| {
        let pos = c.var("pos", 0, rows - tokens);
        let n = match tokens {
            1 => c.int(1),
            _ => c.var("n", 1, tokens),
        };
        let q = c.input("q", dims![n, 4, width / 2], Scalar::F32);
        let cached = |what: &'static str| {
            let row = c.input(what, dims![n, width], Scalar::F32);
            let state = c
                .state(what, dims![rows, width], Scalar::U8)
                .assign(row.encode_e4m3(), pos);
            c.output_state(state);
            state.decode_e4m3().reshape(dims![rows, 2, width / 2])
        };
        let (k, v) = (cached("keys"), cached("values"));
        c.output("y", sight.attend(c, q, [k, v], [pos, n], 0.2));
    })
    // Codes of either sign up to 1.875.
    .fill(2, Fill::Whole(0, 64))
    .fill(4, Fill::Whole(128, 192))
    .vars(&vars)
    .within(Within::Scale(2e-3))
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
