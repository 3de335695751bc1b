//! Compares gradients of gather and scatter-add with finite differences.

use gristmill_tensor::evaluate::{Env, HostArray, evaluate};
use gristmill_tensor::function::Capture;
use gristmill_tensor::tensor::Tensor;
use gristmill_tensor::{dims, nn};
use gristmill_uop::Scalar;

const ROWS: usize = 5;
const WIDTH: usize = 3;
/// Some rows are chosen several times, some never.
const CHOSEN: [f64; 8] = [3.0, 0.0, 3.0, 4.0, 0.0, 3.0, 1.0, 4.0];

/// Evaluates a function of `x` (slot 0), the index (slot 1) and `v` (slot 2).
fn value(of: impl Fn([Tensor<'_>; 3]) -> u32, x: &[f64], v: &[f64]) -> HostArray {
    let c = Capture::new("loss");
    let inputs = [
        c.input("x", dims![ROWS, WIDTH], Scalar::F32),
        c.input("index", dims![CHOSEN.len()], Scalar::I32),
        c.input("v", dims![CHOSEN.len(), WIDTH], Scalar::F32),
    ];
    let inputs = [inputs[0], inputs[1].clamp_index(ROWS - 1), inputs[2]];
    let slot = of(inputs);
    let f = c.finish();
    let root = f.outputs.iter().find(|o| o.0 == slot).expect("an output").1;
    evaluate(
        &f.graph,
        root,
        &Env::new().values(0, x).values(1, &CHOSEN).values(2, v),
    )
}

fn numbers(n: usize) -> Vec<f64> {
    (0..n)
        .map(|i| ((i * 37 + 11) % 17) as f64 / 17.0 - 0.5)
        .collect()
}

/// Central differences of a loss with respect to each element of its argument.
fn differences(at: &[f64], loss: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    const STEP: f64 = 1e-4;
    let shifted = |i: usize, by: f64| {
        let mut x = at.to_vec();
        x[i] += by;
        loss(&x)
    };
    (0..at.len())
        .map(|i| (shifted(i, STEP) - shifted(i, -STEP)) / (2.0 * STEP))
        .collect()
}

fn assert_near(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len());
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        assert!((g - w).abs() < 1e-6, "element {i}: {g} should be {w}");
    }
}

/// The loss Σ e^rows·v of gathered rows: the gradient of the table is a scatter-add.
#[test]
fn of_chosen_rows_rows_are_added() {
    let (x, v) = (numbers(ROWS * WIDTH), numbers(CHOSEN.len() * WIDTH));
    let loss = |x: &[f64]| {
        value(
            |[x, index, v]| {
                x.capture()
                    .output("loss", (x.gather(index).exp() * v).sum(&[0, 1]))
            },
            x,
            &v,
        )
        .data[0]
    };
    let gradient = |[x, index, v]: [Tensor<'_>; 3]| {
        let dy = x.gather(index).exp() * v;
        x.capture()
            .output("dx", nn::embedding_gradient(dy, index, ROWS))
    };
    let got = value(gradient, &x, &v);
    assert_eq!(got.dims, [ROWS, WIDTH]);
    assert!(
        got.data[2 * WIDTH..3 * WIDTH].iter().all(|&d| d == 0.0),
        "a row that nobody chose"
    );
    assert_near(&got.data, &differences(&x, loss));
}

/// The loss Σ e^(x + scattered rows): the gradient of the scattered rows is a gather.
#[test]
fn of_added_rows_rows_are_chosen() {
    let (x, v) = (numbers(ROWS * WIDTH), numbers(CHOSEN.len() * WIDTH));
    let loss = |v: &[f64]| {
        value(
            |[x, index, v]| {
                x.capture()
                    .output("loss", x.scatter_add(v, index).exp().sum(&[0, 1]))
            },
            &x,
            v,
        )
        .data[0]
    };
    let gradient = |[x, index, v]: [Tensor<'_>; 3]| {
        x.capture()
            .output("dv", x.scatter_add(v, index).exp().gather(index))
    };
    assert_near(&value(gradient, &x, &v).data, &differences(&v, loss));
}
