//! Rules for contractions (sums of products).

use super::rule::rules;
use crate::alternatives::term::{Class, Map, Shaped, Source, Term, TermForm, View};
use crate::alternatives::terms::{ProductSum, TermFactor, TermGraph};
use gristmill_uop::{Arg, Id, Op};

rules! {
    equal "(a·b)·c -> a·(b·c)" associated;
    equal "Σ_j (Σ_i a·b)·c -> Σ_ij (a c)·b where a has all indices of c" merged;
    equal "(s x)·a -> s (x·a) where the sum is not over s" scaled;
    equal "(a + b)·c -> a·c + b·c" distributed;
    equal "cat(a, b)·c -> a·c' + b·c'' over the joined axis, else cat(a·c, b·c)" joined;
    equal "rows of (a·x) -> (rows of a)·x" gathered;
    better "a·b -> a·b with the outer rows of a outermost" outer_rows;
}

/// Contraction form of a term.
fn sum_of(term: &Term) -> Option<ProductSum> {
    match &term.form {
        TermForm::Contract(c) => Some(ProductSum::from_contraction(c, &term.children)),
        _ => None,
    }
}

/// Both orders of a sum's factors.
fn sides(sum: &ProductSum) -> [(&TermFactor, &TermFactor); 2] {
    [
        (&sum.factors[0], &sum.factors[1]),
        (&sum.factors[1], &sum.factors[0]),
    ]
}

/// Associativity with arbitrary index maps: two of three factors that share a summed index
/// may be contracted first.
fn associated(t: &mut TermGraph, term: &Term) -> Vec<Class> {
    let Some(sum) = sum_of(term) else {
        return vec![];
    };
    let mut out = Vec::new();
    for (whole, c) in sides(&sum) {
        for inner in t.sums(whole.class) {
            let (factors, sizes) = renamed(&inner, whole, &sum);
            let [a, b] = &factors;
            for (a, b) in [(a, b), (b, a)] {
                out.extend(second(t, a, b, c, &sum, &sizes));
            }
        }
    }
    out
}

/// Renames the indices of `inner`, which is the factor `whole` of `sum`, to those of `sum`. Its own
/// summed indices are appended.
fn renamed(
    inner: &ProductSum,
    whole: &TermFactor,
    sum: &ProductSum,
) -> ([TermFactor; 2], gristmill_uop::shape::Dims) {
    let mut sizes = sum.sizes.clone();
    let mut names: Vec<Option<u8>> = vec![None; inner.sizes.len()];
    for (inside, outside) in inner.out.iter().zip(&whole.map) {
        if let Some(i) = inside {
            names[*i as usize] = *outside;
        }
    }
    for (i, name) in names.iter_mut().enumerate() {
        if inner.sums(i as u8) {
            *name = Some(sizes.len() as u8);
            sizes.push(inner.sizes[i]);
        }
    }
    let map = |map: &Map| {
        map.iter()
            .map(|i| i.and_then(|i| names[i as usize]))
            .collect()
    };
    (
        inner.factors.clone().map(|f| TermFactor {
            map: map(&f.map),
            ..f
        }),
        sizes,
    )
}

/// Builds `a·(b·c)` if `b` and `c` share a summed index that `a` lacks.
fn second(
    t: &mut TermGraph,
    a: &TermFactor,
    b: &TermFactor,
    c: &TermFactor,
    sum: &ProductSum,
    sizes: &gristmill_uop::shape::Dims,
) -> Option<Class> {
    let all = 0..sizes.len() as u8;
    let inside = |i: u8| (b.has(i) || c.has(i)) && !a.has(i) && sum.sums(i);
    if !all.clone().any(|i| inside(i) && b.has(i) && c.has(i)) {
        return None;
    }
    let kept = |i: u8| (b.has(i) || c.has(i)) && !inside(i);
    // Index order: that of the result, then that of the factors.
    let mut out: Map = sum
        .out
        .iter()
        .copied()
        .filter(|i| i.is_some_and(kept))
        .collect();
    for i in all {
        if kept(i) && !out.contains(&Some(i)) {
            out.push(Some(i));
        }
    }
    let class = t.contract(&ProductSum {
        factors: [b.clone(), c.clone()],
        out: out.clone(),
        sizes: sizes.clone(),
    })?;
    let of = TermFactor { class, map: out };
    t.contract(&ProductSum {
        factors: [a.clone(), of],
        out: sum.out.clone(),
        sizes: sizes.clone(),
    })
}

