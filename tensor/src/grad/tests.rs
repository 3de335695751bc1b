//! Rules of ops that no tensor handle makes.

use super::pullback;
use crate::capture::Capture;
use crate::dims;
use crate::evaluate::{Env, evaluate};
use crate::tensor::Tensor;
use gristmill_uop::custom::CustomKernel;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::{Arg, Op, Sources};

/// Gradients of `body(x, y, z)` with the seed 2, at x = 0.5, y = -1.5 and z = 3.
fn gradients(body: impl for<'g> Fn(&'g Capture, [Tensor<'g>; 3]) -> Tensor<'g>) -> [f64; 3] {
    let c = Capture::new("test");
    let x = ["x", "y", "z"].map(|name| c.input(name, dims![1], Scalar::F32));
    let y = body(&c, x);
    let seed = c.constant(2.0, Scalar::F32).expand(dims![1]);
    for dx in pullback(&[(y, seed)], &x, Scalar::F32) {
        c.output("dx", dx);
    }
    let f = c.finish();
    let env = Env::new()
        .values(0, &[0.5])
        .values(1, &[-1.5])
        .values(2, &[3.0]);
    [0, 1, 2].map(|i| evaluate(&f.graph, f.outputs[i].1, &env).data[0])
}

fn node<'g, const N: usize>(c: &'g Capture, op: Op, src: [Tensor<'g>; N], arg: Arg) -> Tensor<'g> {
    let src: Sources = src.iter().map(|t| t.id).collect();
    let id = c.graph.borrow_mut().build(op, Scalar::F32.one(), src, arg);
    c.tensor(id)
}

#[test]
fn of_exp2() {
    let [dx, dy, _] = gradients(|c, [x, ..]| {
        let id = c.graph.borrow_mut().exp2(x.id);
        c.tensor(id)
    });
    let want = 2.0 * 0.5f64.exp2() * std::f64::consts::LN_2;
    assert!((dx - want).abs() < 1e-7, "{dx}, not {want}");
    assert_eq!(dy, 0.0);
}

#[test]
fn of_fma() {
    let of = gradients(|c, [x, y, z]| node(c, Op::Fma, [x, y, z], Arg::None));
    assert_eq!(of, [-3.0, 1.0, 2.0]);
}

#[test]
fn of_a_copy() {
    let of = gradients(|c, [x, y, _]| node(c, Op::Copy, [x], Arg::Int(0)) * y);
    assert_eq!(of, [-3.0, 1.0, 0.0]);
}

#[test]
fn of_a_custom_kernel_is_that_of_its_reference() {
    static SQUARE: CustomKernel = CustomKernel {
        name: "square",
        texts: &[],
        output: "y",
        arguments: &["x"],
        accessors: &[],
        operations: 1,
    };
    let of = gradients(|c, [x, y, _]| (x * x).computed_by(&SQUARE, c.int(1), &[x]) * y);
    assert_eq!(of, [-3.0, 0.5, 0.0]);
}
