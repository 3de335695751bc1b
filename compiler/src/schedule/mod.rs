//! Schedule: from the graph of a function to kernels, their order and their memory.

pub mod candidates;
pub mod expand;
pub mod kernel;
pub mod materialise;
pub mod memory;
pub mod workgroup;

use crate::decision::Decider;
use crate::decompose::int8::Derived;
use crate::nest::global_ranges;
use crate::price::{self, Price, occupancy};
use crate::request::Hint;
use gristmill_uop::function::Function;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::program::When;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op};
use kernel::Draft;
use materialise::{Placement, Problem};
use memory::Lifetime;
use rustc_hash::{FxHashMap, FxHashSet};

/// First slot number of intermediates; a function's own slots are below.
pub const TEMP: u32 = 1 << 16;

/// One launch: bodies without a path between them, side by side.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Nests of each body.
    pub bodies: Vec<Vec<Id>>,
    /// For each body, what holds for its workgroups.
    pub when: Vec<When>,
    /// Tensor-level nodes that the bodies compute.
    pub roots: Vec<Id>,
    /// Launches of one level are independent.
    pub level: usize,
    /// Modelled cost.
    pub price: Price,
}

/// What `schedule` returns.
pub struct Scheduled {
    /// The graph with the kernel-level nodes.
    pub graph: Graph,
    /// Launches in order.
    pub launches: Vec<Launch>,
    /// Bytes and offset of each intermediate, by slot number minus [`TEMP`].
    pub temps: Vec<(usize, usize)>,
    /// Bytes of the arena that holds them.
    pub arena: usize,
}

/// A function that has been decomposed: no named op that has a decomposition is left.
pub struct Decomposed<'a> {
    /// The function as it was captured.
    pub function: &'a Function,
    /// The node of each output slot.
    pub outputs: &'a [(u32, Id)],
    /// What the decompositions ask for.
    pub hints: &'a FxHashMap<Id, Hint>,
    /// Integer contractions and layouts.
    pub derived: &'a Derived,
}

/// Cuts a function, whose graph is `g`, into kernels.
pub fn schedule(of: &Decomposed, mut g: Graph, target: &Target, decider: &mut Decider) -> Scheduled {
    let roots: Vec<Id> = of.outputs.iter().map(|o| o.1).collect();
    let found = candidates::find(&g, &roots, of.hints, of.derived);
    let (buffers, temp_nodes) = places(&mut g, of, &found.nodes);
    let problem = Problem { candidates: &found, buffers: &buffers, hints: of.hints, derived: of.derived, target };
    let Placement { fused, kernels } = materialise::materialise(&mut g, problem, decider);
    let reads = materialise::reads(&g, &found, of.derived);
    let mut needs = needs(&kernels, &reads, &fused);
    before_write(&g, &kernels, &mut needs);
    let mut level = levels(&needs);
    later(&needs, &mut level);
    let mut launches = merge(&g, &kernels, &level, target, decider);
    launches.sort_by_key(|l| l.level);
    if target.machine.kind == MachineKind::Gpu {
        for launch in &mut launches {
            let again = |g: &mut Graph, root, room| materialise::again(g, problem, &fused, root, room);
            in_one_round(&mut g, launch, target, again);
        }
    }
    let lives: Vec<Lifetime> = temp_nodes.iter().map(|&n| lifetime(&g, n, &kernels, &needs, &level)).collect();
    let (offsets, arena) = memory::plan(&lives);
    let temps = lives.iter().zip(offsets).map(|(l, at)| (l.bytes, at)).collect();
    Scheduled { graph: g, launches, temps, arena }
}

