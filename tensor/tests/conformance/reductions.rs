//! Reductions: odd sizes, several axes, reductions of reductions.

use crate::harness::{Case, Fill, Within};
use gristmill_tensor::dims;
use gristmill_uop::Scalar;

const SIZES: [usize; 8] = [1, 3, 7, 24, 40, 48, 96, 257];

pub fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for n in SIZES {
        for scalar in [Scalar::F32, Scalar::I32, Scalar::I64] {
            let case = Case::new(format!("rows of {n} {}", scalar.name()), |c| {
                let x = c.input("x", dims![5, n], scalar);
                c.output("sum", x.sum(&[1]));
                c.output("max", x.max(&[1]));
                c.output("columns", x.sum(&[0]));
                c.output("all", x.sum(&[0, 1]).unsqueeze(0));
            });
            out.push(if scalar == Scalar::F32 {
                case
            } else {
                case.fill(0, Fill::Whole(-1000, 1000))
            });
        }
        out.push(Case::new(format!("three axes, {n}"), |c| {
            let x = c.input("x", dims![3, n, 8], Scalar::F32);
            c.output("middle", x.sum(&[1]));
            c.output("ends", x.sum(&[0, 2]));
            c.output("front", x.max(&[0, 1]));
        }));
        out.push(Case::new(format!("dot of {n}"), |c| {
            let (x, w) = (
                c.input("x", dims![n], Scalar::F32),
                c.input("w", dims![6, n], Scalar::F32),
            );
            c.output("y", (w * x).sum(&[1]));
        }));
        out.push(Case::new(format!("columns of {n}"), |c| {
            let (x, w) = (
                c.input("x", dims![9, 1], Scalar::F32),
                c.input("w", dims![9, n], Scalar::F32),
            );
            c.output("y", (w * x).sum(&[0]));
        }));
    }
    out.push(
        Case::new("a length that changes", |c| {
            let n = c.var("n", 1, 300);
            let x = c.input("x", dims![300, 4], Scalar::F32);
            let x = x.slice(0, 0, n);
            c.output("sum", x.sum(&[0]));
            c.output("max", x.max(&[0]));
            c.output("all", x.sum(&[0, 1]).unsqueeze(0));
        })
        .vars(&[&[("n", 1)], &[("n", 17)], &[("n", 128)], &[("n", 300)]]),
    );
    out.push(
        Case::new("largest of negative numbers", |c| {
            c.output("max", c.input("x", dims![4, 33], Scalar::F32).max(&[1]));
            c.output("bytes", c.input("b", dims![4, 32], Scalar::I32).max(&[1]));
        })
        .fill(0, Fill::Uniform(-9.0, -8.0))
        .fill(2, Fill::Whole(-90, -80))
        .within(Within::Exact),
    );
    out.push(Case::new("counting", |c| {
        let x = c.input("x", dims![6, 50], Scalar::F32);
        c.output("n", x.lt(0.25).cast(Scalar::I32).sum(&[1]));
    }));
    out
}

pub fn nested() -> Vec<Case> {
    let mut out = Vec::new();
    for n in [3, 24, 40, 96] {
        out.push(Case::new(format!("sum of largest, {n}"), |c| {
            let x = c.input("x", dims![6, 5, n], Scalar::F32);
            c.output("y", x.max(&[2]).sum(&[1]));
            c.output("z", x.sum(&[1]).max(&[1]));
        }));
        out.push(Case::new(format!("variance, {n}"), |c| {
            let x = c.input("x", dims![6, n], Scalar::F32);
            let mean = x.sum(&[1]) * (1.0 / n as f64);
            let d = x - mean.unsqueeze(1);
            c.output("y", (d * d).sum(&[1]) * (1.0 / n as f64));
        }));
        out.push(Case::new(format!("a chain of contractions, {n}"), |c| {
            let x = c.input("x", dims![2, n], Scalar::F32);
            let a = c.input("a", dims![16, n], Scalar::F32);
            let b = c.input("b", dims![12, 16], Scalar::F32);
            let y = x.linear(a);
            let z = y.linear(b);
            c.output("y", y);
            c.output("z", z + z.sum(&[1]).unsqueeze(1));
        }));
        out.push(Case::new(format!("one sum read by many, {n}"), |c| {
            let x = c.input("x", dims![n, 8], Scalar::F32);
            let s = x.sum(&[0]);
            c.output("a", x * s);
            c.output("b", s.exp());
            c.output("c", (x - s).max(&[0, 1]).unsqueeze(0));
        }));
    }
    out
}
