//! Tests of every part of experts against plain Rust, with random weights, for one row and several.

use super::*;
use crate::arch::CacheType;
use crate::arch::tensors::{Checked, TensorTable};
use crate::arch::{Bind, Functions, Logits, Options, Plan, Pools, StepBuilder, StepKind, Tensors};
use gristmill_encodings::F32;
use gristmill_tensor::dims;
use gristmill_tensor::evaluate::{Env, evaluate_all};
use gristmill_uop::dtype::Scalar;
use gristmill_uop::encoding::EncodingRef;
use std::collections::HashMap;

const D: usize = 8;
const FF: usize = 6;
const COUNT: usize = 8;
const USED: usize = 3;

/// Experts with the given optional tensors.
#[derive(Clone)]
struct Made {
    experts: Experts,
    has: &'static [&'static str],
}

fn made(gating: Gating, weighting: Weighting, has: &'static [&'static str]) -> Made {
    let routing = Routing {
        gating,
        groups: None,
        weighting,
        scale: 1.0,
    };
    let (count, used, ff) = (COUNT, USED, FF);
    Made {
        experts: Experts {
            count,
            used,
            ff,
            shared_ff: 0,
            routing,
            glu: Glu::Swiglu,
            needs: &[],
        },
        has,
    }
}

impl Tensors for Made {
    fn find(&self, name: &str) -> Option<(Vec<u64>, EncodingRef)> {
        self.has
            .contains(&name)
            .then(|| (Vec::new(), &F32 as EncodingRef))
    }
}

/// A tensor source that contains every tensor of a table.
struct Listed(HashMap<String, Vec<u64>>);

impl Tensors for Listed {
    fn find(&self, name: &str) -> Option<(Vec<u64>, EncodingRef)> {
        self.0
            .get(name)
            .map(|dims| (dims.clone(), &F32 as EncodingRef))
    }
}

/// Pseudo-random numbers between -1 and 1, seeded by a name.
fn random(name: &str, n: usize) -> Vec<f64> {
    let step = |h: u64, b: u8| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3);
    let mut state = name.bytes().fold(0xcbf2_9ce4_8422_2325, step);
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        f64::from(((state >> 40) as f32) / 8_388_608.0 - 1.0)
    };
    (0..n).map(|_| next()).collect()
}

/// Values of a tensor. Gates and ups are large enough to reach the clamps; the selection bias is
/// low enough that all biased scores are negative.
fn values(name: &str, n: usize) -> Vec<f64> {
    let scaled = |by: f64| {
        random(name, n)
            .into_iter()
            .map(|v| f64::from((v * by) as f32))
            .collect()
    };
    match name {
        "exp_probs_b.bias" => random(name, n)
            .into_iter()
            .map(|v| f64::from((v - 2.0) as f32))
            .collect(),
        name if name.contains("gate_exps.weight") || name.contains("up_exps.weight") => scaled(8.0),
        _ => scaled(1.0),
    }
}

/// Result of the captured function for the rows `router` (seen by the router) and
/// `x` (seen by experts).
fn computed(made: &Made, tokens: StepKind, router: &[f64], x: &[f64]) -> Vec<f64> {
    let mut table = TensorTable::new(made);
    made.experts.tensors(&mut table, D);
    let table = table.finish();
    let dims = |dims: &[usize]| dims.iter().rev().map(|&n| n as u64).collect();
    let listed = Listed(
        table
            .iter()
            .map(|t| (t.name.clone(), dims(&t.dims)))
            .collect(),
    );
    let checked = Checked::new(table, 0, &listed).expect("tensors");
    let options = Options {
        tokens,
        rows: 64,
        pools: Pools::from_pages(1),
        contiguous: true,
        depth: 64,
        cache: CacheType::F32,
        logits: Logits::None,
        tile: Options::TILE,
        cached: None,
        draft: None,
    };
    let mut functions = Functions::new();
    let mut step = StepBuilder::new("test", &options, &mut functions);
    step.call("moe", |s| {
        let rows = |name: &str, layer| {
            s.input(name, Bind::Hidden(layer), dims![s.tokens(), D], Scalar::F32)
        };
        let (router, x) = (rows("router", 0), rows("x", 1));
        // Same input for router and experts: uses the entry point that layers use.
        let same = made.experts.shared_ff > 0;
        let y = if same {
            experts(s, &made.experts, &checked.globals, x)
        } else {
            routed(s, &made.experts, &checked.globals, router, x)
        };
        s.output("y", Bind::Hidden(2), y);
    });
    evaluated(&step.finish(), router, x)
}

