//! Scatter-add with data-dependent rows, in each variant.

use crate::harness::{Case, Fill, Way, Within};
use gristmill_compiler::{Cheapest, compile};
use gristmill_tensor::{dims, nn};
use gristmill_uop::Scalar;
use gristmill_uop::target::Target;
use std::collections::BTreeMap;

/// F16 sums are rounded at every addition.
fn within(scalar: Scalar) -> Within {
    Within::Scale(if scalar == Scalar::F16 { 6e-3 } else { 1e-5 })
}

/// All types, with vector and odd row widths, and more rows than distinct indices.
fn rows() -> Vec<Case> {
    let mut out = Vec::new();
    for scalar in [Scalar::F32, Scalar::F16, Scalar::I32] {
        for (rows, most, width) in [(7, 13, 10), (5, 33, 16), (300, 4, 3)] {
            let case = Case::new(
                format!("{most} rows of {width} {} to {rows}", scalar.name()),
                |c| {
                    let n = c.var("n", 1, most);
                    let x = c.input("x", dims![rows, width], scalar);
                    let value = c.input("value", dims![n, width], scalar);
                    let index = c
                        .input("index", dims![n], Scalar::I32)
                        .clamp_index(rows - 1);
                    c.output("y", x.scatter_add(value, index));
                },
            );
            let case = case
                .fill(2, Fill::Whole(-1, rows as i64 + 1))
                .within(within(scalar));
            out.push(case.vars(&[&[("n", 1)], &[("n", most as i64)]]));
        }
    }
    out
}

fn shapes() -> Vec<Case> {
    let numbers = |case: Case, slot: usize, rows: i64| case.fill(slot, Fill::Whole(0, rows));
    let mut out = vec![
        numbers(
            Case::new("numbers of two axes, rows of two", |c| {
                let value = c.input("value", dims![3, 5, 4, 16], Scalar::F32);
                let index = c.input("index", dims![3, 5], Scalar::I32).clamp_index(8);
                let x = c.input("x", dims![9, 4, 16], Scalar::F32);
                c.output("y", x.scatter_add(value * 2.0, index).max(&[1]));
            }),
            1,
            9,
        ),
        numbers(
            Case::new("a histogram", |c| {
                let index = c.input("index", dims![100], Scalar::I32).clamp_index(15);
                let [none, one] = [0.0, 1.0].map(|v| c.constant(v, Scalar::I32));
                c.output(
                    "counts",
                    none.expand(dims![16])
                        .scatter_add(one.expand(dims![100]), index),
                );
            }),
            0,
            16,
        ),
        numbers(
            Case::new("the gradient of an embedding", |c| {
                let n = c.var("n", 1, 9);
                let index = c.input("index", dims![n], Scalar::I32).clamp_index(39);
                let dy = c.input("dy", dims![n, 24], Scalar::F32);
                c.output("dw", nn::embedding_gradient(dy, index, 40));
            })
            .vars(&[&[("n", 2)], &[("n", 9)]]),
            0,
            40,
        ),
    ];
    // Enough rows for several workgroups, which they do not divide.
    for scalar in [Scalar::F32, Scalar::I32] {
        let case = Case::new(format!("thousands of {} to a few", scalar.name()), |c| {
            let n = c.var("n", 1, 3001);
            let x = c.input("x", dims![40], scalar);
            let (value, index) = (
                c.input("value", dims![n], scalar),
                c.input("index", dims![n], Scalar::I32),
            );
            c.output("y", x.scatter_add(value, index.clamp_index(39)));
        });
        out.push(numbers(case.vars(&[&[("n", 1)], &[("n", 2987)]]), 2, 40));
    }
    out.push(Case::new("one row, again and again", |c| {
        let x = c.input("x", dims![6, 8], Scalar::F32);
        let row = c.input("row", dims![8], Scalar::F32);
        let two = c.constant(2.0, Scalar::I32);
        c.output(
            "y",
            x.scatter_add(row.expand(dims![11, 8]), two.expand(dims![11])),
        );
    }));
    out
}

