//! Rules for sums over rows selected by index (MoE combination, scatter).

use super::rule::rules;
use crate::alternatives::term::{Class, Map, Shaped, Source, Term, TermForm};
use crate::alternatives::terms::{ProductSum, TermFactor, TermGraph};
use gristmill_uop::shape::Dims;
use gristmill_uop::{Arg, Id, Op, ReduceOp, Scalar};

rules! {
    equal "Σ_i (n[i] = r ? v[i] : 0) -> v added to zeros at n" compared;
    equal "Σ_j x[n[i, j]]·w[i, j] -> x[n]·w added to zeros at i" added;
    equal "Σ_j x[n[i, j]]·w[i, j] -> Σ_r (Σ_j n[i, j] = r ? w[i, j] : 0)·x[r] for finite x" contracted;
}

/// Source of a class's view, and the axis of the class that each source axis maps to; `None` if
/// the view omits elements.
fn placed(t: &mut TermGraph, class: Class) -> Option<(Class, Map)> {
    let (source, view) = t.source(class);
    let dims = t.dims(source);
    let axis = |i: usize| {
        view.axes
            .iter()
            .position(|a| *a == Some(i as u8))
            .map(|a| a as u8)
    };
    view.takes_all(&t.graph, &dims)
        .then(|| (source, (0..dims.len()).map(axis).collect()))
}

/// Composes two axis maps.
fn of_axes(outer: &Map, inner: &Map) -> Map {
    inner
        .iter()
        .map(|i| i.and_then(|i| outer[i as usize]))
        .collect()
}

/// Axis along which a class counts up from 0, possibly through a cast.
fn counts(t: &mut TermGraph, class: Class) -> Option<u8> {
    let (mut at, mut map) = placed(t, class)?;
    if let Some(cast) = t.of_op(at, Op::Cast).first() {
        let (inner, below) = placed(t, cast.children[0])?;
        (at, map) = (inner, of_axes(&map, &below));
    }
    let leaf = t.terms(at).into_iter().find_map(|term| match term.form {
        TermForm::Leaf(id) if t.graph[id].op == Op::Iota => Some(id),
        _ => None,
    })?;
    let Arg::Axes(axes) = &t.graph[leaf].arg else {
        return None;
    };
    map[axes[0] as usize]
}

/// Rows selected by comparing their index with a counting list.
struct Taken {
    /// Axis along which the list counts.
    list: u8,
    /// Axis of the selected rows.
    row: u8,
    /// Index of each row.
    numbers: Class,
}

/// Matches a condition that compares row indices with a counting list.
fn taken(t: &mut TermGraph, condition: Class) -> Option<Taken> {
    let (equal, outer) = placed(t, condition)?;
    for term in t.of_op(equal, Op::Eq) {
        let &[a, b] = &term.children[..] else {
            continue;
        };
        for (list, numbers) in [(a, b), (b, a)] {
            let (Some(list), Some((source, map))) = (counts(t, list), placed(t, numbers)) else {
                continue;
            };
            if let (Some(list), [Some(row)]) = (outer[list as usize], &of_axes(&outer, &map)[..])
                && let &row = row
                && row != list
                && t.facts(source).dtype.scalar == Scalar::I32
            {
                return Some(Taken {
                    list,
                    row,
                    numbers: source,
                });
            }
        }
    }
    None
}

/// Only for f32: integer sums, which order tokens, are written in a form that every
/// device computes in parallel.
fn compared(t: &mut TermGraph, term: &Term) -> Vec<Class> {
    let TermForm::Node {
        op: Op::Reduce,
        arg: Arg::Reduce(ReduceOp::Add, axes),
        ..
    } = &term.form
    else {
        return vec![];
    };
    let (&[summed], true) = (&axes[..], term.dtype.scalar == Scalar::F32) else {
        return vec![];
    };
    let mut out = Vec::new();
    for choice in t.of_op(term.children[0], Op::Where) {
        let TermForm::Node { sources, .. } = &choice.form else {
            continue;
        };
        let (&[condition, value], Some(Source::Scalar(other))) =
            (&choice.children[..], sources.get(2))
        else {
            continue;
        };
        if t.graph.float_value(*other) == Some(0.0)
            && let Some(of) = taken(t, condition)
            && of.row == summed
        {
            out.extend(scattered(t, term, value, of));
        }
    }
    out
}

