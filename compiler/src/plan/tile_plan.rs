//! The plan of a kernel. Every plan is legal for every kernel: a count that does not divide repeats the last element, terms beyond the end of a sum count
//! as nothing, and what a plan says of axes or loops that a kernel does not have is passed over.

use gristmill_uop::RangeKind;

/// How one kernel is computed.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct TilePlan {
    /// What a workgroup computes.
    pub workgroup: Workgroup,
    /// Which of what is computed inside it has stages.
    pub stages: StagePlan,
    /// How each of the kernel's nests is mapped to the machine, in their order.
    pub nests: Vec<NestPlan>,
}

/// The axes of a kernel's output, cut into ranges over the launch and ranges inside a workgroup.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Workgroup {
    /// From the outermost to the innermost. An axis without a part is a loop inside the workgroup, within all parts.
    pub parts: Vec<AxisPart>,
}

/// Bytes of all banks of shared memory: rows that begin as many apart are read one after the other.
pub const BANKS: i64 = 128;

/// Where what is fused into a kernel is computed, and how rows of its stages lie.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct StagePlan {
    /// Bytes, of those of all banks, that rows of halves begin apart in a stage; none where a kernel has no such rows.
    pub banks: Option<i64>,
    /// Has each fused node a stage, or is it computed where it is read? In the order in which that is found out: readers before what they read.
    pub staged: Vec<bool>,
}

/// A range that an axis is cut into.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AxisPart {
    /// The axis, by its place among those that have a range.
    pub axis: usize,
    /// What the range is: over the launch (`Global`), one after the other (`Loop`), in registers (`Upcast`), threads or, on a processor, a tile's
    /// rows and columns (`Vector`), a tile's rows and columns on a GPU (`Tile`).
    pub kind: RangeKind,
    /// Its iterations; `None` for as many as the rest of the axis takes.
    pub count: Option<i64>,
    /// Elements of the axis between one iteration and the next.
    pub stride: i64,
}

impl AxisPart {
    /// Of that many iterations, `stride` elements apart.
    pub fn new(axis: usize, kind: RangeKind, count: i64, stride: i64) -> AxisPart {
        AxisPart { axis, kind, count: Some(count), stride }
    }
    /// An axis as tiles of one kind, with their elements of another; as it is where a tile is one element.
    pub fn tiled(axis: usize, tile: i64, outer: RangeKind, inner: RangeKind) -> Vec<AxisPart> {
        match tile {
            1 => vec![AxisPart::rest(axis, outer, 1)],
            _ => vec![AxisPart::rest(axis, outer, tile), AxisPart::new(axis, inner, tile, 1)],
        }
    }
    /// Of as many iterations as the rest of the axis takes.
    pub fn rest(axis: usize, kind: RangeKind, stride: i64) -> AxisPart {
        AxisPart { axis, kind, count: None, stride }
    }
}

/// How a nest is mapped to the machine.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum NestPlan {
    /// Its loops as they are.
    Serial,
    /// Vectors, on a CPU.
    Vectors(Vectors),
    /// Threads of a workgroup share its output elements and its sums.
    Threads(Threads),
    /// Its threads are counted already, by the workgroup's parts.
    Counted(Counted),
    /// Its sums are matrix products of warps.
    Warps(Warps),
    /// Its elements, or those that its sums add up, lie as the accumulators of a product of several warps before it.
    Accumulators(Accumulators),
    /// Its sums are products of tiles of a CPU's core or of a GPU's subgroups, laid out already by the workgroup's parts.
    Tiles,
}

/// How threads that a workgroup's parts have counted take the steps of sums.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Counted {
    /// Threads, as many as are counted apart, that share the steps of every outermost sum: one has all of them.
    pub lanes: i64,
    /// Of each sum, how many steps are taken at once.
    pub steps: Vec<i64>,
}

/// How a nest becomes vectors.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Vectors {
    /// Do its outermost sums over the same terms share their loops?
    pub fused: bool,
    /// The loop whose neighbours are lanes, if one's are.
    pub output: Option<OutputLanes>,
    /// Its sums without lanes of the output, each after those that it contains; `None` for one that stays a loop.
    pub sums: Vec<Option<SumLanes>>,
    /// Copies of each of the loops that remain, in registers.
    pub copies: Vec<i64>,
}

/// Lanes that are neighbouring output elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OutputLanes {
    /// The loop, by its place.
    pub at: usize,
    /// Lanes of a vector.
    pub lanes: i64,
    /// Vectors side by side.
    pub copies: i64,
}

/// Lanes that are terms of a sum.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SumLanes {
    /// The range, by its place among those of the sum.
    pub at: usize,
    /// Lanes of a vector.
    pub lanes: i64,
    /// Vectors side by side.
    pub unroll: i64,
}

/// What the threads that are neighbours read side by side.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Along {
    /// Output elements.
    Output,
    /// Terms of a sum.
    Reduction,
}

/// How threads share a nest: groups of threads have output elements, the lanes of a group the terms of their sums.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Threads {
    /// What neighbours read.
    pub along: Along,
    /// Lanes of a group.
    pub lanes: i64,
    /// Neighbouring output elements of a thread.
    pub width: i64,
    /// Loops that become copies in a thread, by their places among the loops of the nest.
    pub copies: Vec<usize>,
    /// Its sums, each after those that it contains.
    pub sums: Vec<ThreadSum>,
}

/// How a sum is shared.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ThreadSum {
    /// The lanes of a sum that all output elements have in common; `None` for one of their own, which the group's lanes share.
    pub common: Option<i64>,
    /// Neighbouring terms that a lane takes at once.
    pub terms: i64,
    /// Steps that are taken at once.
    pub steps: i64,
}

/// The accumulators of products of several warps, each of which has all columns.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Accumulators {
    /// Such products side by side along the rows.
    pub rows: i64,
    /// Tiles of each beside one another.
    pub wide: i64,
}

/// How the warps of a workgroup share the rows and the columns of a matrix product.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Warps {
    /// Has each warp an element of the batch, the range that both operands depend on? The text says `apart`.
    pub batch_warps: bool,
    /// Warps side by side along the rows.
    pub rows: i64,
    /// Warps side by side along the columns.
    pub columns: i64,
    /// Tiles of a warp beside one another.
    pub wide: i64,
    /// Tiles of a warp above one another.
    pub tall: i64,
    /// Does each of these warps stand for four, whose product it is: of four times the rows, with columns that they share?
    pub groups: bool,
}

/// A plan, or a part of one, that could be chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal<T> {
    /// How it differs from the first.
    pub name: &'static str,
    /// The plan.
    pub plan: T,
}

/// The name of what a heuristic proposes first.
pub const FIRST: &str = "proposed";

/// The first proposal, and those of the others that differ from all before them.
pub fn proposals<T: PartialEq>(first: T, others: impl IntoIterator<Item = (&'static str, T)>) -> Vec<Proposal<T>> {
    let mut all = vec![Proposal { name: FIRST, plan: first }];
    for (name, plan) in others {
        if all.iter().all(|p| p.plan != plan) {
            all.push(Proposal { name, plan });
        }
    }
    all
}
