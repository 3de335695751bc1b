//! Schedules a function's graph: cuts it into kernels, orders them in launches, and plans memory.

pub mod candidates;
mod fusion;
mod launch;
mod launch_fusion;
mod levels;
pub mod materialise;
pub mod memory;
mod recompute_or_store;
mod recut;
mod select_plan;
mod select_tiling;
mod swap_materialised;

use crate::cost::{Cost, occupancy};
use crate::decision::{Alike, Cheapest, Decider, SHAPES};
use crate::decompose::int8::Derived;
use crate::ir::hints::Hint;
use crate::kernel::Draft;
use fusion::{Fusion, Reads};
use gristmill_uop::function::Function;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op};
pub use launch::{Body, Launch};
use launch_fusion::{Share, in_one_round, merge};
use levels::levels;
use materialise::Placement;
use memory::Lifetime;
pub use recut::FusionContext;
use recut::Recut;
use rustc_hash::{FxHashMap, FxHashSet};
pub use select_plan::select_plan;
use select_tiling::TilingSelection;

pub use crate::ir::TEMP;

/// Launches and memory of a function.
pub struct Scheduled {
    /// The graph, extended with kernel-level nodes.
    pub graph: Graph,
    /// Launches in execution order; the plans of nests and launches are open.
    pub launches: Vec<Launch>,
    /// Bytes and arena offset of each intermediate, by slot number minus [`TEMP`].
    pub temps: Vec<(usize, usize)>,
    /// Size of the arena in bytes.
    pub arena: usize,
}

/// A decomposed function: no named op with a decomposition is left.
pub struct Decomposed<'a> {
    /// Function as captured, for its slots and name.
    pub function: &'a Function,
    /// Node of each output slot.
    pub outputs: &'a [(u32, Id)],
    /// Requests of decompositions, by node.
    pub hints: &'a FxHashMap<Id, Hint>,
    /// Integer contractions and layouts.
    pub derived: &'a Derived,
    /// Whether the launches are only compared with those of another form of the function: shapes
    /// and stages are then the first ones.
    pub compared: bool,
}

/// Cuts a function with the graph `g` into kernels.
pub fn schedule(
    of: &Decomposed,
    mut g: Graph,
    target: &Target,
    decider: &mut Decider,
) -> Scheduled {
    let roots: Vec<Id> = of.outputs.iter().map(|o| o.1).collect();
    let found = candidates::find(&g, &roots, of.hints, of.derived);
    let (buffers, temp_nodes) = places(&mut g, of, &found.nodes);
    let (hints, derived) = (of.hints, of.derived);
    let sites = sites(&g, &of.function.full_name(), &found.nodes);
    let context = FusionContext {
        candidates: &found,
        buffers: &buffers,
        sites: &sites,
        hints,
        derived,
        target,
        smaller: false,
    };
    let mut placed = shapes(&mut g, context, of.function, decider);
    let selection = TilingSelection {
        function: of.function,
        recut: &placed.recut,
        max_workgroups: &placed.max_workgroups,
    };
    if !of.compared || target.machine.kind == MachineKind::Cpu {
        selection.workgroups(&mut g, &mut placed.shares, &mut placed.kernels, decider);
        selection.stages(&mut g, &mut placed.shares, &mut placed.kernels, decider);
    }
    let Placed {
        kernels,
        shares,
        needs,
        level,
        ..
    } = placed;
    let launches = shares
        .iter()
        .map(|s| s.launch(&g, of.function, &kernels, target))
        .collect();
    let lives: Vec<Lifetime> = temp_nodes
        .iter()
        .map(|&n| lifetime(&g, n, &kernels, &needs, &level))
        .collect();
    let (offsets, arena) = memory::plan(&lives, target.machine.alignment);
    let temps = lives
        .iter()
        .zip(offsets)
        .map(|(l, at)| (l.bytes, at))
        .collect();
    Scheduled {
        graph: g,
        launches,
        temps,
        arena,
    }
}

