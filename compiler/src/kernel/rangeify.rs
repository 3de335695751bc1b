//! Rangeify: lowers a tensor-level node at given indices to a kernel-level expression. Movement ops
//! become index arithmetic, reductions get ranges, and materialised nodes become loads.

use crate::decompose::int8::{Derived, Dot};
use crate::ir::hints::FusedSum;
use crate::ir::nest::{Indices, Ranges, flatten, strided};
use gristmill_uop::shape::Dims;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind, ReduceOp, Scalar, Sources, rules};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::smallvec;

/// How the terms of a tile or fragment product are cut.
struct Steps {
    /// Terms of a block of the weight.
    block: i64,
    /// Terms of a tile or a step.
    unit: i64,
}

/// Expands nodes to expressions, given which nodes are materialised and which
/// are read through placeholders.
pub struct Expander<'a> {
    /// Materialised nodes, with the PARAM of their buffer.
    pub buffers: &'a FxHashMap<Id, Id>,
    /// Fusion candidates, read as `Op::Index` placeholders until `fuse` has decided.
    pub candidates: &'a FxHashSet<Id>,
    /// Source of the kernel's ranges.
    pub ranges: Ranges,
    /// Reductions that iterate over the loop shared by the workgroup's nests.
    pub fused: Option<FusedSum>,
    /// A sum over that loop with nothing else carried.
    pub looped: Option<Id>,
    /// The shared loop, once created.
    pub shared: Option<Id>,
    derived: &'a Derived,
    /// Reads of quantised activations: kernel-level value to node and indices.
    reads: FxHashMap<Id, (Id, Indices)>,
    memo: FxHashMap<(Id, Indices), Id>,
}

