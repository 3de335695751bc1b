//! Mapping of the threads of a workgroup to the ranges of a nest. This is its single definition:
//! dialects print it, the interpreter runs it, and lowering to MMA products relies on it.

use gristmill_uop::{Arg, Graph, Id, Node, Op, RangeKind, Sources};
use rustc_hash::FxHashMap;
use smallvec::smallvec;

/// The index of a range that belongs to a thread: `(thread / divide) % modulo`, where
/// each step is optional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadIndex {
    /// Range that is indexed.
    pub range: Id,
    /// Threads between consecutive indices; `None` means 1.
    pub divide: Option<i64>,
    /// Number of indices, after which they repeat; `None` if they never repeat.
    pub modulo: Option<i64>,
}

impl ThreadIndex {
    /// Returns the index that a thread has.
    pub fn for_thread(&self, thread: i64) -> i64 {
        let at = thread / self.stride();
        self.modulo.map_or(at, |n| at % n)
    }
    /// Returns the distance in threads between consecutive indices; lanes that a subgroup reduction
    /// over the range combines are this far apart.
    pub fn stride(&self) -> i64 {
        self.divide.unwrap_or(1)
    }
}

/// Maps `threads` threads row-major to these ranges, which are sorted by number. Mapped separately:
/// a range of all threads, and lanes after the first of several groups.
pub fn count(g: &Graph, ranges: &[Id], threads: i64) -> Vec<ThreadIndex> {
    let bound = |r: Id| {
        g.int_value(g[r].src[0])
            .unwrap_or_else(|| panic!("threads of {:?} cannot be counted", g[r]))
    };
    let is_group = |r: Id| g.range_kind(r) == Some(RangeKind::Vector);
    let groups: Vec<Id> = ranges.iter().copied().filter(|&r| is_group(r)).collect();
    if groups.len() > 1 {
        let mut stride = 1;
        let mut out = Vec::new();
        for &range in ranges.iter().rev() {
            let modulo = Some(bound(range));
            // Lanes outside all groups each contain a whole copy of the groups.
            if is_group(range) || g.range_number(range) < g.range_number(groups[0]) {
                out.push(ThreadIndex {
                    range,
                    divide: Some(stride),
                    modulo,
                });
                stride *= bound(range);
            } else {
                out.push(ThreadIndex {
                    range,
                    divide: None,
                    modulo,
                });
            }
        }
        debug_assert!(
            stride <= threads,
            "{stride} threads are counted over {groups:?}, and a workgroup has {threads}"
        );
        return out;
    }
    let group = groups.first().copied();
    let many = group.map_or(1, bound);
    let index = |&range: &Id| {
        let number = g.range_number(range);
        if Some(range) == group {
            let inner = ranges
                .iter()
                .any(|&x| x != range && g.range_number(x) < number && bound(x) != threads);
            let (divide, modulo) = if inner {
                (None, Some(many))
            } else {
                (Some(threads / many), None)
            };
            return ThreadIndex {
                range,
                divide,
                modulo,
            };
        }
        let outer =
            group.is_some_and(|group| number < g.range_number(group)) && bound(range) < threads;
        ThreadIndex {
            range,
            divide: Some(if outer { many } else { 1 }),
            modulo: Some(bound(range)),
        }
    };
    ranges.iter().map(index).collect()
}

/// Returns whether the lanes that reduce a sum of `nest` differ only in their terms.
///
/// If the terms depend on another range that shares the same threads, a lane adds terms of its
/// neighbour's index and the sum is wrong.
pub fn folds_alike(g: &Graph, nest: Id, counted: &[ThreadIndex]) -> bool {
    let of = |r: Id| counted.iter().find(|t| t.range == r);
    let end = |t: &ThreadIndex| t.stride() * t.modulo.unwrap_or(i64::MAX / t.stride());
    let apart = |a: &ThreadIndex, b: &ThreadIndex| end(a) <= b.stride() || end(b) <= a.stride();
    g.toposort(&[nest])
        .into_iter()
        .filter(|&n| g[n].op == Op::Reduce)
        .all(|n| {
            let lanes = g[n].src[1..].iter().filter_map(|&r| of(r));
            lanes.into_iter().all(|lane| {
                g.free_ranges(n)
                    .iter()
                    .filter_map(|&r| of(r))
                    .all(|t| apart(t, lane))
            })
        })
}

/// Splits reductions over lanes that are threads into each thread's partial sum and a subgroup
/// reduction. The sums of an MMA product are a vector; each element is reduced by itself.
pub fn folded(g: &mut Graph, value: Id) -> Id {
    let mut map: FxHashMap<Id, Id> = FxHashMap::default();
    let lane_of = |g: &Graph, n: &Node| {
        let of_threads = [Some(RangeKind::VectorReduce), Some(RangeKind::Vector)];
        let lane = n
            .src
            .iter()
            .skip(1)
            .copied()
            .find(|&r| of_threads.contains(&g.range_kind(r)));
        lane.filter(|_| n.op == Op::Reduce)
    };
    let fold = |g: &mut Graph, part: Id, lane: Id, arg: Arg| {
        let dtype = g[part].dtype;
        g.intern(Node {
            op: Op::Fold,
            dtype,
            src: smallvec![part, lane],
            arg,
        })
    };
    for n in g.toposort(&[value]) {
        let node = g[n].clone();
        let src: Sources = node
            .src
            .iter()
            .map(|s| map.get(s).copied().unwrap_or(*s))
            .collect();
        let new = match lane_of(g, &node) {
            Some(lane) => {
                let mut own = src;
                own.retain(|r| *r != lane);
                // Products are added to an accumulator even without a loop.
                let is_product = node.dtype.lanes > 1;
                let alone = own.len() == 1 && !is_product;
                let part = if alone {
                    own[0]
                } else {
                    g.intern(Node {
                        src: own,
                        ..node.clone()
                    })
                };
                if is_product {
                    part
                } else {
                    fold(g, part, lane, node.arg)
                }
            }
            None => {
                let new = if src == node.src {
                    n
                } else {
                    g.intern(Node {
                        src,
                        ..node.clone()
                    })
                };
                let of_vector = (node.op == Op::Part).then(|| g[node.src[0]].clone());
                match of_vector.and_then(|sums| Some((lane_of(g, &sums)?, sums.arg))) {
                    Some((lane, arg)) => fold(g, new, lane, arg),
                    None => new,
                }
            }
        };
        map.insert(n, new);
    }
    map[&value]
}
