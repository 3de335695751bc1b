//! Intermediate state of a kernel while it is built: its nests and its surroundings.

use super::rangeify::Expander;
use crate::decompose::int8::Derived;
use crate::ir::hints::Hint;
use crate::ir::nest::Indices;
use crate::plan::{StagePlan, Workgroup};
use gristmill_uop::program::When;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind};
use rustc_hash::{FxHashMap, FxHashSet};

/// A kernel that writes one node, all parts of it.
#[derive(Clone, Debug)]
pub struct Draft {
    /// Tensor-level node that it computes.
    pub root: Id,
    /// Nests, in execution order.
    pub nests: Vec<Id>,
    /// Fused nodes that became stages.
    pub stages: Vec<Id>,
    /// Bytes of all stages.
    pub stage_bytes: usize,
    /// Row in a workgroup's chunk, or past its end, where the rows written by this step begin.
    pub fresh: Option<Id>,
    /// Conditions on its workgroups.
    pub when: When,
    /// Cut of the output axes.
    pub plan: Workgroup,
    /// Which fused nodes have stages, and the row layout of these.
    pub stage_plan: StagePlan,
    /// Nests before the plan was applied, to apply other plans.
    pub uncut: Vec<Id>,
    /// The `Op::Call` node of the custom kernel that it runs, if any.
    pub call: Option<Id>,
}

impl Draft {
    /// A kernel without nests.
    pub fn new(root: Id) -> Draft {
        Draft {
            root,
            nests: Vec::new(),
            stages: Vec::new(),
            stage_bytes: 0,
            fresh: None,
            when: When::default(),
            plan: Workgroup::default(),
            stage_plan: StagePlan::default(),
            uncut: Vec::new(),
            call: None,
        }
    }
}

/// Why a kernel cannot be built that way.
#[derive(Clone, Debug, PartialEq)]
pub enum Illegal {
    /// The stages need that many bytes, more than a workgroup may hold.
    StageTooLarge(usize),
    /// The kernel reads the state that it writes.
    ReadsItsState,
    /// Two custom kernels cannot be fused.
    SeveralTexts,
    /// Only elementwise ops can be fused into a custom kernel's reads and writes.
    InsideText,
}

/// Context of the schedule that `draft` needs.
pub struct DraftContext<'a> {
    /// Buffer of every materialised node.
    pub buffers: &'a FxHashMap<Id, Id>,
    /// Candidates fused into their readers.
    pub fused: &'a FxHashSet<Id>,
    /// Position of every tensor-level node in topological order.
    pub order: &'a FxHashMap<Id, usize>,
    /// Workgroup shapes that decompositions request.
    pub hints: &'a FxHashMap<Id, Hint>,
    /// Integer contractions and layouts.
    pub derived: &'a Derived,
    /// Machine and flags to compile for.
    pub target: &'a Target,
    /// Maximum workgroups of a single-token contraction: one wave.
    pub max_workgroups: i64,
    /// Whether a launch with too few workgroups gets smaller ones.
    pub smaller: bool,
    /// Workgroup plan; `None` for the first proposal, or the smaller one.
    pub plan: Option<&'a Workgroup>,
    /// Stage plan; `None` for the default rule.
    pub stages: Option<&'a StagePlan>,
}

/// Parts of a node: itself, or the sources of a `Cat` with their offsets along the axis.
fn parts(g: &mut Graph, node: Id) -> Vec<(Id, Option<(usize, Id)>)> {
    let n = g[node].clone();
    let (Op::Cat, Arg::Axes(axes)) = (n.op, &n.arg) else {
        return vec![(node, None)];
    };
    let axis = axes[0] as usize;
    let mut at = g.int(0);
    let mut out = Vec::new();
    for &part in &n.src[..n.src.len() - 1] {
        out.push((part, Some((axis, at))));
        let d = g.shape(part)[axis];
        at = g.add(at, d);
    }
    out
}

/// Elements of an axis: `extent` of them from `base` on. Indices are clamped to `last`, so the last
/// element repeats past the end.
#[derive(Clone, Copy)]
pub struct Span {
    pub base: Id,
    pub extent: Id,
    pub last: Option<Id>,
    /// The loop over it, if nests share one.
    pub shared: Option<Id>,
}

/// Destination of the nests that write a node.
pub struct Destination<'a> {
    /// Parameter or stage that is written.
    pub buffer: Id,
    /// Region of the node, a span for each axis.
    pub region: &'a [Span],
    /// Maps an index in the region to an offset in the buffer.
    pub address: &'a mut dyn FnMut(&mut Graph, &[Id]) -> Id,
}