impl<'a> Expander<'a> {
    /// An expander for these materialised nodes and candidates.
    pub fn new(
        buffers: &'a FxHashMap<Id, Id>,
        candidates: &'a FxHashSet<Id>,
        derived: &'a Derived,
    ) -> Expander<'a> {
        let (reads, memo) = (FxHashMap::default(), FxHashMap::default());
        Expander {
            buffers,
            candidates,
            ranges: Ranges::after(0),
            fused: None,
            looped: None,
            shared: None,
            derived,
            reads,
            memo,
        }
    }
    /// A dim as a kernel-level expression, which may contain scalars read from buffers.
    ///
    /// A loaded scalar has no bound, and a rule has removed the minimum that repeated the
    /// dim's own bound. The bound is restored here, because workgroup and loop counts use the
    /// maximum of a dim.
    pub fn dim(&mut self, g: &mut Graph, dim: Id) -> Id {
        if matches!(g[dim].op, Op::Const | Op::Var) {
            return dim;
        }
        let size = self.value(g, dim, &[]);
        let of = |g: &Graph, id: Id| g.bounds(id).map_or(i64::MAX, |(_, most)| most);
        let most = of(g, dim);
        if most >= of(g, size) {
            return size;
        }
        let most = g.int_of(g.scalar(dim), most);
        g.min(size, most)
    }
    /// The value of `node` at `index`: a load if it is materialised, a placeholder if
    /// it is a candidate.
    pub fn value(&mut self, g: &mut Graph, node: Id, index: &[Id]) -> Id {
        let index: Indices = if g.shape(node).is_empty() {
            Indices::new()
        } else {
            index.into()
        };
        if let Some(&v) = self.memo.get(&(node, index.clone())) {
            return v;
        }
        let v = if let Some(&buffer) = self.buffers.get(&node) {
            let dims = g.shape(node);
            let offset = self.derived.place(g, node, &dims, &index);
            let dtype = g[node].dtype;
            g.load(buffer, offset, dtype)
        } else if self.candidates.contains(&node) {
            let mut src: Sources = Sources::new();
            src.push(node);
            src.extend(index.iter().copied());
            let dtype = g[node].dtype;
            g.build(Op::Index, dtype, src, Arg::None)
        } else {
            self.compute(g, node, &index)
        };
        if self.derived.planes.contains_key(&node) {
            self.reads.insert(v, (node, index.clone()));
        }
        self.memo.insert((node, index), v);
        v
    }
    /// An integer contraction at `index`, by the rules of `uop/src/rules/dot.rs`.
    ///
    /// Its range is cut into blocks of the weight, units that share vectors, groups that share
    /// scales, words, and bytes.
    fn dot(&mut self, g: &mut Graph, node: Id, index: &[Id], dot: &Dot) -> Id {
        let [block, unit, group] = dot.sizes;
        let product = g[node].src[0];
        let columns = g.max_of(*g.dims(product).last().expect("a contraction has an axis"));
        let sizes = [
            (columns / block, block, RangeKind::Reduce),
            (block / unit, unit, RangeKind::Reduce),
            (unit / group, group, RangeKind::Unroll),
            (group / 4, 4, RangeKind::Unroll),
            (4, 1, RangeKind::Unroll),
        ];
        let parts = sizes.map(|(count, step, kind)| (self.ranges.fixed(g, count, kind), step));
        let mut inner: Indices = index.into();
        inner.push(strided(g, &parts));
        let value = self.value(g, product, &inner);
        let ranges = |g: &Graph, of: &[(Id, i64)]| -> Vec<Id> {
            of.iter()
                .map(|p| p.0)
                .filter(|&r| g[r].op == Op::Range)
                .collect()
        };
        let (outer, of_group) = (ranges(g, &parts[..3]), ranges(g, &parts[3..]));
        let sum = g.reduce_ranges(value, &of_group, ReduceOp::Add);
        let sum = self.in_integers(g, sum, dot);
        let sum = self.sums_as_planes(g, sum, &of_group, dot);
        g.reduce_ranges(sum, &outer, ReduceOp::Add)
    }
    /// Rewrites the sum over a group as an integer sum.
    fn in_integers(&self, g: &mut Graph, sum: Id, dot: &Dot) -> Id {
        let on = |rule: &str| match rule {
            rules::dot::SIGNED => self.derived.signed_codes,
            // This rule needs integers from −127 to 127.
            rules::dot::ROWS => dot.s.is_none(),
            _ => true,
        };
        rules::dot::derive(g, sum, &on)
    }
    /// Replaces sums of activations over the ranges `of_group` in `sum` by reads of the precomputed
    /// group sums, factors included.
    fn sums_as_planes(&mut self, g: &mut Graph, sum: Id, of_group: &[Id], dot: &Dot) -> Id {
        let mut map = FxHashMap::default();
        for id in g.toposort(&[sum]) {
            let n = &g[id];
            let (inner, factor) = match n.op {
                Op::Mul => (n.src[0], g.int_value(n.src[1])),
                _ => (id, Some(1)),
            };
            let Some(at) = self.of_activations(g, inner, of_group, dot) else {
                continue;
            };
            let Some((s, _)) = dot.s.filter(|s| Some(s.1) == factor) else {
                continue;
            };
            let at = group_of(g, at, of_group, dot.sizes[2]);
            map.insert(id, self.value(g, s, &at));
        }
        let sum = g.substitute(sum, &mut map);
        let left = |id: Id| self.of_activations(g, id, of_group, dot).is_some();
        debug_assert!(
            dot.s.is_none() || !g.toposort(&[sum]).into_iter().any(left),
            "sums of activations that are no plane"
        );
        sum
    }
    /// Indices of the activations, if `id` is their sum over the ranges `of_group`.
    fn of_activations(&self, g: &Graph, id: Id, of_group: &[Id], dot: &Dot) -> Option<Indices> {
        let n = &g[id];
        let is_sum = n.op == Op::Reduce && n.src[1..] == *of_group && g[n.src[0]].op == Op::Cast;
        let read = self.reads.get(&g[*n.src.first()?].src.first().copied()?);
        read.filter(|r| is_sum && r.0 == dot.q).map(|r| r.1.clone())
    }
    /// A tile or fragment product at `index`. Its range is cut into blocks of the weight, units of
    /// these, and the terms of a tile or a step.
    fn tiled(&mut self, g: &mut Graph, node: Id, index: &[Id], steps: Steps) -> Id {
        let Steps { block, unit } = steps;
        let product = g[node].src[0];
        let columns = g.max_of(*g.dims(product).last().expect("a contraction has an axis"));
        let sizes = [
            (columns / block, block, RangeKind::Reduce),
            (block / unit, unit, RangeKind::Reduce),
            (unit, 1, RangeKind::Unroll),
        ];
        let parts = sizes.map(|(count, step, kind)| (self.ranges.fixed(g, count, kind), step));
        let mut inner: Indices = index.into();
        inner.push(strided(g, &parts));
        let value = self.value(g, product, &inner);
        let ranges: Vec<Id> = parts
            .iter()
            .map(|p| p.0)
            .filter(|&r| g[r].op == Op::Range)
            .collect();
        g.reduce_ranges(value, &ranges, ReduceOp::Add)
    }
    /// The value of `node` at `index`, computed in place even if it is materialised.
    pub fn compute(&mut self, g: &mut Graph, node: Id, index: &[Id]) -> Id {
        let n = g[node].clone();
        match n.op {
            Op::Const | Op::Var => node,
            Op::Param => {
                let dims = g.shape(node);
                let offset = flatten(g, &dims, index);
                g.load(node, offset, n.dtype)
            }
            Op::Iota => match &n.arg {
                Arg::Axes(a) => index[a[0] as usize],
                _ => unreachable!("iota without an axis"),
            },
            Op::Decode => self.decode(g, n.src[0], index),
            Op::Copy => self.value(g, n.src[0], index),
            Op::Reshape | Op::Expand | Op::Permute | Op::Shrink => {
                let inner = self.moved(g, node, index);
                self.value(g, n.src[0], &inner)
            }
            Op::Gather => {
                let rank = g.shape(n.src[1]).len();
                let at = self.value(g, n.src[1], &index[..rank]);
                let mut inner = Indices::new();
                inner.push(g.cast(at, Scalar::I64));
                inner.extend(index[rank..].iter().copied());
                self.value(g, n.src[0], &inner)
            }
            Op::Reduce if self.derived.dots.contains_key(&node) => {
                let derived = self.derived;
                self.dot(g, node, index, &derived.dots[&node])
            }
            Op::Reduce if self.derived.tiled.contains_key(&node) => {
                let [block, unit] = self.derived.tiled[&node];
                self.tiled(g, node, index, Steps { block, unit })
            }
            Op::Reduce if self.derived.of_halves.contains_key(&node) => {
                let step = self.derived.of_halves[&node].step;
                self.tiled(
                    g,
                    node,
                    index,
                    Steps {
                        block: step,
                        unit: step,
                    },
                )
            }
            Op::Reduce => self.reduce(g, node, index),
            _ if n.op.is_elementwise() => {
                let src: Sources = n.src.iter().map(|&s| self.value(g, s, index)).collect();
                g.build(n.op, n.dtype, src, n.arg.clone())
            }
            _ => unreachable!("{:?} has a place of its own", n.op),
        }
    }
    /// Maps `index` of a movement op to the index of its source.
    fn moved(&mut self, g: &mut Graph, movement: Id, index: &[Id]) -> Indices {
        let n = g[movement].clone();
        let old: Dims = g.shape(n.src[0]);
        match (n.op, &n.arg) {
            (Op::Reshape, _) => {
                let new: Dims = g.shape(movement);
                match strides_are_constant(g, &old, &new) {
                    true => unflatten(g, &new, index, &old),
                    false => self.unflatten_by_size(g, &new, index, &old),
                }
            }
            (Op::Expand, _) => {
                let (one, zero) = (g.int(1), g.int(0));
                index
                    .iter()
                    .zip(&old)
                    .map(|(&i, &d)| if d == one { zero } else { i })
                    .collect()
            }
            (Op::Permute, Arg::Axes(order)) => {
                let mut inner: Indices = index.into();
                for (new, &old) in order.iter().enumerate() {
                    inner[old as usize] = index[new];
                }
                inner
            }
            (Op::Shrink, _) => {
                let begins = n.src.iter().skip(1).step_by(2);
                let at = |(&begin, &i): (&Id, &Id)| {
                    let begin = self.dim(g, begin);
                    g.add(begin, i)
                };
                begins.zip(index).map(at).collect()
            }
            _ => unreachable!("{:?} moves nothing", n.op),
        }
    }
    /// Works like [`unflatten`], with strides that follow from the sizes of a step.
    fn unflatten_by_size(
        &mut self,
        g: &mut Graph,
        new: &[Id],
        index: &[Id],
        old: &[Id],
    ) -> Indices {
        let mut rest = g.int(0);
        for (&d, &i) in new.iter().zip(index) {
            let size = self.dim(g, d);
            rest = g.mul(rest, size);
            rest = g.add(rest, i);
        }
        let mut out = Indices::new();
        for &d in old[1..].iter().rev() {
            let size = self.dim(g, d);
            out.push(g.modulo(rest, size));
            rest = g.idiv(rest, size);
        }
        out.push(rest);
        out.reverse();
        out
    }
    /// The dequantised value of `packed` at `index`.
    fn decode(&mut self, g: &mut Graph, packed: Id, index: &[Id]) -> Id {
        let Arg::Packed(slot, encoding) = g[packed].arg else {
            unreachable!("decode of a plain tensor")
        };
        let dims = g.shape(packed);
        let (&last, front) = dims.split_last().expect("a packed tensor has rows");
        let row = flatten(g, front, &index[..front.len()]);
        let columns = g.max_of(last) as usize;
        if let Some((layout, packing)) = self.derived.layouts.get(&slot) {
            let place = packing.place(g, *layout, row, index[front.len()], columns as i64);
            return packing.decode(g, packed, &place);
        }
        let row_bytes = encoding
            .row_bytes(columns)
            .expect("rows are whole blocks: checked at load");
        let k = index[front.len()];
        let c = g.int(row_bytes as i64);
        let row = g.mul(row, c);
        let elements = g.int(encoding.elements as i64);
        let bytes = g.int(encoding.bytes as i64);
        let block = g.idiv(k, elements);
        let block = g.mul(block, bytes);
        let base = g.add(row, block);
        let within = g.modulo(k, elements);
        encoding.decode(g, packed, base, within)
    }
    /// A reduction at `index`, over new ranges.
    fn reduce(&mut self, g: &mut Graph, node: Id, index: &[Id]) -> Id {
        let n = g[node].clone();
        let Arg::Reduce(op, axes) = &n.arg else {
            unreachable!("reduce without axes")
        };
        let dims = g.shape(n.src[0]);
        let mut inner = Indices::new();
        let mut ranges: Vec<Id> = Vec::new();
        let mut outer = index.iter().copied();
        for (axis, &d) in dims.iter().enumerate() {
            if axes.contains(&(axis as u8)) {
                let bound = self.dim(g, d);
                let r = match axis {
                    0 if self.is_carried(node) => self.shared_loop(g, bound),
                    _ => self.ranges.range(g, bound, RangeKind::Reduce),
                };
                if g[r].op == Op::Range {
                    ranges.push(r);
                }
                inner.push(r);
            } else {
                inner.push(outer.next().expect("rank"));
            }
        }
        let value = self.value(g, n.src[0], &inner);
        let value = if ranges.is_empty() {
            value
        } else {
            g.reduce_ranges(value, &ranges, *op)
        };
        match self.fused.filter(|f| f.sums.contains(&node)) {
            Some(FusedSum { most, .. }) => {
                let rank = g.shape(most).len();
                let most = self.value(g, most, &index[..rank]);
                // A maximum from an earlier kernel already covers all chunks;
                // no rescaling is needed.
                if g[most].op == Op::Load && g[g[most].src[0]].op == Op::Param {
                    return value;
                }
                g.build(
                    Op::Rescaled,
                    n.dtype,
                    smallvec![value, most] as Sources,
                    Arg::None,
                )
            }
            None => value,
        }
    }
    /// Whether `node` is a reduction over the loop that nests share.
    pub fn is_carried(&self, node: Id) -> bool {
        self.looped == Some(node)
            || self
                .fused
                .is_some_and(|f| f.most == node || f.sums.contains(&node))
    }
    /// Whether `node` is computed from such a reduction without being one.
    pub fn reads_carried(&self, g: &Graph, node: Id) -> bool {
        self.fused.is_some() && !self.is_carried(node) && g.any(node, |n, _| self.is_carried(n))
    }
    /// The loop that the workgroup's nests share, created on first use.
    fn shared_loop(&mut self, g: &mut Graph, bound: Id) -> Id {
        let ranges = &mut self.ranges;
        *self
            .shared
            .get_or_insert_with(|| ranges.range(g, bound, RangeKind::Fused))
    }
}