/// A place for every candidate: an output's or state's own slot, or an intermediate; and the nodes of the intermediates.
fn places(g: &mut Graph, of: &Decomposed, candidates: &[Id]) -> (FxHashMap<Id, Id>, Vec<Id>) {
    let mut buffers: FxHashMap<Id, Id> = FxHashMap::default();
    let mut temp_nodes: Vec<Id> = Vec::new();
    for &n in candidates {
        let dtype = g[n].dtype;
        let buffer = if g[n].op == Op::Assign {
            let mut base = g[n].src[0];
            while g[base].op == Op::Assign {
                base = g[base].src[0];
            }
            base
        } else if let Some(&(slot, _)) = of.outputs.iter().find(|o| o.1 == n) {
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

/// The kernels whose results each kernel reads, itself or through what is fused into it.
fn needs(kernels: &[(Draft, Price)], reads: &FxHashMap<Id, Vec<Id>>, fused: &FxHashSet<Id>) -> Vec<FxHashSet<usize>> {
    let number: FxHashMap<Id, usize> = kernels.iter().enumerate().map(|(i, k)| (k.0.root, i)).collect();
    let mut needs: Vec<FxHashSet<usize>> = vec![FxHashSet::default(); kernels.len()];
    for (i, (k, _)) in kernels.iter().enumerate() {
        let mut stack = vec![k.root];
        let mut seen = FxHashSet::default();
        while let Some(n) = stack.pop() {
            for &r in &reads[&n] {
                if seen.insert(r) {
                    if fused.contains(&r) {
                        stack.push(r);
                    } else {
                        needs[i].insert(number[&r]);
                    }
                }
            }
        }
    }
    needs
}

/// Levels by the longest path. Kernels are in topological order, except for the edges that `before_write` adds: hence the rounds.
fn levels(needs: &[FxHashSet<usize>]) -> Vec<usize> {
    let mut level = vec![0usize; needs.len()];
    for _ in 0..needs.len() {
        let mut changed = false;
        for i in 0..needs.len() {
            let l = needs[i].iter().map(|&j| level[j] + 1).max().unwrap_or(0);
            changed |= l != level[i];
            level[i] = l;
        }
        if !changed {
            break;
        }
    }
    level
}

/// How long an intermediate is alive; one that was fused takes no bytes.
fn lifetime(g: &Graph, node: Id, kernels: &[(Draft, Price)], needs: &[FxHashSet<usize>], level: &[usize]) -> Lifetime {
    let Some(i) = kernels.iter().position(|k| k.0.root == node) else { return Lifetime { bytes: 0, from: 0, to: 0 } };
    let bytes = g.max_elements(node).max(1) as usize * g[node].dtype.scalar.bytes();
    let last = (0..kernels.len()).filter(|&j| needs[j].contains(&i)).map(|j| level[j]).max();
    Lifetime { bytes, from: level[i], to: last.unwrap_or(level[i]) }
}

/// Kernels that read a state as it was come before the kernel that writes it.
fn before_write(g: &Graph, kernels: &[(Draft, Price)], needs: &mut [FxHashSet<usize>]) {
    for (w, (writer, _)) in kernels.iter().enumerate() {
        if g[writer.root].op != Op::Assign {
            continue;
        }
        let state = g[writer.nests[writer.nests.len() - 1]].src[0];
        for (r, (reader, _)) in kernels.iter().enumerate() {
            // A reader of the new version depends on the writer; any other reader of the slot reads the old one.
            let reads_slot =
                r != w && reader.nests.iter().any(|&n| g.any(n, |_, m| m.op == Op::Load && m.src[0] == state));
            if reads_slot && !depends(needs, r, w) {
                needs[w].insert(r);
            }
        }
    }
}

fn depends(needs: &[FxHashSet<usize>], from: usize, on: usize) -> bool {
    needs[from].iter().any(|&n| n == on || depends(needs, n, on))
}

/// Moves every kernel to the latest level at which its readers still come after it, if that level has company there: more kernels
/// without a path between them meet in one launch, and buffers live shorter.
fn later(needs: &[FxHashSet<usize>], level: &mut [usize]) {
    for i in (0..level.len()).rev() {
        let first_reader = (0..needs.len()).filter(|&j| needs[j].contains(&i)).map(|j| level[j]).min();
        if let Some(l) = first_reader
            && l - 1 > level[i]
        {
            level[i] = l - 1;
        }
    }
}

/// Seconds that bodies of one launch take longer than apart: on a GPU the registers of the largest bound all, so that fewer workgroups of the others
/// run beside one another.
fn crowding(g: &Graph, launch: &Launch, (new, price): (&Draft, &Price), target: &Target) -> f64 {
    if target.machine.kind == MachineKind::Cpu {
        return 0.0;
    }
    let beside = |nests: &[Id]| occupancy::resident_workgroups(g, nests, target);
    let (of_launch, of_new) = (launch.bodies.iter().map(|b| beside(b)).fold(f64::MAX, f64::min), beside(&new.nests));
    let (own, crowded, seconds) = match of_launch < of_new {
        true => (of_new, of_launch, price.seconds),
        false => (of_launch, of_new, launch.price.seconds),
    };
    (own / crowded - 1.0) * (seconds - target.machine.launch)
}

/// Bodies of a launch that do not all run at once are cut again, each for a part of the room that goes by its weights.
fn in_one_round(
    g: &mut Graph,
    launch: &mut Launch,
    target: &Target,
    mut again: impl FnMut(&mut Graph, Id, i64) -> Option<Draft>,
) {
    let room = occupancy::room(target);
    let groups = |g: &Graph, nests: &[Id]| -> i64 {
        let all = global_ranges(g, nests);
        all.iter().map(|&r| g.max_of(g[r].src[0])).fold(1, i64::saturating_mul)
    };
    let total = launch.bodies.iter().map(|b| groups(g, b)).fold(0, i64::saturating_add);
    if launch.bodies.len() == 1 || total <= room {
        return;
    }
    let bytes: Vec<f64> = launch.bodies.iter().map(|b| price::kernel(g, b, target).estimate.weight_bytes).collect();
    let all: f64 = bytes.iter().sum();
    for (i, own) in bytes.into_iter().enumerate() {
        let part = (room as f64 * own / all) as i64;
        if own > 0.0
            && let Some(new) = again(g, launch.roots[i], part.max(1))
            && groups(g, &new.nests) < groups(g, &launch.bodies[i])
        {
            (launch.bodies[i], launch.when[i]) = (new.nests, new.when);
        }
    }
}

/// Kernels of one level share a launch where that is cheaper.
fn merge(
    g: &Graph,
    kernels: &[(Draft, Price)],
    level: &[usize],
    target: &Target,
    decider: &mut Decider,
) -> Vec<Launch> {
    let mut out: Vec<Launch> = Vec::new();
    for (i, (k, price)) in kernels.iter().enumerate() {
        let alone = |l: &Launch| k.when.alone || l.when.iter().any(|w| w.alone);
        let mate = out.iter_mut().find(|l| target.merge && l.level == level[i] && !alone(l));
        if let Some(mate) = mate {
            let apart = mate.price.seconds + price.seconds;
            let together = apart - target.machine.launch + crowding(g, mate, (k, price), target);
            let site = format!("merge {:?} {} into level {}", g[k.root].op, g.show_dims(&g.shape(k.root)), level[i]);
            if decider.choose(site, vec![("apart".into(), apart), ("together".into(), together)]) == 1 {
                mate.bodies.push(k.nests.clone());
                mate.when.push(k.when);
                mate.roots.push(k.root);
                mate.price.seconds = together;
                mate.price.stages = mate.price.stages.max(price.stages);
                mate.price.estimate.weight_bytes += price.estimate.weight_bytes;
                mate.price.estimate.other_bytes += price.estimate.other_bytes;
                mate.price.estimate.operations += price.estimate.operations;
                continue;
            }
        }
        out.push(Launch {
            bodies: vec![k.nests.clone()],
            when: vec![k.when],
            roots: vec![k.root],
            level: level[i],
            price: *price,
        });
    }
    out
}