/// Scatters `value`, which has the row axis and does not depend on the list axis, into zeros.
fn scattered(
    t: &mut TermGraph,
    term: &Term,
    value: Class,
    Taken { list, row, numbers }: Taken,
) -> Option<Class> {
    let (source, map) = placed(t, value)?;
    let dims = t.dims(value);
    let rows = t.graph.int_value(dims[list as usize])?;
    // The list is the result's first axis; the other axes keep their order.
    let rest: Vec<u8> = (0..dims.len() as u8)
        .filter(|a| *a != row && *a != list)
        .collect();
    if map.contains(&Some(list)) || rest.first().is_some_and(|&first| first < list) {
        return None;
    }
    let to: Map = [row].iter().chain(&rest).map(|&a| Some(a)).collect();
    let value = t.arranged(source, &map, &to, &dims);
    let (numbers, inside) = within(t, numbers, rows);
    let added: Dims = t.dims(value);
    let inside = t.arranged(inside, &[Some(row)].into_iter().collect(), &to, &dims);
    let nothing = t.graph.constant(Scalar::F32, 0.0);
    let value = t.node(
        Op::Where,
        Arg::None,
        Shaped::new(term.dtype, added),
        &[inside, value],
        &[nothing],
    );
    let zeros = zeros(t, &term.shaped());
    Some(t.node(
        Op::ScatterAdd,
        Arg::None,
        term.shaped(),
        &[zeros, value, numbers],
        &[],
    ))
}

/// Clamps row indices to `rows`, and returns a mask of those that were in range;
/// others select no row.
fn within(t: &mut TermGraph, numbers: Class, rows: i64) -> (Class, Class) {
    let (dims, dtype) = (t.dims(numbers), t.facts(numbers).dtype);
    let constant = |t: &mut TermGraph, v: i64| t.graph.int_of(Scalar::I32, v);
    let (none, last, end, minus) = (
        constant(t, 0),
        constant(t, rows - 1),
        constant(t, rows),
        constant(t, -1),
    );
    let held = t.node(
        Op::Max,
        Arg::None,
        Shaped::new(dtype, dims.clone()),
        &[numbers],
        &[none],
    );
    let held = t.node(
        Op::Min,
        Arg::None,
        Shaped::new(dtype, dims.clone()),
        &[held],
        &[last],
    );
    let truth = |t: &mut TermGraph, sources: [Source; 2]| {
        let form = TermForm::Node {
            op: Op::Lt,
            arg: Arg::None,
            sources: sources.into_iter().collect(),
        };
        t.add(form, Scalar::Bool.one(), dims.clone(), &[numbers])
    };
    let below = truth(t, [Source::Child, Source::Scalar(end)]);
    let above = truth(t, [Source::Scalar(minus), Source::Child]);
    (
        held,
        t.node(
            Op::And,
            Arg::None,
            Shaped::new(Scalar::Bool.one(), dims.clone()),
            &[below, above],
            &[],
        ),
    )
}

/// A weighted sum over gathered rows, such as the combination of expert outputs per token.
struct Weighted {
    sum: ProductSum,
    /// Class that the rows are gathered from.
    of: Class,
    /// Row indices `[i, j]`, i32, the type that rows are counted in here.
    numbers: Class,
    /// Gathered rows `[i, j, rest..]`.
    rows: TermFactor,
    /// Weights, which depend on `i` and `j` only.
    weights: TermFactor,
    /// Indices of the result row (`i`) and of the sum (`j`).
    i: u8,
    j: u8,
}

/// Returns every way to read a term as weighted sums of gathered rows.
fn weighted(t: &mut TermGraph, term: &Term) -> Vec<Weighted> {
    let TermForm::Contract(contraction) = &term.form else {
        return vec![];
    };
    let factors = ProductSum::from_contraction(contraction, &term.children).factors;
    let mut out = Vec::new();
    for (rows, weights) in [(0, 1), (1, 0)].map(|(a, b)| (&factors[a], &factors[b])) {
        for chosen in t.of_op(rows.class, Op::Gather) {
            let sum = ProductSum::from_contraction(contraction, &term.children);
            let (&[of, numbers], Some(&[Some(i), Some(j)])) =
                (&chosen.children[..], rows.map.first_chunk())
            else {
                continue;
            };
            let rest_stays = rows.map[2..].iter().flatten().all(|&r| !sum.sums(r));
            let weighs_rows = weights
                .map
                .iter()
                .flatten()
                .all(|&index| index == i || index == j);
            let of_i32 = t.facts(numbers).dtype.scalar == Scalar::I32 && t.dims(numbers).len() == 2;
            if of_i32 && !sum.sums(i) && sum.sums(j) && rest_stays && weighs_rows {
                out.push(Weighted {
                    sum,
                    of,
                    numbers,
                    rows: rows.clone(),
                    weights: weights.clone(),
                    i,
                    j,
                });
            }
        }
    }
    out
}

