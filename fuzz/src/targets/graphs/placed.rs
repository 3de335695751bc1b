//! Functions cut in parts for two devices compute what the whole computes.

use super::harness::{Case, Run, runs};
use crate::bytes::FuzzInput;
use gristmill_tensor::evaluate::{Env, evaluate_all};
use gristmill_tensor::partition::{Cut, Part, PartSlot, Partition, partition};
use gristmill_uop::Id;
use gristmill_uop::function::{SlotKind, Storage};
use std::collections::HashMap;

/// Draws which weights of a function are away, and checks the parts with the f64 evaluator. Not
/// every choice has parts: results may have to pass twice.
pub fn check(bytes: &mut FuzzInput, case: &Case) {
    let whole = &case.function;
    let drawn: Vec<bool> = whole
        .slots
        .iter()
        .map(|slot| slot.kind == SlotKind::Weight && bytes.below(2) == 1)
        .collect();
    if !drawn.contains(&true) {
        return;
    }
    let early: Vec<bool> = whole.slots.iter().map(|_| bytes.below(4) == 1).collect();
    let by = Cut {
        is_away: &|slot| drawn[slot as usize],
        is_early: &|slot| early[slot as usize],
    };
    let Some(parts) = partition(whole, by) else {
        return;
    };
    for part in &parts.parts {
        for (slot, origin) in part.function.slots.iter().zip(&part.slots) {
            if let (SlotKind::Weight, PartSlot::Whole(of)) = (slot.kind, origin) {
                assert_eq!(drawn[*of as usize], part.is_away, "{}", slot.name);
            }
        }
    }
    for run in runs(case) {
        compare(&parts, &run);
    }
}

fn compare(parts: &Partition, run: &Run) {
    let mut values: HashMap<usize, Vec<f64>> = HashMap::new();
    let mut results: HashMap<u32, Vec<f64>> = HashMap::new();
    for part in &parts.parts {
        let made = evaluate(part, run, &values);
        for ((slot, _), data) in part.function.outputs.iter().zip(made) {
            match part.slots[*slot as usize] {
                PartSlot::Whole(slot) => results.insert(slot, data),
                PartSlot::Value(number) => values.insert(number, data),
            };
        }
    }
    for (slot, want, _) in &run.want {
        let same = |(a, b): (&f64, &f64)| a == b || a.is_nan() && b.is_nan();
        let found = &results[slot];
        assert_eq!(found.len(), want.data.len(), "slot {slot}");
        assert!(
            found.iter().zip(&want.data).all(same),
            "slot {slot}: {found:?}, and {:?} as a whole",
            want.data
        );
    }
}

/// Evaluates a part, with the values of the parts before it.
fn evaluate(part: &Part, run: &Run, values: &HashMap<usize, Vec<f64>>) -> Vec<Vec<f64>> {
    let mut env = Env::new();
    for &(name, value) in &run.vars {
        env = env.var(name, value);
    }
    for (number, (slot, origin)) in part.function.slots.iter().zip(&part.slots).enumerate() {
        let number = number as u32;
        env = match (origin, slot.storage) {
            (PartSlot::Whole(of), Storage::Packed(_)) => {
                env.packed(number, &run.before[*of as usize])
            }
            (PartSlot::Whole(of), _) => env.values(number, &run.values[*of as usize]),
            (PartSlot::Value(of), _) => match values.get(of) {
                Some(data) => env.values(number, data),
                None => env,
            },
        };
    }
    let roots: Vec<Id> = part.function.outputs.iter().map(|o| o.1).collect();
    let all = evaluate_all(&part.function.graph, &roots, &env);
    all.into_iter().map(|array| array.data).collect()
}
