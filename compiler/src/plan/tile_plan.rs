//! The plan of a launch, and the tile plan of each of its bodies.
//!
//! Every plan is legal for every kernel: a count that does not divide an axis repeats the last
//! element, terms past the end of a sum add nothing, and parts about axes or loops that the kernel
//! does not have are ignored.

use gristmill_uop::RangeKind;
use gristmill_uop::launch::LaunchPlan;

/// How a launch is computed. The scheduler chooses it; mapping and lowering apply it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct KernelPlan {
    /// Tile plan of each body.
    pub bodies: Vec<TilePlan>,
    /// How the launch is run; the default on a CPU.
    pub launch: LaunchPlan,
}

impl KernelPlan {
    /// The text forms of its parts: of each body, then of the launch on a GPU.
    pub fn texts(&self) -> Vec<String> {
        let bodies = self.bodies.iter().map(ToString::to_string);
        let launch = Some(self.launch).filter(|plan| *plan != LaunchPlan::default());
        bodies.chain(launch.map(|plan| plan.to_string())).collect()
    }
}

/// How one kernel is computed.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct TilePlan {
    /// How output axes are cut into workgroups.
    pub workgroup: Workgroup,
    /// Which fused nodes get a stage, and the row layout of stages.
    pub stages: StagePlan,
    /// Mapping of each nest of the kernel, in nest order.
    pub nests: Vec<NestPlan>,
}

/// Cuts the axes of a kernel's output into launch ranges and ranges inside a workgroup.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Workgroup {
    /// Parts, outermost first. An axis without a part becomes a loop inside all parts.
    pub parts: Vec<AxisPart>,
}

/// Bytes that all banks of shared memory hold in one row: rows at multiples of it conflict.
pub const BANKS: i64 = 128;

/// Which nodes fused into a kernel are staged, and the row layout of its stages.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct StagePlan {
    /// Offset in bytes, modulo [`BANKS`], between consecutive half-precision rows of a stage;
    /// `None` for kernels without such rows.
    pub banks: Option<i64>,
    /// Whether each fused node has a stage; otherwise it is computed where it is read. In decision
    /// order: readers before their sources.
    pub staged: Vec<bool>,
}

/// A range cut from an axis.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AxisPart {
    /// Index of the axis among those that have a range.
    pub axis: usize,
    /// Kind of the range: `Global` over the launch, `Loop` sequential, `Upcast` in registers,
    /// `Vector` threads (or rows and columns of a tile on a CPU), `Tile` rows and columns of a
    /// tile on a GPU.
    pub kind: RangeKind,
    /// Iterations; `None` for as many as cover the rest of the axis.
    pub count: Option<i64>,
    /// Elements of the axis between consecutive iterations.
    pub stride: i64,
}

impl AxisPart {
    /// A part with that many iterations, `stride` elements apart.
    pub fn new(axis: usize, kind: RangeKind, count: i64, stride: i64) -> AxisPart {
        AxisPart {
            axis,
            kind,
            count: Some(count),
            stride,
        }
    }
    /// Cuts an axis into tiles of kind `outer` with elements of kind `inner`; a tile of one element
    /// needs no inner part.
    pub fn tiled(axis: usize, tile: i64, outer: RangeKind, inner: RangeKind) -> Vec<AxisPart> {
        match tile {
            1 => vec![AxisPart::rest(axis, outer, 1)],
            _ => vec![
                AxisPart::rest(axis, outer, tile),
                AxisPart::new(axis, inner, tile, 1),
            ],
        }
    }
    /// A part with as many iterations as cover the rest of the axis.
    pub fn rest(axis: usize, kind: RangeKind, stride: i64) -> AxisPart {
        AxisPart {
            axis,
            kind,
            count: None,
            stride,
        }
    }
}

/// Mapping of a nest to the machine.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum NestPlan {
    /// Loops run sequentially, without vectors or threads.
    Serial,
    /// SIMD vectors, on a CPU.
    Vectors(Vectors),
    /// Threads of a workgroup divide output elements and reductions.
    Threads(Threads),
    /// The workgroup's parts already assign its threads.
    Counted(Counted),
    /// Reductions are MMA products of warps.
    Warps(Warps),
    /// Elements, or the terms of its sums, have the accumulator layout of a preceding
    /// product of several warps.
    Accumulators(Accumulators),
    /// Reductions are tile products of a CPU core or GPU subgroups, laid out by
    /// the workgroup's parts.
    Tiles,
}