/// Merges a weighted sum of sums into one. The weights multiply a factor that has all their
/// indices, unless that is a packed weight, which would have to be dequantised.
fn merged(t: &mut TermGraph, term: &Term) -> Vec<Class> {
    let Some(sum) = sum_of(term) else {
        return vec![];
    };
    let mut out = Vec::new();
    for (whole, c) in sides(&sum) {
        if !c.map.iter().flatten().any(|&i| sum.sums(i)) {
            continue;
        }
        for inner in t.sums(whole.class) {
            let (factors, sizes) = renamed(&inner, whole, &sum);
            for (a, b) in [(0, 1), (1, 0)].map(|(a, b)| (&factors[a], &factors[b])) {
                if t.facts(a.class).weight || !c.map.iter().flatten().all(|&i| a.has(i)) {
                    continue;
                }
                let shaped = Shaped::new(term.dtype, t.dims(a.class));
                let weights = t.arranged(c.class, &c.map, &a.map, &sizes);
                let class = t.node(Op::Mul, Arg::None, shaped, &[a.class, weights], &[]);
                let factors = [
                    TermFactor {
                        class,
                        map: a.map.clone(),
                    },
                    b.clone(),
                ];
                out.extend(t.contract(&ProductSum {
                    factors,
                    out: sum.out.clone(),
                    sizes: sizes.clone(),
                }));
            }
        }
    }
    out
}

/// Moves a factor that depends on no summed index out of the sum.
fn scaled(t: &mut TermGraph, term: &Term) -> Vec<Class> {
    let Some(sum) = sum_of(term) else {
        return vec![];
    };
    let mut out = Vec::new();
    for (of, other) in sides(&sum) {
        for product in t.of_op(of.class, Op::Mul) {
            let Some((x, scale)) = scale_of(t, &product, of, &sum) else {
                continue;
            };
            let inside = TermFactor {
                class: x,
                map: of.map.clone(),
            };
            let factors = [inside, other.clone()];
            let Some(class) = t.contract(&ProductSum {
                factors,
                out: sum.out.clone(),
                sizes: sum.sizes.clone(),
            }) else {
                continue;
            };
            let (dtype, dims) = (term.dtype, term.dims.clone());
            out.push(match scale {
                Scale::Tensor(s, map) => {
                    let s = t.arranged(s, &map, &sum.out, &sum.sizes);
                    t.node(
                        Op::Mul,
                        Arg::None,
                        Shaped::new(dtype, dims),
                        &[class, s],
                        &[],
                    )
                }
                Scale::Scalar(s) => {
                    t.node(Op::Mul, Arg::None, Shaped::new(dtype, dims), &[class], &[s])
                }
            });
        }
    }
    out
}

/// Factor of a product.
enum Scale {
    /// Tensor with the index of each axis.
    Tensor(Class, Map),
    Scalar(Id),
}

/// Splits a product into the rest and a factor that does not depend on summed indices.
fn scale_of(
    t: &mut TermGraph,
    product: &Term,
    of: &TermFactor,
    sum: &ProductSum,
) -> Option<(Class, Scale)> {
    let TermForm::Node { sources, .. } = &product.form else {
        return None;
    };
    if let [x] = product.children[..] {
        let scalar = sources.iter().find_map(|s| {
            if let Source::Scalar(s) = s {
                Some(*s)
            } else {
                None
            }
        })?;
        return Some((x, Scale::Scalar(scalar)));
    }
    let [a, b] = product.children[..] else {
        return None;
    };
    for (x, s) in [(a, b), (b, a)] {
        let (source, view) = t.source(s);
        let (window, dims) = view.window(&t.graph);
        let mut map: Map = dims.iter().map(|_| None).collect();
        for (axis, index) in view.axes.iter().zip(&of.map) {
            if let Some(axis) = axis {
                map[*axis as usize] = *index;
            }
        }
        if map.iter().flatten().all(|&i| !sum.sums(i)) {
            return Some((x, Scale::Tensor(t.view(source, &window, &dims), map)));
        }
    }
    None
}

/// Distributes a contraction over the sum in one of its factors.
fn distributed(t: &mut TermGraph, term: &Term) -> Vec<Class> {
    let Some(sum) = sum_of(term) else {
        return vec![];
    };
    let mut out = Vec::new();
    for (of, other) in sides(&sum) {
        for parts in t.of_op(of.class, Op::Add) {
            let [a, b] = parts.children[..] else { continue };
            let mut one = |class: Class| {
                let factors = [
                    TermFactor {
                        class,
                        map: of.map.clone(),
                    },
                    other.clone(),
                ];
                t.contract(&ProductSum {
                    factors,
                    out: sum.out.clone(),
                    sizes: sum.sizes.clone(),
                })
            };
            if let (Some(a), Some(b)) = (one(a), one(b)) {
                out.push(t.node(Op::Add, Arg::None, term.shaped(), &[a, b], &[]));
            }
        }
    }
    out
}

