//! The kernel-level vocabulary that scheduling, cost model, mapping and lowering share: nests,
//! their ranges and indices.
//!
//! A nest is an `Op::Store`: loops over its closed ranges around one expression. Its sources are,
//! in this order: buffer, offset, value, closed ranges.

use gristmill_uop::{Arg, DType, Graph, Id, Node, Op, RangeKind, ReduceOp, Scalar};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::{SmallVec, smallvec};

/// Indices of one element, one per axis.
pub type Indices = SmallVec<[Id; 6]>;

/// The parts of a nest.
#[derive(Clone, Debug)]
pub struct Nest {
    /// Buffer that is written: a parameter, or a stage of the workgroup.
    pub buffer: Id,
    /// Element offset in the buffer.
    pub offset: Id,
    /// Value that is stored.
    pub value: Id,
    /// Whether the value is added to the buffer's element.
    pub adds: bool,
    /// Ranges of its loops, outermost first.
    pub closed: Vec<Id>,
}

impl Nest {
    /// Destructures the sources of a store.
    pub fn from_store(g: &Graph, store: Id) -> Nest {
        let &[buffer, offset, value, ref closed @ ..] = &g[store].src[..] else {
            unreachable!("a nest has a buffer, an offset and a value: {:?}", g[store])
        };
        Nest {
            buffer,
            offset,
            value,
            adds: adds(g, store),
            closed: closed.to_vec(),
        }
    }
    /// Removes the loops of kind `kind`; returns the new store and the removed ranges.
    pub fn split_loops(mut self, g: &mut Graph, kind: RangeKind) -> (Id, Vec<Id>) {
        let (split, left) = self
            .closed
            .iter()
            .copied()
            .partition(|&r| g.range_kind(r) == Some(kind));
        self.closed = left;
        (self.store(g), split)
    }
    /// Adds these loops around its own.
    pub fn with_loops(mut self, loops: &[Id]) -> Nest {
        self.closed.splice(0..0, loops.iter().copied());
        self
    }
    /// Builds the store of these parts.
    pub fn store(&self, g: &mut Graph) -> Id {
        match self.adds {
            true => g.add_to(self.buffer, self.offset, self.value, &self.closed),
            false => g.store(self.buffer, self.offset, self.value, &self.closed),
        }
    }
    /// Makes an adding nest add nothing unless all conditions of `inside` hold. Surplus iterations
    /// repeat the last element, which may be stored twice but not added twice.
    pub fn only_where(&mut self, g: &mut Graph, inside: &[Id]) {
        if self.adds && !inside.is_empty() {
            let nothing = nothing(g, self.value);
            self.value = inside.iter().fold(self.value, |value, &condition| {
                g.select(condition, value, nothing)
            });
        }
    }
}

/// Whether a nest adds to its buffer.
pub fn adds(g: &Graph, store: Id) -> bool {
    g[store].arg != Arg::None
}

/// The value whose addition changes no bit: −0.0 for floats, 0 for integers.
fn nothing(g: &mut Graph, value: Id) -> Id {
    let scalar = g.scalar(value);
    g.constant(scalar, if scalar.is_float() { -0.0 } else { 0.0 })
}

/// Splits an added value into its conditions and the value under them.
pub fn unmasked(g: &mut Graph, value: Id) -> (Option<Id>, Id) {
    let nothing = nothing(g, value);
    let (mut when, mut value) = (None, value);
    while let (Op::Where, &[condition, inner, other]) = (g[value].op, &g[value].src[..])
        && other == nothing
    {
        when = Some(when.map_or(condition, |all| g.and(all, condition)));
        value = inner;
    }
    (when, value)
}

/// Creates ranges with increasing numbers, which fix the order of loops, lanes and threads.
#[derive(Clone)]
pub struct Ranges {
    last: u32,
}

impl Ranges {
    /// A source of ranges with numbers above `last`.
    pub fn after(last: u32) -> Ranges {
        Ranges { last }
    }
    /// A new range of kind `kind`, or the index 0 if the bound is 1.
    pub fn range(&mut self, g: &mut Graph, bound: Id, kind: RangeKind) -> Id {
        if g.int_value(bound) == Some(1) {
            return g.int(0);
        }
        self.last += 1;
        g.range(bound, self.last, kind)
    }
    /// A new range with a constant number of iterations.
    pub fn fixed(&mut self, g: &mut Graph, bound: i64, kind: RangeKind) -> Id {
        let bound = g.int(bound);
        self.range(g, bound, kind)
    }
}

/// Global ranges of a kernel's nests, ordered by number: the launch grid.
pub fn global_ranges(g: &Graph, nests: &[Id]) -> Vec<Id> {
    let mut found: Vec<Id> = g
        .toposort(nests)
        .into_iter()
        .filter(|&n| g.range_kind(n) == Some(RangeKind::Global))
        .collect();
    found.sort_by_key(|&r| g.range_number(r));
    found
}

/// Upper bound of the number of workgroups of these nests.
pub fn workgroups(g: &Graph, nests: &[Id]) -> i64 {
    global_ranges(g, nests)
        .iter()
        .map(|&r| g.max_of(g[r].src[0]))
        .fold(1, i64::saturating_mul)
}