/// Kernels after the fusion search, with their launches.
struct Placed<'a> {
    kernels: Vec<(Draft, Cost)>,
    shares: Vec<Share>,
    /// Kernels that each one reads, and the level of each.
    needs: Vec<FxHashSet<usize>>,
    level: Vec<usize>,
    /// Maximum workgroups of each kernel.
    max_workgroups: Vec<i64>,
    recut: Recut<'a>,
}

impl<'a> Placed<'a> {
    fn new(g: &mut Graph, context: FusionContext<'a>, decider: &mut Decider) -> Placed<'a> {
        let target = context.target;
        let Placement {
            reads,
            fusion,
            mut kernels,
        } = materialise::materialise(g, context, decider);
        let recut = Recut::new(context, kernels.iter().map(|k| k.0.root), &reads, &fusion);
        let mut needs = needs(&kernels, &reads, &fusion);
        before_write(g, &kernels, &mut needs);
        let level = levels(&kernels, &needs, target);
        let shares = merge(
            g,
            context,
            &kernels,
            &level,
            |root| fusion.is_reused(root),
            decider,
        );
        let mut max_workgroups = vec![occupancy::resident_workgroups(target); kernels.len()];
        if target.machine.kind == MachineKind::Gpu {
            shares
                .iter()
                .for_each(|s| in_one_round(g, s, &mut kernels, &mut max_workgroups, &recut));
        }
        Placed {
            kernels,
            shares,
            needs,
            level,
            max_workgroups,
            recut,
        }
    }
    fn seconds(&self) -> f64 {
        self.shares.iter().map(|s| s.cost.seconds).sum()
    }
    fn could_be_smaller(&self, g: &Graph) -> bool {
        self.kernels
            .iter()
            .zip(&self.max_workgroups)
            .any(|((draft, _), &max)| self.recut.could_be_smaller(g, draft, max))
    }
}

/// Builds all kernels with the proposed workgroups, or with halved ones for
/// contractions with few workgroups.
///
/// Fusion depends on the number of workgroups and vice versa, so the two are decided together,
/// for the whole function.
fn shapes<'a>(
    g: &mut Graph,
    context: FusionContext<'a>,
    function: &Function,
    decider: &mut Decider,
) -> Placed<'a> {
    if context.target.machine.kind == MachineKind::Cpu {
        return Placed::new(g, context, decider);
    }
    let (whole, begin) = (g.clone(), decider.log.len());
    let proposed = Placed::new(g, context, decider);
    if !proposed.could_be_smaller(g) {
        return proposed;
    }
    let context = FusionContext {
        smaller: true,
        ..context
    };
    let mut quiet = Decider {
        policy: &mut Cheapest,
        plans: decider.plans,
        log: vec![],
    };
    let seconds = Placed::new(&mut whole.clone(), context, &mut quiet).seconds();
    let decision = SHAPES.at(function.full_name(), [proposed.seconds(), seconds]);
    if decider.choose(decision) == 0 {
        return proposed;
    }
    // Drops the log entries of the rejected schedule.
    let last = decider.log.len() - 1;
    decider.log.drain(begin..last);
    *g = whole;
    Placed::new(g, context, decider)
}

/// Names of candidates in decision keys: the function's full name, op and shape, with
/// a counter for duplicates.
pub fn sites(g: &Graph, function: &str, candidates: &[Id]) -> FxHashMap<Id, String> {
    let mut alike = Alike::default();
    let mut site = |n: Id| {
        alike.name(format!(
            "{function} {:?} {}",
            g[n].op,
            g.show_dims(&g.shape(n))
        ))
    };
    candidates.iter().map(|&n| (n, site(n))).collect()
}

