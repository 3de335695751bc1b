//! Rules for attention whose keys or values are computed from a cache (MLA weight absorption).
//!
//! Scores and weighted values are sums of products, so a weight contracted with the cache rows on
//! one side may instead be contracted with the other side. If queries are rounded where they meet
//! an f16 cache (`f32(f16(q))`), the rounding moves after the contraction. The error of either is
//! that of rounding the cache rows.
//!
//! Positions are one axis of keys and values, or two with pages (`PAGED_ATTENTION`); the axes of
//! heads and of a head's elements follow.

use super::rule::rules;
use crate::alternatives::term::{Class, Map, Term, View};
use crate::alternatives::terms::{ProductSum, TermFactor, TermGraph};
use gristmill_uop::shape::Dims;
use gristmill_uop::{Id, Op, Scalar};

rules! {
    equal "softmax(q·(w·c))v -> softmax((q·w)·c)v" keys_contracted;
    equal "softmax(q k)(c·w) -> (softmax(q k)c)·w" values_contracted;
    better "attention over repeated heads -> over one" repeated_heads;
    better "attention over the first rows -> over all, as far as it reads" first_rows;
}

/// Queries, keys and values of an attention in which each query head has its own keys.
fn of_heads(t: &TermGraph, term: &Term) -> Option<[Class; 3]> {
    let (Some(Op::Attention | Op::PagedAttention), &[q, k, v, ..]) =
        (term.op(), &term.children[..])
    else {
        return None;
    };
    (t.dims(q)[1] == t.dims(k)[heads_of(t, k)]).then_some([q, k, v])
}

/// Head axis of keys or values.
fn heads_of(t: &TermGraph, rows: Class) -> usize {
    t.dims(rows).len() - 2
}

/// Length of the last axis.
fn depth_of(t: &TermGraph, class: Class) -> Id {
    *t.dims(class)
        .last()
        .expect("queries, keys and values have a depth")
}

/// The same attention with other queries, keys and values.
fn with(t: &mut TermGraph, term: &Term, [q, k, v]: [Class; 3]) -> Class {
    let children: Vec<Class> = [q, k, v]
        .into_iter()
        .chain(term.children[3..].iter().copied())
        .collect();
    let mut dims = t.dims(q);
    dims[2] = depth_of(t, v);
    t.like(term, &children, dims)
}

/// Rows `[positions.., heads, d]` computed from cache rows and a weight that does
/// not depend on positions.
struct Computed {
    /// Cache rows; the maps use the indices of `sizes`: positions, heads, latent depth.
    cache: TermFactor,
    weight: TermFactor,
    positions: Map,
    heads: Option<u8>,
    /// Index of the rows' depth.
    depth: u8,
    /// Index of the latent depth.
    latent: u8,
    sizes: Dims,
}

impl Computed {
    fn all(t: &TermGraph, rows: Class) -> Vec<Computed> {
        let mut out = Vec::new();
        for sum in t.sums(rows) {
            let &[ref positions @ .., heads, depth] = &sum.out[..] else {
                continue;
            };
            let mut summed = (0..sum.sizes.len() as u8).filter(|&i| sum.sums(i));
            let (Some(latent), None, Some(depth)) = (summed.next(), summed.next(), depth) else {
                continue;
            };
            for i in 0..2 {
                let (cache, weight) = (&sum.factors[i], &sum.factors[1 - i]);
                let moved =
                    |i: &u8| positions.contains(&Some(*i)) || Some(*i) == heads || *i == latent;
                let apart = positions
                    .iter()
                    .flatten()
                    .all(|&p| cache.has(p) && !weight.has(p));
                if apart
                    && cache.map.iter().flatten().all(moved)
                    && weight.has(depth)
                    && weight.has(latent)
                {
                    let (cache, weight, sizes) = (cache.clone(), weight.clone(), sum.sizes.clone());
                    out.push(Computed {
                        cache,
                        weight,
                        positions: positions.into(),
                        heads,
                        depth,
                        latent,
                        sizes,
                    });
                }
            }
        }
        out
    }
    /// Cache rows, repeated for every head.
    fn latents(&self, t: &mut TermGraph) -> Class {
        let to: Map = self
            .positions
            .iter()
            .copied()
            .chain([self.heads, Some(self.latent)])
            .collect();
        t.arranged(self.cache.class, &self.cache.map, &to, &self.sizes)
    }
    /// Contracts the weight with `x [tokens, heads, ..]`; the last axis changes from
    /// index `from` to `to`.
    fn contracted(&self, t: &mut TermGraph, x: Class, from: u8, to: u8) -> Option<Class> {
        let (mut sizes, dims) = (self.sizes.clone(), t.dims(x));
        let token = (!t.is_one(dims[0])).then_some(sizes.len() as u8);
        sizes.push(dims[0]);
        let map = |last: u8| -> Map { [token, self.heads, Some(last)].into_iter().collect() };
        let factors = [
            self.weight.clone(),
            TermFactor {
                class: x,
                map: map(from),
            },
        ];
        t.contract(&ProductSum {
            factors,
            out: map(to),
            sizes,
        })
    }
}

/// The f32 value below a rounding to f16 and back.
fn before_rounding(t: &TermGraph, class: Class) -> Option<Class> {
    let wide = t
        .of_op(class, Op::Cast)
        .into_iter()
        .find(|c| c.dtype.scalar == Scalar::F32)?;
    let half = t
        .of_op(*wide.children.first()?, Op::Cast)
        .into_iter()
        .find(|c| c.dtype.scalar == Scalar::F16)?;
    let from = *half.children.first()?;
    (t.facts(from).dtype.scalar == Scalar::F32).then_some(from)
}

