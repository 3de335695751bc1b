//! Data-dependent lengths, and states that are written and read in one step.

use crate::harness::{Case, Fill, Within};
use gristmill_tensor::{dims, nn};
use gristmill_uop::Scalar;

pub fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for (experts, k, height, most) in [(4, 2, 4, 9), (8, 3, 8, 20), (3, 1, 2, 5), (5, 2, 16, 600)] {
        let case = Case::new(format!("tiles of {height}, {experts} experts"), |c| {
            let n = c.var("n", 1, most);
            let index = c.input("index", dims![n, k], Scalar::I32);
            let t = nn::tiles(index, n, most, experts, height);
            c.output("count", t.count.cast(Scalar::I32).unsqueeze(0));
            c.output("row", t.row);
            c.output("expert", t.expert);
            c.output("token", t.token);
        });
        let case = case.fill(0, Fill::Whole(0, experts as i64));
        out.push(case.vars(&[
            &[("n", 1)],
            &[("n", most as i64 / 2)],
            &[("n", most as i64)],
        ]));
    }
    out.push(
        Case::new("a length that is a sum", |c| {
            let n = c.input("n", dims![3], Scalar::I32);
            let x = c.input("x", dims![40, 6], Scalar::F32);
            let total = n.sum(&[0]).clamp_index(40).cast(Scalar::I64);
            let rows = x.slice(0, 0, total);
            c.output("rows", rows);
            c.output("sum", rows.sum(&[0]));
            c.output("exp", rows.exp() * 2.0);
        })
        .fill(0, Fill::Whole(0, 12)),
    );
    // Constant strides of the largest size would not find the elements of a shorter axis.
    out.push(
        Case::new("an axis that varies, merged with one before it", |c| {
            let n = c.var("n", 1, 5);
            let x = c.input("x", dims![n, 6, 8], Scalar::F32);
            let merged = x.permute(&[1, 0, 2]).reshape(dims![2, n * 3i64, 8]);
            c.output("sum", merged.sum(&[1]));
            c.output("rows", merged.exp().reshape(dims![n * 6i64, 8]));
        })
        .vars(&[&[("n", 1)], &[("n", 3)], &[("n", 5)]]),
    );
    out
}

pub fn states() -> Vec<Case> {
    let runs: &[&[(&str, i64)]] = &[
        &[("pos", 0), ("n", 1)],
        &[("pos", 7), ("n", 4)],
        &[("pos", 12), ("n", 3)],
    ];
    let mut out = Vec::new();
    for scalar in [Scalar::F32, Scalar::F16, Scalar::BF16, Scalar::I32] {
        out.push(
            Case::new(format!("write, then read {}", scalar.name()), |c| {
                let (pos, n) = (c.var("pos", 0, 12), c.var("n", 1, 4));
                let state = c.state("state", dims![16, 10], scalar);
                let row = c.input("row", dims![n, 10], Scalar::F32);
                let next = state.assign((row * 3.0).cast(scalar), pos);
                c.output_state(next);
                c.output("sum", next.cast(Scalar::F32).sum(&[1]));
                c.output(
                    "used",
                    next.slice(0, 0, pos + n).cast(Scalar::F32).max(&[0]),
                );
            })
            .vars(runs)
            .within(Within::Scale(1e-5)),
        );
    }
    out.push(
        Case::new("read, then write", |c| {
            let (pos, n) = (c.var("pos", 0, 12), c.var("n", 1, 4));
            let state = c.state("state", dims![16, 10], Scalar::F32);
            let row = c.input("row", dims![n, 10], Scalar::F32);
            c.output("before", state.sum(&[0]));
            c.output("turned", state.permute(&[1, 0]) + 1.0);
            c.output_state(state.assign(row, pos));
        })
        .vars(runs),
    );
    out.push(
        Case::new("versions of a state as outputs", |c| {
            let pos = c.var("pos", 0, 12);
            let state = c.state("state", dims![16, 10], Scalar::F32);
            let row = c.input("row", dims![1, 10], Scalar::F32);
            let first = state.assign(row, pos);
            let last = first.assign(row * 2.0, pos);
            c.output("first", first);
            c.output_state(last);
            c.output("last", last);
            c.output("last again", last);
        })
        .vars(&[&[("pos", 0)], &[("pos", 12)]]),
    );
    out.push(
        Case::new("two writes", |c| {
            let (pos, n) = (c.var("pos", 0, 12), c.var("n", 1, 4));
            let state = c.state("state", dims![16, 10], Scalar::F32);
            let (a, b) = (
                c.input("a", dims![n, 10], Scalar::F32),
                c.input("b", dims![1, 10], Scalar::F32),
            );
            let first = state.assign(a, pos);
            let second = first.assign(b * first.sum(&[0]), pos);
            c.output("between", first.max(&[1]));
            c.output_state(second);
            c.output("after", second.max(&[1]));
        })
        .vars(runs),
    );
    for scalar in [Scalar::F32, Scalar::F16, Scalar::I8] {
        let name = format!("rows of {} by their numbers, then read", scalar.name());
        let case = Case::new(name, |c| {
            let n = c.var("n", 1, 5);
            let state = c.state("state", dims![16, 10], scalar);
            let row = c.input("row", dims![n, 10], Scalar::F32);
            let numbers = c.input("numbers", dims![n], Scalar::I32);
            let next = state.scatter((row * 3.0).cast(scalar), numbers.clamp_index(15));
            c.output_state(next);
            c.output("sum", next.cast(Scalar::F32).sum(&[1]));
        });
        let case = case.fill(2, Fill::Values(vec![7.0, 15.0, 0.0, 3.0, 8.0]));
        out.push(
            case.vars(&[&[("n", 1)], &[("n", 5)]])
                .within(Within::Scale(1e-5)),
        );
    }
    out.push(
        Case::new("a state made of itself", |c| {
            let pos = c.var("pos", 0, 12);
            let state = c.state("state", dims![16, 8], Scalar::F32);
            let sum = state.sum(&[0]).unsqueeze(0);
            c.output_state(state.assign(sum, pos));
        })
        .vars(&[&[("pos", 0)], &[("pos", 12)]]),
    );
    out
}