/// Assigns a buffer to every candidate: the slot of an output or state, or an intermediate. Also
/// returns the nodes of the intermediates.
fn places(g: &mut Graph, of: &Decomposed, candidates: &[Id]) -> (FxHashMap<Id, Id>, Vec<Id>) {
    let mut buffers: FxHashMap<Id, Id> = FxHashMap::default();
    let mut temp_nodes: Vec<Id> = Vec::new();
    // A copy is made in an output's slot if its last version is that output.
    let of_copies: Vec<(u32, Id)> = of
        .outputs
        .iter()
        .map(|&(slot, n)| (slot, first_version(g, n)))
        .collect();
    for &n in candidates {
        let dtype = g[n].dtype;
        let buffer = if g[n].op.is_version() {
            let base = first_version(g, n);
            buffers.get(&base).copied().unwrap_or(base)
        } else if let Some(&(slot, _)) = of_copies.iter().find(|o| o.1 == n) {
            debug_assert!((slot as usize) < of.function.slots.len());
            g.param(slot, &[], dtype.scalar)
        } else {
            temp_nodes.push(n);
            g.param(TEMP + temp_nodes.len() as u32 - 1, &[], dtype.scalar)
        };
        buffers.insert(n, buffer);
    }
    (buffers, temp_nodes)
}

/// The first node of a chain of versions, which share one buffer: a state or a copy.
fn first_version(g: &Graph, mut n: Id) -> Id {
    while g[n].op.is_version() {
        n = g[n].src[0];
    }
    n
}

/// The kernels that each kernel reads results of, directly or through fused nodes.
fn needs(kernels: &[(Draft, Cost)], reads: &Reads, fusion: &Fusion) -> Vec<FxHashSet<usize>> {
    let number: FxHashMap<Id, usize> = kernels
        .iter()
        .enumerate()
        .map(|(i, k)| (k.0.root, i))
        .collect();
    let of = |root: Id| {
        reads
            .cut(root, fusion)
            .1
            .iter()
            .map(|read| number[read])
            .collect()
    };
    kernels.iter().map(|k| of(k.0.root)).collect()
}

/// Orders kernels that read the old version of a state before the kernel that writes the new one.
fn before_write(g: &Graph, kernels: &[(Draft, Cost)], needs: &mut [FxHashSet<usize>]) {
    for (w, (writer, _)) in kernels.iter().enumerate() {
        if !g[writer.root].op.is_version() {
            continue;
        }
        let state = g[writer.nests[writer.nests.len() - 1]].src[0];
        for (r, (reader, _)) in kernels.iter().enumerate() {
            // A reader of the new version depends on the writer; any other reader of the slot
            // reads the old version.
            let reads_slot = r != w
                && reader
                    .nests
                    .iter()
                    .any(|&n| g.any(n, |_, m| m.op == Op::Load && m.src[0] == state));
            if reads_slot && !depends(needs, r, w) {
                needs[w].insert(r);
            }
        }
    }
}

fn depends(needs: &[FxHashSet<usize>], from: usize, on: usize) -> bool {
    needs[from]
        .iter()
        .any(|&n| n == on || depends(needs, n, on))
}

/// Lifetime of an intermediate; a fused one takes no bytes.
fn lifetime(
    g: &Graph,
    node: Id,
    kernels: &[(Draft, Cost)],
    needs: &[FxHashSet<usize>],
    level: &[usize],
) -> Lifetime {
    let Some(i) = kernels.iter().position(|k| k.0.root == node) else {
        return Lifetime {
            bytes: 0,
            from: 0,
            to: 0,
        };
    };
    let bytes = g.max_elements(node).max(1) as usize * g[node].dtype.scalar.bytes();
    // Later versions share the buffer.
    let versions: Vec<usize> = (0..kernels.len())
        .filter(|&k| first_version(g, kernels[k].0.root) == node)
        .collect();
    let reads = |j: usize| versions.contains(&j) || versions.iter().any(|v| needs[j].contains(v));
    let last = (0..kernels.len())
        .filter(|&j| reads(j))
        .map(|j| level[j])
        .max();
    Lifetime {
        bytes,
        from: level[i],
        to: last.unwrap_or(level[i]),
    }
}