/// The ranges of a kind, ordered by number.
pub fn ranges_of_kind(g: &Graph, all: &[Id], kind: RangeKind) -> Vec<Id> {
    let mut found: Vec<Id> = all
        .iter()
        .copied()
        .filter(|&r| g.range_kind(r) == Some(kind))
        .collect();
    found.sort_by_key(|&r| g.range_number(r));
    found
}

/// Reductions of a nest that are inside no other reduction.
pub fn outermost_reductions(g: &Graph, nest: Id) -> Vec<Id> {
    // The walk stops at a reduction; one reached by another path may still be inside another.
    let mut found: Vec<Id> = Vec::new();
    let mut seen = FxHashSet::default();
    let mut stack = vec![nest];
    while let Some(n) = stack.pop() {
        match g[n].op {
            _ if !seen.insert(n) => {}
            Op::Reduce => found.push(n),
            _ => stack.extend(g[n].src.iter().rev()),
        }
    }
    let Some(&oldest) = found.iter().min().filter(|_| found.len() > 1) else {
        return found;
    };
    let terms: Vec<Id> = found.iter().map(|&n| g[n].src[0]).collect();
    let inside: FxHashSet<Id> = g
        .toposort_within(&terms, |n| n >= oldest)
        .into_iter()
        .collect();
    found.retain(|n| !inside.contains(n));
    found
}

/// Row-major offset of an element.
pub fn flatten(g: &mut Graph, dims: &[Id], index: &[Id]) -> Id {
    let mut offset = g.int(0);
    for (&d, &i) in dims.iter().zip(index) {
        // Strides use the largest size of each dim, so that they are constants.
        let max = g.max_of(d);
        let max = g.int(max);
        offset = g.mul(offset, max);
        offset = g.add(offset, i);
    }
    offset
}

/// An index from ranges and their strides.
pub fn strided(g: &mut Graph, parts: &[(Id, i64)]) -> Id {
    let zero = g.int(0);
    parts.iter().fold(zero, |at, &(part, distance)| {
        let distance = g.int(distance);
        let part = g.mul(part, distance);
        g.add(at, part)
    })
}

/// Distance between the address at `values` and the address at zero, as far
/// as constants determine it.
///
/// Works on a small graph of its own. A copy of the graph for each trial took a third of the
/// planning time of a prefill layer.
pub fn distance(g: &Graph, address: Id, values: &[(Id, i64)]) -> i64 {
    let depends = |id: Id| {
        values
            .iter()
            .any(|(range, _)| g.free_ranges(id).contains(range))
    };
    if !depends(address) {
        return 0;
    }
    let walk = g.toposort_within(&[address], depends);
    let mut own = Graph::new();
    let mut known = FxHashMap::default();
    // Subexpressions that do not change are replaced by variables.
    for source in walk
        .iter()
        .flat_map(|&n| g[n].src.iter().copied())
        .filter(|&s| !depends(s))
    {
        if g[source].op != Op::Const && g.scalar(source) == Scalar::I64 {
            let (least, most) = g
                .bounds(source)
                .unwrap_or((i32::MIN.into(), i32::MAX.into()));
            known.insert(source, own.var(&source.index().to_string(), least, most));
        }
    }
    let [first, then] = [0, 1].map(|times| {
        let mut map = known.clone();
        map.extend(
            values
                .iter()
                .map(|&(range, value)| (range, own.int(times * value))),
        );
        let at = own.import(g, address, &mut map);
        own.linear(at).constant
    });
    then - first
}

/// Returns `value` with every node below it replaced for which `new` returns one.
pub fn replaced(g: &mut Graph, value: Id, new: impl Fn(&mut Graph, Id) -> Option<Id>) -> Id {
    let mut map = FxHashMap::default();
    for n in g.toposort(&[value]) {
        if let Some(new) = new(g, n) {
            map.insert(n, new);
        }
    }
    if map.is_empty() {
        value
    } else {
        g.substitute(value, &mut map)
    }
}

/// The identity element of a reduction.
pub fn identity(g: &mut Graph, op: ReduceOp, dtype: DType) -> Id {
    let s = dtype.scalar;
    let one = match op {
        ReduceOp::Add => g.constant(s, 0.0),
        ReduceOp::Max if s.is_float() => g.constant(s, f64::NEG_INFINITY),
        ReduceOp::Max => {
            let lo = s.range().map_or(i64::MIN, |r| r.0);
            g.int_of(s, lo)
        }
    };
    if dtype.lanes == 1 {
        return one;
    }
    g.intern(Node {
        op: Op::Splat,
        dtype,
        src: smallvec![one],
        arg: Arg::None,
    })
}

/// Whether the host can evaluate the bound of this range before the launch.
pub fn host_bound(g: &Graph, r: Id) -> bool {
    !g.any(g[r].src[0], |_, n| matches!(n.op, Op::Load | Op::Range))
}

/// The largest power of two that is at most `n`.
pub fn floor_power(n: i64) -> i64 {
    1 << (63 - n.max(1).leading_zeros())
}

/// The largest divisor of `n` that is at most `limit`.
pub fn divisor(n: i64, limit: i64) -> i64 {
    (1..=limit.min(n)).rev().find(|d| n % d == 0).unwrap_or(1)
}

/// The largest power of two that divides `n` and is at most `limit`.
pub fn power_divisor(n: i64, limit: i64) -> i64 {
    (0..=limit.max(1).ilog2())
        .rev()
        .map(|p| 1 << p)
        .find(|p| n % p == 0)
        .unwrap_or(1)
}