/// The index into precomputed group sums, for the group of `size` elements that contains `at`.
fn group_of(g: &mut Graph, mut at: Indices, of_group: &[Id], size: i64) -> Indices {
    let zero = g.int(0);
    let mut first = FxHashMap::from_iter(of_group.iter().map(|&r| (r, zero)));
    let last = at.pop().expect("planes have an axis");
    let last = g.substitute(last, &mut first);
    let size = g.int(size);
    at.push(g.idiv(last, size));
    at
}

/// Whether a reshape maps indices with strides of the largest dims, which are constants: in every
/// part of the shapes with equal products, only the first axis varies.
fn strides_are_constant(g: &Graph, old: &[Id], new: &[Id]) -> bool {
    // A dim is a constant times what varies, if anything does.
    let factors = |&d: &Id| match (g.int_value(d), g[d].op) {
        (Some(size), _) => (None, size),
        (None, Op::Mul) => match g.int_value(g[d].src[1]) {
            Some(times) => (Some(g[d].src[0]), times),
            None => (Some(d), 1),
        },
        _ => (Some(d), 1),
    };
    let is_long = |f: &(Option<Id>, i64)| *f != (None, 1);
    let mut old = old.iter().map(factors).filter(is_long);
    let mut new = new.iter().map(factors).filter(is_long);
    while let (Some(mut a), Some(mut b)) = (old.next(), new.next()) {
        while a != b {
            let (behind, shape) = match (a.0 == b.0, a.0.is_none(), a.1 < b.1) {
                (true, _, true) | (false, true, _) => (&mut a, &mut old),
                _ => (&mut b, &mut new),
            };
            match shape.next() {
                Some((None, size)) => behind.1 *= size,
                _ => return false,
            }
        }
    }
    old.next().is_none() && new.next().is_none()
}