/// Splits a concatenated factor: along a summed axis into a sum of contractions, along another into
/// a concatenation of contractions.
fn joined(t: &mut TermGraph, term: &Term) -> Vec<Class> {
    let Some(sum) = sum_of(term) else {
        return vec![];
    };
    let mut out = Vec::new();
    for (of, other) in sides(&sum) {
        for cat in t.of_op(of.class, Op::Cat) {
            let Some(index) = cat.joined().and_then(|axis| of.map[axis]) else {
                continue;
            };
            let axis = cat.joined().expect("what is joined has an axis");
            let mut begin = t.graph.int(0);
            let mut parts = Vec::new();
            for &part in &cat.children {
                let length = t.dims(part)[axis];
                let mut sizes = sum.sizes.clone();
                sizes[index as usize] = length;
                let factors = [
                    TermFactor {
                        class: part,
                        map: of.map.clone(),
                    },
                    windowed(t, other, index, Window { begin, length }),
                ];
                parts.extend(t.contract(&ProductSum {
                    factors,
                    out: sum.out.clone(),
                    sizes,
                }));
                begin = t.graph.add(begin, length);
            }
            if parts.len() != cat.children.len() {
                continue;
            }
            out.push(match sum.out.iter().position(|i| *i == Some(index)) {
                Some(axis) => t.cat(&parts, axis),
                None => {
                    let (dtype, dims) = (term.dtype, term.dims.clone());
                    let add = |a, b| {
                        t.node(
                            Op::Add,
                            Arg::None,
                            Shaped::new(dtype, dims.clone()),
                            &[a, b],
                            &[],
                        )
                    };
                    parts.into_iter().reduce(add).expect("something is joined")
                }
            });
        }
    }
    out
}

/// Range of an index: begin and length.
#[derive(Clone, Copy)]
struct Window {
    begin: Id,
    length: Id,
}

/// Restricts a factor to a range of an index.
fn windowed(
    t: &mut TermGraph,
    factor: &TermFactor,
    index: u8,
    Window { begin, length }: Window,
) -> TermFactor {
    let Some(axis) = factor.map.iter().position(|i| *i == Some(index)) else {
        return factor.clone();
    };
    let mut dims = t.dims(factor.class);
    let mut view = View::whole(&mut t.graph, &dims);
    view.windows[axis] = (begin, length);
    dims[axis] = length;
    TermFactor {
        class: t.view(factor.class, &view, &dims),
        map: factor.map.clone(),
    }
}

/// Gathers rows before they are computed.
fn gathered(t: &mut TermGraph, term: &Term) -> Vec<Class> {
    let (Some(Op::Gather), &[x, numbers]) = (term.op(), &term.children[..]) else {
        return vec![];
    };
    let mut out = Vec::new();
    for sum in t.sums(x) {
        let Some(row) = sum.out[0] else { continue };
        for (of, other) in sides(&sum) {
            if other.has(row) || of.map[0] != Some(row) {
                continue;
            }
            let chosen = t.dims(numbers);
            let (rest, dtype) = (t.dims(of.class), t.facts(of.class).dtype);
            let dims = chosen.iter().chain(&rest[1..]).copied().collect();
            let rows = t.node(
                Op::Gather,
                Arg::None,
                Shaped::new(dtype, dims),
                &[of.class, numbers],
                &[],
            );
            // The gather's index axes replace the row index.
            let mut sizes = sum.sizes.clone();
            let new: Map = (0..chosen.len())
                .map(|i| Some((sizes.len() + i) as u8))
                .collect();
            sizes.extend(chosen);
            let put = |map: &Map| -> Map { new.iter().chain(&map[1..]).copied().collect() };
            let factors = [
                TermFactor {
                    class: rows,
                    map: put(&of.map),
                },
                other.clone(),
            ];
            out.extend(t.contract(&ProductSum {
                factors,
                out: put(&sum.out),
                sizes,
            }));
        }
    }
    out
}

/// For a weight with several row axes, puts the outermost first in the result and permutes it back.
/// Data of one head is then contiguous for its readers.
fn outer_rows(t: &mut TermGraph, term: &Term) -> Vec<Class> {
    let Some(sum) = sum_of(term) else {
        return vec![];
    };
    let [weight, other] = &sum.factors;
    let rows: Vec<u8> = weight
        .map
        .iter()
        .flatten()
        .copied()
        .filter(|&i| !sum.sums(i))
        .collect();
    let (Some(&outer), true) = (rows.first(), t.facts(weight.class).weight && rows.len() > 1)
    else {
        return vec![];
    };
    if other.has(outer) || sum.out.iter().flatten().next() == Some(&outer) {
        return vec![];
    }
    let rest = sum.out.iter().copied().filter(|i| *i != Some(outer));
    let out: Map = [Some(outer)].into_iter().chain(rest).collect();
    let moved = ProductSum {
        factors: sum.factors.clone(),
        out: out.clone(),
        sizes: sum.sizes.clone(),
    };
    let Some(class) = t.contract(&moved) else {
        return vec![];
    };
    vec![t.arranged(class, &out, &sum.out, &sum.sizes)]
}
