//! Which index of a nest's ranges each thread has. The dialect of CUDA counts threads so (`cuda/dialect/mod.rs`), and a warp's products rely on it.

use gristmill_uop::{Graph, Id, RangeKind};

/// A range that is threads.
pub(super) struct Lane {
    pub range: Id,
    /// Threads from one index to the next.
    stride: i64,
    /// Indices before they begin again; none where they do not.
    bound: Option<i64>,
    /// Threads from one lane to the next where it is folded, and how many lanes.
    pub fold: (i64, i64),
}

impl Lane {
    pub(super) fn index(&self, thread: i64) -> i64 {
        let at = thread / self.stride;
        self.bound.map_or(at, |bound| at % bound)
    }
}

/// How `threads` threads are counted over these ranges.
pub(super) fn count(g: &Graph, ranges: &[Id], threads: i64) -> Vec<Lane> {
    let bound = |r: Id| g.int_value(g[r].src[0]).unwrap_or(1);
    let is_group = |r: Id| g.range_kind(r) == Some(RangeKind::Vector);
    let groups: Vec<Id> = ranges.iter().copied().filter(|&r| is_group(r)).collect();
    if groups.len() > 1 {
        // Row-major; a range of all threads is counted apart.
        let mut stride = 1;
        let mut lanes = Vec::new();
        for &range in ranges.iter().rev() {
            let own = if is_group(range) { stride } else { 1 };
            lanes.push(Lane { range, stride: own, bound: Some(bound(range)), fold: (1, bound(range)) });
            if is_group(range) {
                stride *= bound(range);
            }
        }
        return lanes;
    }
    let group = groups.first().copied();
    let many = group.map_or(1, bound);
    let lane = |&range: &Id| {
        let number = g.range_number(range);
        if Some(range) == group {
            let outer = ranges.iter().any(|&x| x != range && g.range_number(x) < number && bound(x) != threads);
            let (stride, bound) = if outer { (1, Some(many)) } else { (threads / many, None) };
            return Lane { range, stride, bound, fold: (stride, many) };
        }
        let outer = group.is_some_and(|group| number < g.range_number(group)) && bound(range) < threads;
        let stride = if outer { many } else { 1 };
        Lane { range, stride, bound: Some(bound(range)), fold: (stride, bound(range)) }
    };
    ranges.iter().map(lane).collect()
}
