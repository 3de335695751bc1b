//! Packed weights: every encoding of the table, in every kind of contraction.

use crate::harness::{Case, Fill, Within};
use crate::{experts, invented, network};
use gristmill_encodings::{Q4_0, TABLE, by_name};
use gristmill_tensor::dims;
use gristmill_uop::fragment::Fragment;
use gristmill_uop::target::Target;
use gristmill_uop::{EncodingRef, Scalar};

/// Row length of at least two blocks that is a multiple of 32, the step of integer products.
fn row(e: EncodingRef) -> usize {
    let two = 2 * e.elements.max(32);
    (1..)
        .map(|n| n * two)
        .find(|n| n % 32 == 0)
        .expect("a multiple")
}

/// Dequantisation, which is bit-exact.
pub fn decoding() -> Vec<Case> {
    let decode = |e: &EncodingRef| decoding_of(e);
    TABLE.iter().map(decode).collect()
}

pub fn decoding_of(e: EncodingRef) -> Case {
    Case::new(format!("decode {}", e.name), |c| {
        c.output("w", c.weight("w", &[5, row(e)], e));
    })
    .within(Within::Exact)
}

/// `[t, in] x [rows, in]`, with one token or a variable number of at most 13.
pub fn contraction(e: EncodingRef, rows: usize, many: bool) -> Case {
    let case = Case::new(
        format!(
            "{} rows of {}, {}",
            rows,
            e.name,
            if many { "n tokens" } else { "a token" }
        ),
        |c| {
            let n = if many { c.var("n", 1, 13) } else { c.int(1) };
            let x = c.input("x", dims![n, row(e)], Scalar::F32);
            c.output("y", x.linear(c.weight("w", &[rows, row(e)], e)));
        },
    );
    if many {
        case.vars(&[&[("n", 1)], &[("n", 5)], &[("n", 8)], &[("n", 13)]])
    } else {
        case
    }
}

pub fn matvec() -> Vec<Case> {
    TABLE.iter().map(|e| contraction(e, 64, false)).collect()
}

pub fn matmul() -> Vec<Case> {
    TABLE.iter().map(|e| contraction(e, 32, true)).collect()
}

/// Row counts that no tile divides.
pub fn odd_rows() -> Vec<Case> {
    let mut out = Vec::new();
    for e in TABLE
        .iter()
        .copied()
        .filter(|e| ["f32", "f16", "q8_0", "q4_0", "q4_k", "q6_k"].contains(&e.name))
    {
        for rows in [1, 6, 33] {
            out.push(contraction(e, rows, false));
            out.push(contraction(e, rows, true));
        }
    }
    // Rows with a number of steps that threads do not divide, and enough rows for threads to share
    // one.
    for e in TABLE
        .iter()
        .copied()
        .filter(|e| ["q8_0", "q4_0"].contains(&e.name))
    {
        out.push(Case::new(
            format!("2048 rows of 22 blocks of {}", e.name),
            |c| {
                let x = c.input("x", dims![1, 704], Scalar::F32);
                c.output("y", x.linear(c.weight("w", &[2048, 704], e)));
            },
        ));
    }
    // Rows that vectors do not divide: a plain encoding permits any length.
    for e in TABLE.iter().copied().filter(|e| e.elements == 1) {
        for n in [1, 7, 24, 40, 100] {
            out.push(Case::new(format!("{n} columns of {}", e.name), |c| {
                let x = c.input("x", dims![1, n], Scalar::F32);
                c.output("y", x.linear(c.weight("w", &[10, n], e)));
            }));
        }
    }
    out
}

/// Dequantised rows chosen by an index: an embedding.
pub fn gather() -> Vec<Case> {
    TABLE
        .iter()
        .flat_map(|e| [embedding(e, 20), experts_of(e, 6)])
        .collect()
}

fn embedding(e: EncodingRef, rows: usize) -> Case {
    Case::new(format!("embedding of {}", e.name), |c| {
        let n = c.var("n", 1, 9);
        let tokens = c.input("tokens", dims![n], Scalar::I32);
        c.output(
            "x",
            c.weight("w", &[rows, row(e)], e)
                .gather(tokens.clamp_index(rows - 1)),
        );
    })
    .fill(0, Fill::Whole(-5, rows as i64 + 5))
    .vars(&[&[("n", 1)], &[("n", 9)]])
    .within(Within::Exact)
}

