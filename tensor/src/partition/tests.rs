use super::*;
use crate::dims;
use crate::evaluate::{Env, HostArray, evaluate_all};
use crate::function::Capture;
use crate::nn::{Dispatch, Glu, rms_norm, top_k};
use crate::tensor::Tensor;
use gristmill_encodings::by_name;
use gristmill_uop::function::SlotKind;
use rustc_hash::FxHashMap;

const WIDTH: usize = 16;
const FF: usize = 24;
const EXPERTS: usize = 6;

/// A layer with a state, a router, experts and a shared expert, for up to `max` tokens.
fn layer(max: usize, tile: Option<usize>) -> Function {
    let c = Capture::new("layer");
    let n = if max == 1 {
        c.int(1)
    } else {
        c.var("n", 1, max)
    };
    let f32s = by_name("f32").unwrap();
    let weight = |name: &str, dims: &[usize]| c.weight(name, dims, f32s);
    let x = c.input("x", dims![n, WIDTH], Scalar::F32);
    let state = c.state("kept", dims![max, WIDTH], Scalar::F32);
    let kept = state.assign(x * 0.5, c.int(0));
    let x = x + kept
        .slice(0, 0, n)
        .linear(weight("attention", &[WIDTH, WIDTH]));
    let y = rms_norm(x, weight("norm", &[WIDTH]), 1e-6);
    let scores = y.linear(weight("router", &[EXPERTS, WIDTH])).sigmoid();
    let chosen = top_k(scores, 2);
    let weights = chosen.select(scores);
    let sent = Dispatch::new(chosen.index, n, max, EXPERTS, tile);
    let rows = sent.spread(y);
    let of = |x: Tensor<'_>, name: &str, dims: [usize; 2]| {
        let matrices = weight(name, &[EXPERTS, dims[0], dims[1]]);
        x.contract(sent.of_experts(matrices)).id()
    };
    let [gate, up] = ["gate_exps", "up_exps"].map(|name| c.tensor(of(rows, name, [FF, WIDTH])));
    let down = c.tensor(of(Glu::Swiglu.apply(gate, up), "down_exps", [WIDTH, FF]));
    let routed = sent.combine(down, weights);
    let shared = y.linear(weight("shared", &[WIDTH, WIDTH])).silu();
    c.output_state(kept);
    c.output("y", x + (routed + shared));
    c.finish()
}

/// Values of every slot: small and all different.
fn data(function: &Function) -> Vec<Vec<f64>> {
    let of = |(slot, s): (usize, &gristmill_uop::function::Slot)| {
        let count = s.dims.iter().product::<i64>();
        let value = |i: i64| f64::from(((i * 37 + slot as i64 * 11) % 101) as f32 / 101.0 - 0.5);
        (0..count).map(value).collect()
    };
    function.slots.iter().enumerate().map(of).collect()
}

/// Evaluates outputs; packed slots are f32 rows.
fn run(function: &Function, data: &[&[f64]], n: i64) -> Vec<HostArray> {
    let bytes: Vec<Vec<u8>> = data
        .iter()
        .map(|d| d.iter().flat_map(|&v| (v as f32).to_le_bytes()).collect())
        .collect();
    let mut env = Env::new().var("n", n);
    for (slot, s) in function.slots.iter().enumerate() {
        env = match s.kind {
            SlotKind::Weight => env.packed(slot as u32, &bytes[slot]),
            SlotKind::Output => env,
            _ => env.values(slot as u32, data[slot]),
        };
    }
    let roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
    evaluate_all(&function.graph, &roots, &env)
}

fn away(function: &Function) -> impl Fn(u32) -> bool {
    |slot| function.slots[slot as usize].name.ends_with("_exps")
}

