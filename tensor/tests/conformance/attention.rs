//! Attention over a KV cache: shared and separate KV heads, masks, full, partial and empty chunks.

#[path = "attention/groups.rs"]
mod groups;
#[path = "attention/int8.rs"]
mod int8;
#[path = "attention/latent.rs"]
mod latent;

pub use groups::{grouped, grouped_halves, quantised_prompts};
pub use int8::integers;
pub use latent::{deep, every_head, halves, long_prompts, prompts};

use crate::harness::{Case, Within};
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::Scalar;
use gristmill_uop::shape::Scoring;
use groups::group_seeing;
use int8::bytes;
use latent::{absorbed_seeing, latent, prompt};

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