fn experts_of(e: EncodingRef, rows: usize) -> Case {
    Case::new(format!("experts of {}", e.name), |c| {
        let index = c.input("index", dims![3], Scalar::I32);
        let x = c.input("x", dims![1, row(e)], Scalar::F32);
        c.output(
            "y",
            x.contract(c.weight("w", &[4, rows, row(e)], e).gather(index)),
        );
    })
    .fill(0, Fill::Values(vec![2.0, 0.0, 3.0]))
}

/// Integer contractions of every format, with row counts that vectors divide and others.
pub fn integer() -> Vec<Case> {
    let mut out = Vec::new();
    for &e in TABLE.iter().filter(|e| e.elements > 1) {
        for (rows, many) in [(64, false), (32, true), (33, false), (16, true)] {
            out.push(contraction(e, rows, many).renamed("integers"));
        }
        out.push(embedding(e, 32).renamed("interleaved"));
        out.push(experts_of(e, 16).renamed("interleaved"));
    }
    out
}

/// Integer contractions of every format whose activations have a scale per few elements: of one
/// token, of several, by chosen experts.
pub fn fine() -> Vec<Case> {
    let formats = TABLE.iter().copied().filter(|e| e.elements > 1);
    let cases = formats.enumerate().flat_map(|(i, e)| {
        let other = match i % 2 {
            0 => contraction(e, 16, true),
            _ => experts_of(e, 16),
        };
        [contraction(e, 64, false), other]
    });
    cases.map(|case| case.renamed("fine integers")).collect()
}

/// Contractions with enough tokens for bf16 tiles, of every format; tokens fill no tile, some, or
/// all.
pub fn tiles() -> Vec<Case> {
    let blocks = TABLE.iter().copied().filter(|e| e.elements > 1);
    let mut out: Vec<Case> = blocks.map(|e| prompt(e, 32)).collect();
    out.push(prompt(&Q4_0, 208));
    out.push(experts::grouped_by(&Q4_0, 32, 40).renamed("by 32"));
    out.push(prompt(by_name("bf16").expect("an encoding"), 48));
    // One product for each sum of the last matrix, without a loop over terms.
    out.push(experts::grouped_of([128, 32], &Q4_0, 64, 150).renamed("by 64, one product"));
    out
}

/// Contractions large enough that several warps of a GPU share columns.
///
/// Alone, two with one input, over token tiles with data-dependent weights, and with weights per
/// head.
pub fn shared_columns() -> Vec<Case> {
    let formats =
        ["q4_0", "q6_k", "q4_k", "iq4_nl"].map(|name| by_name(name).expect("an encoding"));
    let mut out: Vec<Case> = formats
        .into_iter()
        .map(|e| prompt_of(e, [256, 512, 200]))
        .collect();
    // With tiles of 64 and 128 tokens, the last columns of 40 and 65 repeat the last token in all
    // lanes.
    let sizes = [
        [768, 256, 130],
        [512, 192, 144],
        [256, 256, 40],
        [256, 256, 65],
    ];
    out.extend(sizes.map(|sizes| prompt_of(&Q4_0, sizes)));
    out.push(gate_and_up([256, 256, 160]));
    out.push(experts::grouped_of([256, 256], &Q4_0, 64, 150).renamed("by 64"));
    out.push(experts::grouped_of([256, 128], &Q4_0, 32, 150).renamed("by 32"));
    out
}

/// Prefill with subgroup matrix products: several formats, weights and experts.
///
/// Token counts are no multiple of a matrix, row counts no multiple of a workgroup.
pub fn matrices() -> Vec<Case> {
    let formats =
        ["q4_0", "q6_k", "q4_k", "q8_0", "iq4_nl"].map(|name| by_name(name).expect("an encoding"));
    let mut out: Vec<Case> = formats
        .into_iter()
        .map(|e| with_bias(e, [64, 256, 48]))
        .collect();
    out.extend([[48, 128, 64], [144, 192, 32]].map(|sizes| with_bias(&Q4_0, sizes)));
    out.push(gate_and_up([96, 128, 64]));
    out.push(experts::grouped_of([128, 64], &Q4_0, 32, 50).renamed("matrices"));
    out
}