/// Converts `index` of shape `new` to the index of the same element in shape `old`,
/// row-major. Common leading and trailing axes pass through, so that only the axes
/// that changed need divisions.
pub fn unflatten(g: &mut Graph, new: &[Id], index: &[Id], old: &[Id]) -> Indices {
    let one = g.int(1);
    let zero = g.int(0);
    // Equal leading axes.
    let front = new.iter().zip(old).take_while(|(a, b)| a == b).count();
    let tail = new[front..]
        .iter()
        .rev()
        .zip(old[front..].iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    let (new_mid, old_mid) = (&new[front..new.len() - tail], &old[front..old.len() - tail]);
    let mut out: Indices = index[..front].into();
    let flat = flatten(g, new_mid, &index[front..new.len() - tail]);
    let mut rest = flat;
    let mut mid: Indices = Indices::new();
    let significant = old_mid.iter().position(|&d| d != one);
    for (i, &d) in old_mid.iter().enumerate().rev() {
        if d == one {
            mid.push(zero);
        } else if Some(i) == significant {
            mid.push(rest);
        } else {
            let max = g.max_of(d);
            let max = g.int(max);
            mid.push(g.modulo(rest, max));
            rest = g.idiv(rest, max);
        }
    }
    out.extend(mid.into_iter().rev());
    out.extend(index[new.len() - tail..].iter().copied());
    out
}
