//! A kernel while it is cut: its nests, and what is known around it.

use super::rangeify::Expander;
use crate::decompose::int8::Derived;
use crate::ir::hints::Hint;
use crate::ir::nest::Indices;
use crate::plan::{StagePlan, Workgroup};
use gristmill_uop::program::When;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind};
use rustc_hash::{FxHashMap, FxHashSet};

/// A kernel that writes one node (all parts of it).
#[derive(Clone, Debug)]
pub struct Draft {
    /// The tensor-level node it computes.
    pub root: Id,
    /// Its nests, in order.
    pub nests: Vec<Id>,
    /// Fused nodes that became stages.
    pub stages: Vec<Id>,
    /// Bytes of the stages.
    pub stage_bytes: usize,
    /// Where in a workgroup's chunk, or behind it, rows begin that this step writes.
    pub fresh: Option<Id>,
    /// What holds for its workgroups.
    pub when: When,
    /// What each of them computes.
    pub plan: Workgroup,
    /// Which fused nodes have stages, and how these lie.
    pub stage_plan: StagePlan,
    /// The nests that the plan cut, which other plans cut otherwise.
    pub uncut: Vec<Id>,
    /// The call of a user's kernel whose text it runs, if it has one.
    pub call: Option<Id>,
}

impl Draft {
    /// Of a kernel that has no nests yet.
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

/// Why a kernel cannot be cut that way.
#[derive(Clone, Debug, PartialEq)]
pub enum Illegal {
    /// Its stages need more than a workgroup may hold.
    StageTooLarge(usize),
    /// It reads the state that it writes.
    ReadsItsState,
    /// Two texts of a user's cannot be one.
    SeveralTexts,
    /// Something but operations on elements would be computed where a user's text reads or writes one.
    InsideText,
}

/// What `draft` needs to know of the schedule around it.
pub struct Surroundings<'a> {
    /// Where every materialised node is.
    pub buffers: &'a FxHashMap<Id, Id>,
    /// Candidates that are fused into their readers.
    pub fused: &'a FxHashSet<Id>,
    /// Position of every tensor-level node in topological order.
    pub order: &'a FxHashMap<Id, usize>,
    /// Workgroup shapes that a derivation asks for.
    pub hints: &'a FxHashMap<Id, Hint>,
    /// Integer contractions and layouts.
    pub derived: &'a Derived,
    /// For whom.
    pub target: &'a Target,
    /// Workgroups that a contraction of one token should have at most: as many as run at once.
    pub room: i64,
    /// Are workgroups that are few made smaller?
    pub smaller: bool,
    /// What a workgroup computes; without it, what is proposed first, or what is smaller.
    pub plan: Option<&'a Workgroup>,
    /// Which fused nodes have stages; without it, as the rule says.
    pub stages: Option<&'a StagePlan>,
}

/// The parts a node is made of: itself, or the sources of a `Cat`, each with its place along the axis.
fn parts(g: &mut Graph, node: Id) -> Vec<(Id, Option<(usize, Id)>)> {
    let n = g[node].clone();
    let (Op::Cat, Arg::Axes(axes)) = (n.op, &n.arg) else { return vec![(node, None)] };
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

/// Elements of an axis: from `base` on, as many as `extent`, none behind `last`: where the axis ends, the last one repeats.
#[derive(Clone, Copy)]
pub struct Span {
    pub base: Id,
    pub extent: Id,
    pub last: Option<Id>,
    /// The loop over it, where the workgroup's nests share one.
    pub shared: Option<Id>,
}

/// Where nests write a node.
pub struct Destination<'a> {
    /// The buffer.
    pub buffer: Id,
    /// Of each axis the elements that are written.
    pub region: &'a [Span],
    /// Where in the buffer an element is, by its place in the region.
    pub address: &'a mut dyn FnMut(&mut Graph, &[Id]) -> Id,
}

/// Nests that write `node` there: of a `Cat` one for each part.
pub fn nests_for(g: &mut Graph, x: &mut Expander, node: Id, to: Destination) -> Vec<Id> {
    let Destination { buffer, region, address } = to;
    let mut shared: Vec<Option<Id>> = vec![None; region.len()];
    let mut nests = Vec::new();
    for (part, place) in parts(g, node) {
        let mut index = Indices::new();
        let mut local = Indices::new();
        let mut closed = Vec::new();
        for (axis, &Span { base, extent, last, shared: loops }) in region.iter().enumerate() {
            let r = match place {
                _ if loops.is_some() => loops.unwrap_or(base),
                Some((a, _)) if a == axis => {
                    let d = g.shape(part)[axis];
                    let d = x.dim(g, d);
                    x.ranges.range(g, d, RangeKind::Loop)
                }
                _ => *shared[axis].get_or_insert_with(|| x.ranges.range(g, extent, RangeKind::Loop)),
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

/// Where nests read placeholders, by nest: most stay as they are while one after the other is replaced.
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
    /// Placeholders in the nests: node -> the distinct indices it is read at, with the nest.
    pub fn found(&mut self, g: &Graph, nests: &[Id]) -> FxHashMap<Id, Vec<(Id, usize)>> {
        let mut found: FxHashMap<Id, Vec<(Id, usize)>> = FxHashMap::default();
        for (i, &nest) in nests.iter().enumerate() {
            for &read in self.within(g, nest) {
                found.entry(g[read].src[0]).or_default().push((read, i));
            }
        }
        found
    }
    /// The nests with placeholders replaced.
    pub fn replace(&mut self, g: &mut Graph, nests: &mut [Id], mut map: FxHashMap<Id, Id>) {
        for nest in nests {
            if self.within(g, *nest).iter().any(|read| map.contains_key(read)) {
                *nest = g.replace(*nest, &mut map);
            }
        }
    }
}

/// The ranges that a nest closes.
pub fn closed_ranges(g: &Graph, nest: Id) -> Vec<Id> {
    g[nest].src[3..].to_vec()
}

/// Ranges of an expression as a set.
pub fn ranges_of(g: &Graph, id: Id) -> FxHashSet<Id> {
    g.free_ranges(id).iter().copied().collect()
}

/// Ranges of the reductions of `nest` that enclose `inner`.
pub fn enclosing(g: &Graph, nest: Id, inner: Id) -> FxHashSet<Id> {
    reductions_around(g, nest, inner).into_iter().flat_map(|n| g[n].src[1..].to_vec()).collect()
}

/// The reductions of `nest` that enclose `inner`.
pub fn reductions_around(g: &Graph, nest: Id, inner: Id) -> Vec<Id> {
    let (mut out, mut above) = (Vec::new(), FxHashSet::from_iter([inner]));
    // A node is younger than what it is made of.
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