/// Neighbouring ops: sums as values and as indices, copies of a tensor, states.
fn around() -> Vec<Case> {
    let mut out = vec![
        Case::new("sums, to rows that are sums", |c| {
            let (a, b) = (
                c.input("a", dims![12, 20], Scalar::F32),
                c.input("b", dims![8, 20], Scalar::F32),
            );
            let parts = c.input("parts", dims![12, 3], Scalar::I32);
            let x = c.input("x", dims![10, 8], Scalar::F32);
            c.output(
                "y",
                x.scatter_add(a.linear(b), parts.sum(&[1]).clamp_index(9))
                    .exp(),
            );
        })
        .fill(2, Fill::Whole(0, 4)),
        Case::new("twice to one tensor, and on", |c| {
            let x = c.input("x", dims![10, 8], Scalar::F32);
            let (a, b) = (
                c.input("a", dims![6, 8], Scalar::F32),
                c.input("b", dims![6, 8], Scalar::F32),
            );
            let index = c.input("index", dims![6], Scalar::I32).clamp_index(9);
            let first = x.scatter_add(a, index);
            let second = x.scatter_add(b, index);
            c.output("first", first);
            c.output("both", first.scatter_add(second.gather(index), index) + x);
            c.output("first again", first);
        })
        .fill(3, Fill::Whole(0, 10)),
    ];
    for scalar in [Scalar::F32, Scalar::F16, Scalar::I32] {
        let case = Case::new(
            format!("a state of {}, added to and read", scalar.name()),
            |c| {
                let (pos, n) = (c.var("pos", 0, 15), c.var("n", 1, 5));
                let state = c.state("state", dims![16, 10], scalar);
                let value = c.input("value", dims![n, 10], Scalar::F32).cast(scalar);
                let index = c.input("index", dims![n], Scalar::I32).clamp_index(15);
                c.output("before", state.cast(Scalar::F32).max(&[0]));
                let added = state.scatter_add(value, index);
                let next = added.assign(added.slice(0, 3, 1) + added.slice(0, 3, 1), pos);
                c.output("between", added.cast(Scalar::F32).sum(&[1]));
                c.output_state(next);
            },
        );
        let case = case.fill(2, Fill::Whole(0, 16)).within(within(scalar));
        out.push(case.vars(&[&[("pos", 0), ("n", 1)], &[("pos", 15), ("n", 5)]]));
    }
    out
}

pub fn cases() -> Vec<Case> {
    rows().into_iter().chain(shapes()).chain(around()).collect()
}

/// Each way with each variant of scatter-add, and with its own choice.
pub fn in_every_form(ways: Vec<Way>) -> Vec<Way> {
    let any_order = |target: &Target| Target {
        any_order: true,
        ..target.clone()
    };
    let mut plans: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for case in cases() {
        let compiled = compile(
            &case.function,
            &any_order(&Target::cpu("plain", 4, 2)),
            None,
            &mut Cheapest,
        );
        for d in compiled.decisions.iter().filter(|d| d.kind == "scatter") {
            plans.insert(d.key(), d.options.iter().map(|o| o.plan.clone()).collect());
        }
    }
    let forms = plans.values().map(Vec::len).max().unwrap_or(0);
    assert_eq!(forms, 3);
    let of_form = |way: &Way, form: usize| {
        let mut way = Way {
            name: format!("{}, form {form}", way.name),
            device: way.device.clone(),
            ..*way
        };
        way.device.target = any_order(&way.device.target);
        way.device.target.plans.extend(
            plans
                .iter()
                .map(|(key, all)| (key.clone(), all[form].clone())),
        );
        // Floats added in any order are bit-identical only by chance.
        way.same_as = way
            .same_as
            .and([Some("compared"), Some("in order"), None][form]);
        way
    };
    let each: Vec<Way> = ways
        .iter()
        .flat_map(|way| (0..forms).map(move |form| (way, form)))
        .map(|(w, f)| of_form(w, f))
        .collect();
    ways.into_iter().chain(each).collect()
}