/// Adds each row, times its weight, to row `i` of zeros.
fn added(t: &mut TermGraph, term: &Term) -> Vec<Class> {
    let one = |t: &mut TermGraph,
               Weighted {
                   sum,
                   rows,
                   weights,
                   i,
                   ..
               }: Weighted| {
        let dims = t.dims(rows.class);
        let weights = t.arranged(weights.class, &weights.map, &rows.map, &sum.sizes);
        let value = t.node(
            Op::Mul,
            Arg::None,
            Shaped::new(term.dtype, dims.clone()),
            &[rows.class, weights],
            &[],
        );
        // A single axis of all added rows, as in `Tensor::scatter_add`.
        let count = t.graph.mul(dims[0], dims[1]);
        let flat: Dims = [count].iter().chain(&dims[2..]).copied().collect();
        let value = t.node(
            Op::Reshape,
            Arg::None,
            Shaped::new(term.dtype, flat.clone()),
            &[value],
            &flat,
        );
        let to = t.graph.iota(&dims[..2], 0);
        let to = t.graph.reshape(to, &[count]);
        let to = whole(t, to);
        let made: Dims = [dims[0]].iter().chain(&dims[2..]).copied().collect();
        let zeros = zeros(t, &Shaped::new(term.dtype, made.clone()));
        let class = t.node(
            Op::ScatterAdd,
            Arg::None,
            Shaped::new(term.dtype, made),
            &[zeros, value, to],
            &[],
        );
        let from: Map = [Some(i)].iter().chain(&rows.map[2..]).copied().collect();
        t.arranged(class, &from, &sum.out, &sum.sizes)
    };
    weighted(t, term).into_iter().map(|of| one(t, of)).collect()
}

/// Multiplies all rows, with weight 0 for those not selected. A NaN or infinity in any row
/// therefore reaches every result row.
fn contracted(t: &mut TermGraph, term: &Term) -> Vec<Class> {
    weighted(t, term)
        .into_iter()
        .filter_map(|of| all_rows_contracted(t, term, of))
        .collect()
}

/// Contracts all rows with their weights per result row.
fn all_rows_contracted(t: &mut TermGraph, term: &Term, mut of: Weighted) -> Option<Class> {
    let r = of.sum.sizes.len() as u8;
    of.sum.sizes.push(t.dims(of.of)[0]);
    let weights = weights_of_rows(t, term, &of, r);
    let Weighted { sum, rows, i, .. } = of;
    let by_row = Shaped::new(
        term.dtype,
        [i, r]
            .iter()
            .map(|&index| sum.sizes[index as usize])
            .collect(),
    );
    let class = t.node(
        Op::Reduce,
        Arg::Reduce(ReduceOp::Add, [1].into_iter().collect()),
        by_row,
        &[weights],
        &[],
    );
    let all: Map = [Some(r)].iter().chain(&rows.map[2..]).copied().collect();
    let factors = [
        TermFactor {
            class,
            map: [Some(i), Some(r)].into_iter().collect(),
        },
        TermFactor {
            class: of.of,
            map: all,
        },
    ];
    t.contract(&ProductSum { factors, ..sum })
}

/// Weights `[i, j, r]` of all rows `r`, 0 for those not selected. `r` is an index of the sum.
fn weights_of_rows(t: &mut TermGraph, term: &Term, of: &Weighted, r: u8) -> Class {
    let &Weighted {
        ref sum,
        numbers,
        ref weights,
        i,
        j,
        ..
    } = of;
    let [chosen, full]: [Map; 2] = [
        [Some(i), Some(j)].into_iter().collect(),
        [Some(i), Some(j), Some(r)].into_iter().collect(),
    ];
    let dims: Dims = [i, j, r]
        .iter()
        .map(|&index| sum.sizes[index as usize])
        .collect();
    let row = t.graph.iota(&dims, 2);
    let row = whole(t, row);
    let numbers = t.arranged(numbers, &chosen, &full, &sum.sizes);
    let here = t.node(
        Op::Eq,
        Arg::None,
        Shaped::new(Scalar::Bool.one(), dims.clone()),
        &[numbers, row],
        &[],
    );
    let weights = t.arranged(weights.class, &weights.map, &full, &sum.sizes);
    let nothing = t.graph.constant(Scalar::F32, 0.0);
    t.node(
        Op::Where,
        Arg::None,
        Shaped::new(term.dtype, dims),
        &[here, weights],
        &[nothing],
    )
}

/// An integer list, cast to i32.
fn whole(t: &mut TermGraph, list: Id) -> Class {
    let list = t.graph.cast(list, Scalar::I32);
    let dims = t.graph.shape(list);
    t.add(TermForm::Leaf(list), Scalar::I32.one(), dims, &[])
}

/// Zeros of this type and these dims.
fn zeros(t: &mut TermGraph, of: &Shaped) -> Class {
    let nothing = t.graph.constant(Scalar::F32, 0.0);
    let zeros = t.graph.spread(nothing, &of.dims);
    t.add(TermForm::Leaf(zeros), of.dtype, of.dims.clone(), &[])
}
