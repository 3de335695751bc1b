//! Recurrences of one and several tokens, with and without rates, and self-referential states.
//!
//! Chunks are full, partial or have one token.

use crate::harness::{Case, Fill, Within};
use gristmill_tensor::dims;
use gristmill_tensor::tensor::{Recurrence, Tensor};
use gristmill_uop::Scalar;

/// A scan over heads with a state `[values, keys]` each; steps are numbers of tokens.
fn scan([heads, values, keys]: [usize; 3], rates: bool, steps: &[usize]) -> Case {
    let most = steps.iter().copied().max().unwrap_or(1);
    let vars: Vec<[(&'static str, i64); 1]> = steps.iter().map(|&n| [("n", n as i64)]).collect();
    let vars: Vec<&[(&'static str, i64)]> = vars
        .iter()
        .map(|v| if most == 1 { &v[..0] } else { &v[..] })
        .collect();
    let name = format!(
        "{most} tokens, {heads} heads of {values} by {keys}{}",
        if rates { ", rates" } else { "" }
    );
    // Keys have at most unit length, or the state would grow. Slots are numbered in order of
    // creation.
    let length = 1.0 / (keys as f64).sqrt();
    let case = Case::new(name, |c| {
        let state = c.state("state", dims![heads, values, keys], Scalar::F32);
        let n = if most == 1 {
            c.int(1)
        } else {
            c.var("n", 1, most)
        };
        let of_keys = dims![n, heads, keys];
        let queries = c.input("queries", of_keys, Scalar::F32);
        let keys = c.input("keys", of_keys, Scalar::F32);
        let values = c.input("values", dims![n, heads, values], Scalar::F32);
        let gates = c.input("gates", dims![n, heads], Scalar::F32);
        let rates = rates.then(|| c.input("rates", dims![n, heads], Scalar::F32));
        let (read, left) = Recurrence {
            queries,
            keys,
            values,
            gates,
            rates,
        }
        .scan(state);
        c.output("read", read);
        c.output_state(state.assign(left, c.int(0)));
    });
    let case = case
        .fill(2, Fill::Uniform(-length, length))
        .fill(4, Fill::Uniform(-2.0, 0.0));
    let case = if rates {
        case.fill(5, Fill::Uniform(0.0, 1.0))
    } else {
        case
    };
    case.vars(&vars).within(Within::Scale(1e-5))
}

/// Repeated equal keys with little decay and rates of 1, then decays that clear the state.
///
/// The inverse in a chunk is then as far from the identity as possible.
fn repeated(gate: f64) -> Case {
    let case = scan([1, 4, 4], true, &[64]).renamed(&format!("gates of {gate}"));
    case.fill(2, Fill::Values(vec![0.5]))
        .fill(4, Fill::Values(vec![gate, -1e-4]))
        .fill(5, Fill::Values(vec![1.0]))
}

/// The last `kept` rows of a state followed by at most `most` new tokens.
fn window(kept: usize, most: usize) -> Case {
    Case::new(format!("a window of {kept}, {most} tokens"), |c| {
        let state = c.state("state", dims![kept, 20], Scalar::F32);
        let n = if most == 1 {
            c.int(1)
        } else {
            c.var("n", 1, most)
        };
        let x = c.input("x", dims![n, 20], Scalar::F32);
        let all = Tensor::cat(&[state, x], 0);
        let sum = (0..=kept)
            .map(|j| all.slice(0, j, n))
            .reduce(|a, b| a * 0.5 + b);
        c.output("y", sum.expect("one at least"));
        c.output_state(state.assign(all.slice(0, n, kept), c.int(0)));
    })
    .vars(if most == 1 {
        &[&[]]
    } else {
        &[&[("n", 1)], &[("n", 2)], &[("n", 6)]]
    })
}

pub fn cases() -> Vec<Case> {
    let own = Case::new("a state from itself", |c| {
        let state = c.state("state", dims![6, 40], Scalar::F32);
        c.output_state(state.assign(state * state + 1.0, c.int(0)));
    });
    let turned = Case::new("a state from its other rows", |c| {
        let state = c.state("state", dims![40, 40], Scalar::F32);
        c.output_state(state.assign(state.permute(&[1, 0]) * 0.5, c.int(0)));
    });
    vec![
        scan([2, 5, 8], true, &[1]),
        scan([2, 16, 16], false, &[1]),
        scan([2, 5, 8], true, &[1, 4, 7]),
        scan([2, 5, 8], false, &[1, 4, 7]),
        scan([2, 8, 8], true, &[1, 33, 70]),
        scan([3, 4, 8], false, &[32, 64]),
        repeated(-1e-3),
        repeated(-60.0),
        window(3, 1),
        window(3, 6),
        own,
        turned,
    ]
}