#[test]
fn parts_compute_what_the_whole_computes() {
    for (max, tile) in [(1, None), (5, None), (5, Some(2))] {
        let whole = layer(max, tile);
        let n = max as i64;
        let mut all = data(&whole);
        // An input has as many rows as the step.
        all[0].truncate(max * WIDTH);
        let slices: Vec<&[f64]> = all.iter().map(Vec::as_slice).collect();
        let want = run(&whole, &slices, n);
        let partition = partition(&whole, Cut::at(&away(&whole))).unwrap();
        let mut values: FxHashMap<usize, Vec<f64>> = FxHashMap::default();
        let mut results: FxHashMap<u32, Vec<f64>> = FxHashMap::default();
        for part in &partition.parts {
            let empty: &[f64] = &[];
            let inputs: Vec<&[f64]> = part
                .slots
                .iter()
                .map(|slot| match slot {
                    PartSlot::Whole(slot) => &all[*slot as usize][..],
                    PartSlot::Value(number) => values.get(number).map_or(empty, |v| &v[..]),
                })
                .collect();
            let made = run(&part.function, &inputs, n);
            for ((slot, _), made) in part.function.outputs.iter().zip(made) {
                match part.slots[*slot as usize] {
                    PartSlot::Whole(slot) => results.insert(slot, made.data),
                    PartSlot::Value(number) => values.insert(number, made.data),
                };
            }
        }
        for ((slot, _), want) in whole.outputs.iter().zip(want) {
            assert_eq!(results[slot], want.data, "slot {slot} of {max} tokens");
        }
    }
}

#[test]
fn experts_get_rows_indices_and_weights_and_return_a_row_per_token() {
    let whole = layer(5, Some(2));
    let partition = partition(&whole, Cut::at(&away(&whole))).unwrap();
    let names: Vec<&str> = partition.parts.iter().map(|p| &*p.function.name).collect();
    assert_eq!(
        names,
        ["layer.before", "layer.beside", "layer.away", "layer.after"]
    );
    let of = |part: &Part, kind| -> Vec<Vec<i64>> {
        let slots = part.function.slots.iter().zip(&part.slots);
        slots
            .filter(|(slot, origin)| slot.kind == kind && matches!(origin, PartSlot::Value(_)))
            .map(|(slot, _)| slot.dims.clone())
            .collect()
    };
    let experts = partition.parts.iter().find(|p| p.is_away).unwrap();
    let mut read = of(experts, SlotKind::Input);
    read.sort();
    assert_eq!(read, [vec![5, 2], vec![5, 2], vec![5, WIDTH as i64]]);
    assert_eq!(of(experts, SlotKind::Output), [vec![5, WIDTH as i64]]);
    // Only the experts' weights are away, and all of them.
    let weights = |part: &Part| -> Vec<String> {
        let slots = part.function.slots.iter();
        slots
            .filter(|s| s.kind == SlotKind::Weight)
            .map(|s| s.name.clone())
            .collect()
    };
    for part in &partition.parts {
        for name in weights(part) {
            assert_eq!(name.ends_with("_exps"), part.is_away, "{name}");
        }
    }
    assert_eq!(weights(experts).len(), 3);
    // What is beside them reads no value that they write.
    let beside = &partition.parts[1];
    assert_eq!(weights(beside), ["shared"]);
    assert_eq!(of(beside, SlotKind::Input), [vec![5, WIDTH as i64]]);
}

#[test]
fn a_product_with_a_weight_that_is_away_is_a_result_there() {
    let c = Capture::new("head");
    let n = c.var("n", 1, 5);
    let f32s = by_name("f32").unwrap();
    let x = c.input("x", dims![n, WIDTH], Scalar::F32);
    let y = rms_norm(x, c.weight("norm", &[WIDTH], f32s), 1e-6);
    c.output(
        "logits",
        y.linear(c.weight("output_exps", &[3 * WIDTH, WIDTH], f32s)),
    );
    let whole = c.finish();
    let Partition { parts, values } = partition(&whole, Cut::at(&away(&whole))).unwrap();
    let names: Vec<&str> = parts.iter().map(|p| &*p.function.name).collect();
    assert_eq!(names, ["head.before", "head.away"]);
    let dims: Vec<_> = values.iter().map(|value| value.dims.clone()).collect();
    assert_eq!(dims, [[5, WIDTH as i64]]);
    let logits = whole.outputs[0].0;
    let last = &parts[1];
    assert!(last.slots.contains(&PartSlot::Whole(logits)));
}

#[test]
fn results_that_would_pass_twice_have_no_partition() {
    let c = Capture::new("chain");
    let f32s = by_name("f32").unwrap();
    let x = c.input("x", dims![1, 64], Scalar::F32);
    let near = c.weight("near", &[64, 64], f32s);
    let far = c.weight("far", &[64, 64], f32s);
    // The weight that stays is read between two products of the one that does not.
    let middle = x.linear(far).linear(near);
    c.output("middle", middle);
    c.output("y", x + middle.linear(far));
    let f = c.finish();
    let is_far = |slot: u32| f.slots[slot as usize].name == "far";
    assert!(partition(&f, Cut::at(&is_far)).is_none());
}