/// Splits queries into the parts that match the concatenated parts of the keys.
fn parts_of(t: &mut TermGraph, queries: Class, parts: &[Class]) -> Vec<Class> {
    let same = |t: &TermGraph, cat: &Term| {
        let depths = |of: &[Class]| of.iter().map(|&c| depth_of(t, c)).collect::<Vec<Id>>();
        cat.joined() == Some(2) && depths(&cat.children) == depths(parts)
    };
    if let Some(cat) = t
        .of_op(queries, Op::Cat)
        .into_iter()
        .find(|cat| same(t, cat))
    {
        return cat.children.to_vec();
    }
    let (mut begin, mut out) = (t.graph.int(0), Vec::new());
    for &part in parts {
        let mut dims = t.dims(queries);
        let mut view = View::whole(&mut t.graph, &dims);
        dims[2] = depth_of(t, part);
        view.windows[2] = (begin, dims[2]);
        out.push(t.view(queries, &view, &dims));
        begin = t.graph.add(begin, dims[2]);
    }
    out
}

/// Absorbs the weight of keys computed from a cache into the queries, for all keys or
/// for each concatenated part.
fn keys_contracted(t: &mut TermGraph, term: &Term) -> Vec<Class> {
    let Some([q, k, v]) = of_heads(t, term) else {
        return vec![];
    };
    let depth = heads_of(t, k) + 1;
    let along_depth = |c: &Term| c.joined() == Some(depth);
    let joined: Vec<Vec<Class>> = t
        .of_op(k, Op::Cat)
        .into_iter()
        .filter(along_depth)
        .map(|c| c.children.to_vec())
        .collect();
    let mut out = Vec::new();
    for keys in joined.into_iter().chain([vec![k]]) {
        for i in 0..keys.len() {
            for computed in Computed::all(t, keys[i]) {
                let queries = if keys.len() == 1 {
                    vec![q]
                } else {
                    parts_of(t, q, &keys)
                };
                out.extend(absorbed(t, term, [&queries, &keys], v, i, &computed));
            }
        }
    }
    out
}

fn absorbed(
    t: &mut TermGraph,
    term: &Term,
    [queries, keys]: [&[Class]; 2],
    values: Class,
    part: usize,
    computed: &Computed,
) -> Option<Class> {
    let exact = before_rounding(t, queries[part]);
    let mut new = computed.contracted(
        t,
        exact.unwrap_or(queries[part]),
        computed.depth,
        computed.latent,
    )?;
    if exact.is_some() {
        new = t.cast(new, Scalar::F16);
        new = t.cast(new, Scalar::F32);
    }
    let put = |all: &[Class], new: Class| -> Vec<Class> {
        all.iter()
            .enumerate()
            .map(|(i, &c)| if i == part { new } else { c })
            .collect()
    };
    let latents = computed.latents(t);
    let depth = heads_of(t, latents) + 1;
    let (q, k) = (
        t.cat(&put(queries, new), 2),
        t.cat(&put(keys, latents), depth),
    );
    Some(with(t, term, [q, k, values]))
}

fn values_contracted(t: &mut TermGraph, term: &Term) -> Vec<Class> {
    let Some([q, k, v]) = of_heads(t, term) else {
        return vec![];
    };
    let mut out = Vec::new();
    for computed in Computed::all(t, v) {
        let latents = computed.latents(t);
        let read = with(t, term, [q, k, latents]);
        out.extend(computed.contracted(t, read, computed.latent, computed.depth));
    }
    out
}

/// Keys and values that are repeated over heads are replaced by those of one head.
fn repeated_heads(t: &mut TermGraph, term: &Term) -> Vec<Class> {
    let Some([q, k, v]) = of_heads(t, term) else {
        return vec![];
    };
    let heads = heads_of(t, k);
    if t.is_one(t.dims(k)[heads]) {
        return vec![];
    }
    let one = t.graph.int(1);
    let mut once = Vec::new();
    for rows in [k, v] {
        let (source, view) = t.source(rows);
        let mut dims = t.dims(rows);
        if view.axes[heads].is_some() {
            return vec![];
        }
        dims[heads] = one;
        once.push(t.view(source, &view, &dims));
    }
    vec![with(t, term, [q, once[0], once[1]])]
}

/// No position after the length is read.
fn first_rows(t: &mut TermGraph, term: &Term) -> Vec<Class> {
    let (Some(Op::Attention), &[q, k, v, ..]) = (term.op(), &term.children[..]) else {
        return vec![];
    };
    let crate::alternatives::term::TermForm::Node { sources, .. } = &term.form else {
        return vec![];
    };
    let crate::alternatives::term::Source::Scalar(length) = sources[4] else {
        return vec![];
    };
    let mut all = Vec::new();
    for rows in [k, v] {
        let (source, mut view) = t.source(rows);
        let Some(axis) = view.axes[0].map(usize::from) else {
            return vec![];
        };
        let (begin, rows_read) = view.windows[axis];
        let whole = t.dims(source)[axis];
        if t.graph.int_value(begin) != Some(0) || rows_read != length || whole == length {
            return vec![];
        }
        view.windows[axis].1 = whole;
        let mut dims = t.dims(rows);
        dims[0] = whole;
        all.push(t.view(source, &view, &dims));
    }
    if t.dims(all[0])[0] != t.dims(all[1])[0] {
        return vec![];
    }
    vec![with(t, term, [q, all[0], all[1]])]
}
