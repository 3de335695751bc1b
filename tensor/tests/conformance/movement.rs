//! Movement ops and their compositions; results must be exact.

use crate::harness::{Case, Within};
use gristmill_tensor::dims;
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::Scalar;

pub fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    let mut case = |name: &str, body: fn(Tensor<'_>) -> Tensor<'_>| {
        let with = |name: String, scalar: Scalar, by: bool| {
            Case::new(name, |c| {
                let x = c.input("x", dims![4, 6, 10], scalar);
                let y = body(x);
                c.output("y", if by { y + y } else { y });
            })
            .within(Within::Exact)
        };
        out.push(with(name.into(), Scalar::F32, false));
        out.push(with(format!("{name}, added"), Scalar::F32, true));
        out.push(with(format!("{name}, bytes"), Scalar::U8, false));
    };
    case("same", |x| x);
    case("reshape", |x| x.reshape(dims![24, 10]));
    case("reshape that cuts", |x| x.reshape(dims![8, 3, 5, 2]));
    case("reshape across", |x| x.reshape(dims![10, 6, 4]));
    case("permute", |x| x.permute(&[2, 0, 1]));
    case("permute the last", |x| x.permute(&[0, 2, 1]));
    case("permute, reshape, permute", |x| {
        x.permute(&[1, 2, 0])
            .reshape(dims![15, 16])
            .permute(&[1, 0])
    });
    case("shrink", |x| x.slice(2, 3, 4).slice(0, 1, 2));
    case("shrink to one", |x| x.slice(1, 5, 1).slice(2, 9, 1));
    case("expand", |x| x.slice(1, 2, 1).expand(dims![4, 7, 10]));
    case("expand in front", |x| {
        x.slice(0, 3, 1).expand(dims![2, 5, 6, 10])
    });
    case("cat", |x| Tensor::cat(&[x, x.slice(1, 1, 2)], 1));
    case("cat at the end", |x| {
        Tensor::cat(&[x.slice(2, 0, 3), x, x.slice(2, 7, 3)], 2)
    });
    case("cat in front", |x| Tensor::cat(&[x.slice(0, 2, 1), x], 0));
    case("cat of cats", |x| {
        let a = Tensor::cat(&[x.slice(2, 5, 5), x.slice(2, 0, 5)], 2);
        Tensor::cat(&[a.slice(1, 3, 3), a.slice(1, 0, 3)], 1)
    });
    case("cat, permuted", |x| {
        Tensor::cat(&[x, x], 0)
            .permute(&[2, 1, 0])
            .reshape(dims![20, 24])
    });
    case("window of a reshape", |x| {
        x.reshape(dims![240])
            .slice(0, 17, 100)
            .reshape(dims![5, 20])
    });
    case("interleave", |x| {
        let pairs = x.reshape(dims![4, 6, 5, 2]);
        Tensor::cat(&[pairs.slice(3, 1, 1), pairs.slice(3, 0, 1)], 3).reshape(dims![4, 6, 10])
    });
    out.push(
        Case::new("one value, three outputs, and an input as it is", |c| {
            let x = c.input("x", dims![4, 6], Scalar::F32);
            let y = x.permute(&[1, 0]) * 2.0;
            c.output("y", y);
            c.output("again", y);
            c.output("and again", y);
            c.output("x", x);
        })
        .within(Within::Exact),
    );
    out.push(
        Case::new("windows that move", |c| {
            let (at, n) = (c.var("at", 0, 8), c.var("n", 1, 8));
            let x = c.input("x", dims![16, 5], Scalar::F32);
            c.output("y", x.slice(0, at, n));
            c.output("z", x.slice(0, at, n).permute(&[1, 0]));
        })
        .vars(&[
            &[("at", 0), ("n", 8)],
            &[("at", 8), ("n", 1)],
            &[("at", 5), ("n", 3)],
        ])
        .within(Within::Exact),
    );
    out.push(
        Case::new("cat of a part that grows", |c| {
            let n = c.var("n", 1, 6);
            let x = c.input("x", dims![n, 4], Scalar::F32);
            let y = c.input("y", dims![3, 4], Scalar::F32);
            c.output("xy", Tensor::cat(&[x, y], 0));
            c.output("yx", Tensor::cat(&[y, x], 0));
        })
        .vars(&[&[("n", 1)], &[("n", 4)], &[("n", 6)]])
        .within(Within::Exact),
    );
    out.push(
        Case::new("iota", |c| {
            let n = c.var("n", 1, 9);
            c.output("i", c.iota(dims![n, 5], 0) * 10 + c.iota(dims![n, 5], 1));
        })
        .vars(&[&[("n", 1)], &[("n", 9)]]),
    );
    out
}