fn evaluated(plan: &Plan, router: &[f64], x: &[f64]) -> Vec<f64> {
    let call = &plan.calls[0];
    let bytes: Vec<Vec<u8>> = call
        .binds
        .iter()
        .zip(&call.function.slots)
        .map(|(bind, slot)| match bind {
            Bind::Weight(name) => {
                let n = slot.dims.iter().product::<i64>() as usize;
                values(name, n)
                    .iter()
                    .flat_map(|&v| (v as f32).to_le_bytes())
                    .collect()
            }
            _ => Vec::new(),
        })
        .collect();
    let mut env = Env::new().var("n", (x.len() / D) as i64);
    for (slot, bind) in call.binds.iter().enumerate() {
        env = match bind {
            Bind::Hidden(0) => env.values(slot as u32, router),
            Bind::Hidden(1) => env.values(slot as u32, x),
            _ => env.packed(slot as u32, &bytes[slot]),
        };
    }
    evaluate_all(&call.function.graph, &[call.function.outputs[0].1], &env)
        .remove(0)
        .data
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn softmax(x: &[f64]) -> Vec<f64> {
    let sum: f64 = x.iter().map(|v| v.exp()).sum();
    x.iter().map(|v| v.exp() / sum).collect()
}

/// Product `w [out, in] · x` of a matrix and a vector.
fn product(w: &[f64], x: &[f64]) -> Vec<f64> {
    w.chunks(x.len())
        .map(|row| row.iter().zip(x).map(|(a, b)| a * b).sum())
        .collect()
}

/// Experts of a row, best first, with their weights.
fn chosen(made: &Made, row: &[f64]) -> Vec<(usize, f64)> {
    let (r, has) = (&made.experts.routing, |name: &str| made.has.contains(&name));
    let mut logits = product(&values("ffn_gate_inp.weight", COUNT * D), row);
    if has("ffn_gate_inp.bias") {
        logits
            .iter_mut()
            .zip(values("ffn_gate_inp.bias", COUNT))
            .for_each(|(l, b)| *l += b);
    }
    let scores: Vec<f64> = match r.gating {
        Gating::Softmax => softmax(&logits),
        Gating::Sigmoid => logits.iter().map(|&l| sigmoid(l)).collect(),
        Gating::Raw => logits,
        Gating::SqrtSoftplus => logits.iter().map(|l| (1.0 + l.exp()).ln().sqrt()).collect(),
    };
    let mut biased = scores.clone();
    if has("exp_probs_b.bias") {
        biased
            .iter_mut()
            .zip(values("exp_probs_b.bias", COUNT))
            .for_each(|(s, b)| *s += b);
        assert!(
            biased.iter().all(|&b| b < 0.0),
            "groups that are out must lose to scores below 0: {biased:?}"
        );
    }
    let descending = |of: &[f64]| {
        let mut order: Vec<usize> = (0..of.len()).collect();
        order.sort_by(|&a, &b| of[b].total_cmp(&of[a]));
        order
    };
    if let Some((groups, kept)) = r.groups {
        let size = COUNT / groups;
        let best_two = |g: &[f64]| descending(g)[..2].iter().map(|&i| g[i]).sum::<f64>();
        let order = descending(&biased.chunks(size).map(best_two).collect::<Vec<_>>());
        order[kept..]
            .iter()
            .for_each(|g| biased[g * size..][..size].fill(f64::NEG_INFINITY));
    }
    let best = descending(&biased)[..USED].to_vec();
    let mut weights: Vec<f64> = best.iter().map(|&i| scores[i]).collect();
    match r.weighting {
        Weighting::Plain => (),
        Weighting::Normalised => {
            let sum = weights.iter().sum::<f64>().max(6.103515625e-5);
            weights.iter_mut().for_each(|w| *w /= sum);
        }
        Weighting::Softmax => weights = softmax(&weights),
    }
    best.into_iter()
        .zip(weights.into_iter().map(|w| w * r.scale))
        .collect()
}

fn gated(glu: Glu, gate: &[f64], up: &[f64]) -> Vec<f64> {
    let one = |g: f64, u: f64| match glu {
        Glu::Swiglu => g * sigmoid(g) * u,
        Glu::Geglu => {
            0.5 * g * (1.0 + (0.797_884_560_802_865_4 * (g + 0.044715 * g.powi(3))).tanh()) * u
        }
        Glu::GegluErf => unreachable!("a unit of text encoders, which have no experts"),
        Glu::ClampedSwiglu => {
            let (g, u) = (g.min(7.0), u.clamp(-7.0, 7.0));
            g * sigmoid(1.702 * g) * (u + 1.0)
        }
    };
    gate.iter().zip(up).map(|(&g, &u)| one(g, u)).collect()
}

/// Output of expert `e` for a row.
fn expert(made: &Made, e: usize, row: &[f64]) -> Vec<f64> {
    let has = |name: &str| made.has.contains(&name);
    let part = |name: &str, out: usize, inner: usize, x: &[f64]| {
        let (matrix, bias) = (format!("{name}.weight"), format!("{name}.bias"));
        let mut y = product(
            &values(&matrix, COUNT * out * inner)[e * out * inner..][..out * inner],
            x,
        );
        let scale = format!("{name}.scale");
        if has(&scale) {
            let scale = values(&scale, COUNT)[e];
            y.iter_mut().for_each(|y| *y *= scale);
        }
        if has(&bias) {
            y.iter_mut()
                .zip(&values(&bias, COUNT * out)[e * out..])
                .for_each(|(y, b)| *y += b);
        }
        y
    };
    let (gate, up) = if has("ffn_gate_up_exps.weight") {
        let both = part("ffn_gate_up_exps", 2 * FF, D, row);
        (both[..FF].to_vec(), both[FF..].to_vec())
    } else {
        (
            part("ffn_gate_exps", FF, D, row),
            part("ffn_up_exps", FF, D, row),
        )
    };
    part("ffn_down_exps", D, FF, &gated(made.experts.glu, &gate, &up))
}

/// Reference result in plain Rust.
fn expected(made: &Made, router: &[f64], x: &[f64]) -> Vec<f64> {
    let mut out = vec![0.0; D];
    for (e, weight) in chosen(made, router) {
        out.iter_mut()
            .zip(expert(made, e, x))
            .for_each(|(o, v)| *o += weight * v);
    }
    if made.experts.shared_ff > 0 {
        let of = |name: &str| values(name, made.experts.shared_ff * D);
        let (gate, up) = (
            product(&of("ffn_gate_shexp.weight"), x),
            product(&of("ffn_up_shexp.weight"), x),
        );
        let shared = product(
            &of("ffn_down_shexp.weight"),
            &gated(made.experts.glu, &gate, &up),
        );
        let gate = match made.has.contains(&"ffn_gate_inp_shexp.weight") {
            true => sigmoid(product(&values("ffn_gate_inp_shexp.weight", D), x)[0]),
            false => 1.0,
        };
        out.iter_mut().zip(shared).for_each(|(o, v)| *o += gate * v);
    }
    out
}

/// Checks one row, several rows, and a chunk with a single row.
fn check(name: &str, made: &Made) {
    // With two rows the choices do not exceed the number of experts, so there is no tiling.
    let chunk = |max| StepKind::Prefill { max };
    let ways = [
        (StepKind::Decode, 1),
        (chunk(2), 1),
        (chunk(2), 2),
        (chunk(9), 1),
        (chunk(9), 7),
    ];
    for (tokens, rows) in ways {
        let x = random("x", rows * D);
        let router = if made.experts.shared_ff > 0 {
            x.clone()
        } else {
            random("router", rows * D)
        };
        let found = computed(made, tokens, &router, &x);
        let expected: Vec<f64> = router
            .chunks(D)
            .zip(x.chunks(D))
            .flat_map(|(router, x)| expected(made, router, x))
            .collect();
        let largest = expected.iter().fold(0.0f64, |a, v| a.max(v.abs()));
        assert_eq!(found.len(), expected.len());
        for (f, e) in found.iter().zip(&expected) {
            assert!(
                (f - e).abs() < 1e-9 * largest,
                "{name}, {tokens:?} of {rows}: {f}, not {e}"
            );
        }
    }
}

#[test]
fn gatings_and_weightings() {
    for gating in [
        Gating::Softmax,
        Gating::Sigmoid,
        Gating::Raw,
        Gating::SqrtSoftplus,
    ] {
        for weighting in [Weighting::Plain, Weighting::Normalised, Weighting::Softmax] {
            check(
                &format!("{gating:?}, {weighting:?}"),
                &made(gating, weighting, &[]),
            );
        }
    }
}

#[test]
fn sigmoids_with_groups_a_bias_of_the_selection_and_a_factor() {
    let mut made = made(
        Gating::Sigmoid,
        Weighting::Normalised,
        &["exp_probs_b.bias"],
    );
    check("a bias", &made);
    (made.experts.routing.groups, made.experts.routing.scale) = (Some((4, 2)), 2.5);
    check("groups", &made);
}

#[test]
fn biases_everywhere_and_clamped_units() {
    let has: &[&str] = &[
        "ffn_gate_inp.bias",
        "ffn_gate_exps.bias",
        "ffn_up_exps.bias",
        "ffn_down_exps.bias",
    ];
    let mut made = made(Gating::Raw, Weighting::Softmax, has);
    made.experts.glu = Glu::ClampedSwiglu;
    check("biases", &made);
}

#[test]
fn gate_and_up_in_one_with_a_factor_for_each_expert() {
    let mut made = made(
        Gating::Softmax,
        Weighting::Normalised,
        &["ffn_gate_up_exps.weight", "ffn_down_exps.scale"],
    );
    made.experts.glu = Glu::Geglu;
    check("joined", &made);
    made.has = &[
        "ffn_gate_up_exps.weight",
        "ffn_gate_up_exps.bias",
        "ffn_down_exps.bias",
        "ffn_down_exps.scale",
    ];
    check("joined, with biases", &made);
}

#[test]
fn factors_of_gate_up_and_down_come_before_biases() {
    let has: &[&str] = &[
        "ffn_gate_exps.scale",
        "ffn_up_exps.scale",
        "ffn_up_exps.bias",
        "ffn_down_exps.scale",
    ];
    let mut made = made(Gating::Softmax, Weighting::Normalised, has);
    check("apart", &made);
    made.has = &[
        "ffn_gate_up_exps.weight",
        "ffn_gate_up_exps.scale",
        "ffn_down_exps.scale",
        "ffn_down_exps.bias",
    ];
    check("joined", &made);
}

#[test]
fn shared_experts_with_and_without_a_gate() {
    let mut made = made(Gating::Softmax, Weighting::Normalised, &[]);
    made.experts.shared_ff = 2 * FF;
    check("shared", &made);
    made.has = &["ffn_gate_inp_shexp.weight"];
    check("shared, gated", &made);
}