/// Workgroups of two warp groups, if the machine has warp-group MMA, and one unit.
///
/// One unit makes output tiles as large as possible.
pub fn with_groups(mut target: Target) -> Target {
    if target.machine.fragments.iter().any(Fragment::is_of_group) {
        target.threads = 256;
        target.machine.units = 1;
    }
    target
}

/// Prefill of at most `most` tokens with two weights `[rows, terms]`.
fn gate_and_up([rows, terms, most]: [usize; 3]) -> Case {
    Case::new(format!("gate and up, {most} tokens"), |c| {
        let n = c.var("n", 1, most);
        let x = c.input("x", dims![n, terms], Scalar::F32);
        let [gate, up] = ["gate", "up"].map(|name| x.linear(c.weight(name, &[rows, terms], &Q4_0)));
        c.output("y", gate.silu() * up);
    })
    .vars(&[&[("n", 33)], &[("n", most as i64)]])
}

/// Prefill of at most `most` tokens with a weight `[rows, terms]` and a bias.
///
/// The sums are not an output, so only the epilogue's rows are written.
fn with_bias(e: EncodingRef, [rows, terms, most]: [usize; 3]) -> Case {
    Case::new(
        format!(
            "{rows} rows of {terms} of {} with a bias, {most} tokens",
            e.name
        ),
        |c| {
            let n = c.var("n", 1, most);
            let x = c.input("x", dims![n, terms], Scalar::F32);
            let bias = c.input("bias", dims![rows], Scalar::F32);
            c.output("y", x.linear(c.weight("w", &[rows, terms], e)) + bias);
        },
    )
    .vars(&[&[("n", 5)], &[("n", most as i64)]])
}

/// Prefill of at most `most` tokens with a weight `[rows, terms]`.
fn prompt_of(e: EncodingRef, [rows, terms, most]: [usize; 3]) -> Case {
    Case::new(
        format!("{rows} rows of {terms} of {}, {most} tokens", e.name),
        |c| {
            let n = c.var("n", 1, most);
            let x = c.input("x", dims![n, terms], Scalar::F32);
            c.output("y", x.linear(c.weight("w", &[rows, terms], e)));
        },
    )
    .vars(&[&[("n", 5)], &[("n", most as i64)]])
}

fn prompt(e: EncodingRef, rows: usize) -> Case {
    Case::new(format!("{rows} rows of {}, a prompt", e.name), |c| {
        let n = c.var("n", 1, 128);
        let x = c.input("x", dims![n, row(e)], Scalar::F32);
        let bias = c.input("bias", dims![rows], Scalar::F32);
        c.output("y", x.linear(c.weight("w", &[rows, row(e)], e)) + bias);
    })
    .vars(&[&[("n", 1)], &[("n", 37)], &[("n", 128)]])
}

/// Contractions with the ops that surround them in a model.
pub fn integer_network() -> Vec<Case> {
    let all = network::cases()
        .into_iter()
        .chain(experts::one_token())
        .chain(experts::grouped())
        .chain(invented::cases());
    all.filter(Case::has_packed)
        .map(|c| c.renamed("integers"))
        .collect()
}

/// WGSL's tolerance accepts separate rounding and factored products, but not errors of 16 units.
#[test]
fn joined_products_are_right_and_others_are_not() {
    use crate::harness::accuracy::{NEAREST, WGSL, unit};
    use crate::{harness, invented};
    let case = decoding_of(invented::ALL[2]);
    let run = harness::runs(&case).swap_remove(0);
    let fused = WGSL
        .others(&case, &run)
        .pop()
        .expect("fused")
        .swap_remove(0)
        .1
        .data;
    let fused: Vec<f64> = fused.iter().map(|&v| f64::from(v as f32)).collect();
    assert_ne!(fused, run.want[0].1.data);
    assert!(NEAREST.wrong(&case, &run, 0, &fused, Scalar::F32).is_some());
    assert_eq!(WGSL.wrong(&case, &run, 0, &fused, Scalar::F32), None);
    let beside: Vec<f64> = fused.iter().map(|v| v + 16.0 * unit(*v)).collect();
    assert!(WGSL.wrong(&case, &run, 0, &beside, Scalar::F32).is_some());
}