/// How threads assigned by the workgroup's parts divide the steps of sums.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Counted {
    /// Threads, as many as the parts assign separately, that divide the steps of every outermost
    /// sum; with 1, a thread runs all steps.
    pub lanes: i64,
    /// Steps that each sum takes at once.
    pub steps: Vec<i64>,
}

/// How a nest is vectorised.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Vectors {
    /// Whether outermost sums over the same terms share their loops.
    pub fused: bool,
    /// The output loop to vectorise, if any.
    pub output: Option<OutputLanes>,
    /// Vectorisation of the sums that use no output lanes, each after those that it contains;
    /// `None` for a sum that stays scalar.
    pub sums: Vec<Option<SumLanes>>,
    /// Unroll factor of each remaining loop, in registers.
    pub copies: Vec<i64>,
}

/// SIMD lanes over contiguous output elements.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OutputLanes {
    /// Index of the loop.
    pub at: usize,
    /// Lanes of a vector.
    pub lanes: i64,
    /// Number of adjacent vectors.
    pub copies: i64,
}

/// SIMD lanes over terms of a sum.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SumLanes {
    /// Index of the range among those of the sum.
    pub at: usize,
    /// Lanes of a vector.
    pub lanes: i64,
    /// Number of adjacent vectors.
    pub unroll: i64,
}

/// Axis along which adjacent threads read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Along {
    /// Adjacent threads read for adjacent output elements.
    Output,
    /// Adjacent threads read adjacent terms of a sum.
    Reduction,
}

/// How threads share a nest: groups of threads take output elements, the lanes of a group take the
/// terms of their sums.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Threads {
    /// Axis along which adjacent threads read.
    pub along: Along,
    /// Lanes of a group.
    pub lanes: i64,
    /// Adjacent output elements of a thread.
    pub width: i64,
    /// Indices of the nest's loops that each thread unrolls into copies.
    pub copies: Vec<usize>,
    /// Its shared sums, each after those that it contains.
    pub sums: Vec<ThreadSum>,
}

/// How threads share a sum.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ThreadSum {
    /// Lanes of a sum common to all output elements; `None` for a sum of a single element, shared
    /// by the group's lanes.
    pub common: Option<i64>,
    /// Adjacent terms that a lane takes at once.
    pub terms: i64,
    /// Steps that a lane takes at once.
    pub steps: i64,
}

/// Accumulators of products of several warps (wgmma), each of which has all columns.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Accumulators {
    /// Number of such products along the rows.
    pub rows: i64,
    /// Column tiles of each product.
    pub wide: i64,
}

/// How the warps of a workgroup divide the rows and columns of a matrix product.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Warps {
    /// Whether warps divide the batch range, on which both operands depend. Printed as `apart`.
    pub batch_warps: bool,
    /// Warps along the rows.
    pub rows: i64,
    /// Warps along the columns.
    pub columns: i64,
    /// Column tiles of a warp.
    pub wide: i64,
    /// Row tiles of a warp.
    pub tall: i64,
    /// Whether each of these warps stands for a group of four (wgmma), with four times the
    /// rows and shared columns.
    pub groups: bool,
}

/// A candidate for a plan or a part of one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal<T> {
    /// Difference from the first candidate, in words.
    pub name: &'static str,
    /// The proposed plan itself.
    pub plan: T,
}

/// Name of the heuristic's candidate.
pub const FIRST: &str = "proposed";

/// Candidates without duplicates: `first`, then those of `others` that differ from all before them.
pub fn proposals<T: PartialEq>(
    first: T,
    others: impl IntoIterator<Item = (&'static str, T)>,
) -> Vec<Proposal<T>> {
    let mut all = vec![Proposal {
        name: FIRST,
        plan: first,
    }];
    for (name, plan) in others {
        if all.iter().all(|p| p.plan != plan) {
            all.push(Proposal { name, plan });
        }
    }
    all
}