/// Nests that write `node` to that destination, one for each part of a `Cat`.
pub fn nests_for(g: &mut Graph, x: &mut Expander, node: Id, to: Destination) -> Vec<Id> {
    let Destination {
        buffer,
        region,
        address,
    } = to;
    let mut shared: Vec<Option<Id>> = vec![None; region.len()];
    let mut nests = Vec::new();
    for (part, place) in parts(g, node) {
        let mut index = Indices::new();
        let mut local = Indices::new();
        let mut closed = Vec::new();
        for (
            axis,
            &Span {
                base,
                extent,
                last,
                shared: loops,
            },
        ) in region.iter().enumerate()
        {
            let r = match place {
                _ if loops.is_some() => loops.unwrap_or(base),
                Some((a, _)) if a == axis => {
                    let d = g.shape(part)[axis];
                    let d = x.dim(g, d);
                    x.ranges.range(g, d, RangeKind::Loop)
                }
                _ => {
                    *shared[axis].get_or_insert_with(|| x.ranges.range(g, extent, RangeKind::Loop))
                }
            };
            if g[r].op == Op::Range {
                closed.push(r);
            }
            let at = g.add(base, r);
            index.push(match last {
                Some(last) => g.min(at, last),
                None => at,
            });
            local.push(match place {
                Some((a, at)) if a == axis => g.add(at, r),
                _ => r,
            });
        }
        let value = match place {
            Some(_) => x.value(g, part, &index),
            None => x.compute(g, part, &index),
        };
        let offset = address(g, &local);
        nests.push(g.store(buffer, offset, value, &closed));
    }
    nests
}

/// Placeholders read by each nest, cached because a replacement leaves most nests unchanged.
#[derive(Default)]
pub struct Placeholders(FxHashMap<Id, Vec<Id>>);

impl Placeholders {
    fn within(&mut self, g: &Graph, nest: Id) -> &[Id] {
        self.0.entry(nest).or_insert_with(|| {
            let mut all = g.toposort_within(&[nest], |n| g.has_placeholder(n));
            all.retain(|&n| g[n].op == Op::Index);
            all
        })
    }
    /// Reads of placeholders in the nests, by node: each distinct read with the index of its nest.
    pub fn found(&mut self, g: &Graph, nests: &[Id]) -> FxHashMap<Id, Vec<(Id, usize)>> {
        let mut found: FxHashMap<Id, Vec<(Id, usize)>> = FxHashMap::default();
        for (i, &nest) in nests.iter().enumerate() {
            for &read in self.within(g, nest) {
                found.entry(g[read].src[0]).or_default().push((read, i));
            }
        }
        found
    }
    /// Replaces placeholders in the nests by `map`.
    pub fn replace(&mut self, g: &mut Graph, nests: &mut [Id], mut map: FxHashMap<Id, Id>) {
        for nest in nests {
            if self
                .within(g, *nest)
                .iter()
                .any(|read| map.contains_key(read))
            {
                *nest = g.replace(*nest, &mut map);
            }
        }
    }
}

/// Closed ranges of a nest.
pub fn closed_ranges(g: &Graph, nest: Id) -> Vec<Id> {
    g[nest].src[3..].to_vec()
}

/// Free ranges of an expression, as a set.
pub fn ranges_of(g: &Graph, id: Id) -> FxHashSet<Id> {
    g.free_ranges(id).iter().copied().collect()
}

/// Ranges of the reductions of `nest` that enclose `inner`.
pub fn enclosing(g: &Graph, nest: Id, inner: Id) -> FxHashSet<Id> {
    reductions_around(g, nest, inner)
        .into_iter()
        .flat_map(|n| g[n].src[1..].to_vec())
        .collect()
}

/// Reductions of `nest` that enclose `inner`.
pub fn reductions_around(g: &Graph, nest: Id, inner: Id) -> Vec<Id> {
    let (mut out, mut above) = (Vec::new(), FxHashSet::from_iter([inner]));
    // A node has a larger number than its sources.
    for n in g.toposort_within(&[nest], |n| n > inner) {
        let node = &g[n];
        if node.op == Op::Reduce && above.contains(&node.src[0]) {
            out.push(n);
        }
        if node.src.iter().any(|s| above.contains(s)) {
            above.insert(n);
        }
    }
    out
}
