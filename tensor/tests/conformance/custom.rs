//! Kernels of the user's own, amid others: what is before and behind them is fused as ever, and they take turns with who reads and writes the same memory.

use crate::harness::{Case, Within};
use gristmill_tensor::tensor::Tensor;
use gristmill_tensor::{dims, nn};
use gristmill_uop::Scalar;
use gristmill_uop::custom::CustomKernel;

/// `gate / (1 + |gate|) · up`, by rows of `width` columns.
static GATED: CustomKernel = CustomKernel {
    name: "gated",
    texts: &[
        (
            "c",
            "for (i64 row = first; row < end; row++)
                for (i64 i = row * 96; i < row * 96 + 96; i++)
                    y[i] = gate[i] / (1.0f + (gate[i] < 0 ? -gate[i] : gate[i])) * up[i];",
        ),
        (
            "cuda",
            "for (i64 i = w * 96 + thread; i < w * 96 + 96; i += threads)
                y[i] = gate[i] / (1.0f + (gate[i] < 0 ? -gate[i] : gate[i])) * up[i];",
        ),
    ],
    output: "y",
    arguments: &["gate", "up"],
    operations: 4,
};

/// `factor · x`, where a step's variable is the factor; one workgroup.
static SCALED: CustomKernel = CustomKernel {
    name: "scaled",
    texts: &[
        ("c", "for (i64 i = 0; i < 6 * 40; i++) y[i] = x[i] * (f32)factor;"),
        ("cuda", "for (i64 i = thread; i < 6 * 40; i += threads) y[i] = x[i] * (f32)factor;"),
    ],
    output: "y",
    arguments: &["x", "factor"],
    operations: 1,
};

/// Known to no device.
static FOREIGN: CustomKernel =
    CustomKernel { name: "foreign", texts: &[("metal", "")], output: "y", arguments: &["x"], operations: 1 };

fn gated<'g>(gate: Tensor<'g>, up: Tensor<'g>, groups: Tensor<'g>) -> Tensor<'g> {
    let reference = gate / (gate.maximum(-gate) + 1.0) * up;
    reference.computed_by(&GATED, groups, &[gate, up])
}

/// A matrix of so many rows and columns, an input of that name, by each row of `x`.
fn product<'g>(x: Tensor<'g>, name: &str, [rows, columns]: [usize; 2]) -> Tensor<'g> {
    let w = x.capture().input(name, dims![1, rows, columns], Scalar::F32);
    (x.reshape(dims![x.dim(0), 1, columns]) * w).sum(&[2])
}

fn scaled<'g>(x: Tensor<'g>, by: Tensor<'g>) -> Tensor<'g> {
    (x * by.cast(Scalar::F32)).computed_by(&SCALED, x.capture().int(1), &[x, by])
}

/// A feed-forward whose middle is the user's: norm and products before, a product and the residual behind.
pub fn feed_forward(most: usize) -> Case {
    let case = Case::new(format!("a feed-forward, {most} tokens"), |c| {
        let n = if most == 1 { c.int(1) } else { c.var("n", 1, most) };
        let x = c.input("x", dims![n, 32], Scalar::F32);
        let normed = nn::rms_norm(x, c.input("norm", dims![32], Scalar::F32), 1e-5);
        let (gate, up) = (product(normed, "gate", [96, 32]), product(normed, "up", [96, 32]));
        let middle = gated(gate, up, n);
        c.output("y", product(middle, "down", [32, 96]) + x);
    });
    if most == 1 { case } else { case.vars(&[&[("n", 1)], &[("n", 3)], &[("n", most as i64)]]) }
        .within(Within::Scale(1e-5))
}

/// A user's kernel amid chains of elementwise ops, the one behind it with a value of the one before.
pub fn amid_elementwise() -> Case {
    Case::new("amid elementwise ops", |c| {
        let [x, y] = ["x", "y"].map(|name| c.input(name, dims![6, 40], Scalar::F32));
        let before = (x * y + 1.0).silu() - y * 2.0;
        let own = scaled(before.maximum(x), c.var("factor", 0, 9));
        c.output("out", ((own + before) * x).sigmoid() - own);
    })
    .vars(&[&[("factor", 3)], &[("factor", 0)]])
}

pub fn cases() -> Vec<Case> {
    // It reads a state as it was, beside a kernel that writes it; then its result, and its result again.
    let state = Case::new("a state as it was", |c| {
        let state = c.state("state", dims![6, 40], Scalar::F32);
        let x = c.input("x", dims![6, 40], Scalar::F32);
        let factor = c.var("factor", 0, 9);
        let before = scaled(state, factor);
        c.output("before", before);
        c.output("again", scaled(before + x, factor) + before);
        c.output_state(state.assign(x, c.int(0)));
    });
    // What it computes becomes the state that it read.
    let own = Case::new("a state from itself by a user's kernel", |c| {
        let state = c.state("state", dims![6, 40], Scalar::F32);
        let factor = c.var("factor", 0, 9);
        c.output_state(state.assign(scaled(state, factor) + 1.0, c.int(0)));
    });
    let reference = Case::new("a kernel without a text", |c| {
        let x = c.input("x", dims![6, 40], Scalar::F32);
        let y = (x * x + 1.0).computed_by(&FOREIGN, c.int(6), &[x]);
        c.output("y", y.sum(&[1]));
    });
    let factors: &[&[(&str, i64)]] = &[&[("factor", 3)], &[("factor", 0)]];
    vec![feed_forward(1), feed_forward(5), amid_elementwise(), state.vars(factors), own.vars(factors), reference]
}
