//! The middle of the pipeline: decomposes a function and schedules it as launches.
//!
//! `pipeline.rs` continues from here with the chosen form; alternatives of a subgraph are only
//! compared by cost and end here.

use crate::decision::Decider;
use crate::decompose::matmul_variant::MatmulVariants;
use crate::decompose::{attention, defer_norm_scale, int8, layouts, scan, scatter};
use crate::emit::verify;
use crate::ir::layout::Layout;
use crate::schedule::{self, Decomposed, Scheduled};
use crate::watch::Watch;
use gristmill_uop::function::{Function, SlotKind};
use gristmill_uop::spec::Level;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Node, Op, Sources};
use rustc_hash::{FxHashMap, FxHashSet};

/// A function as launches.
pub struct Planned {
    /// Launches, memory plan, and the graph that holds them.
    pub scheduled: Scheduled,
    /// Layout that each packed slot must have. Slots that are not listed use the file layout.
    pub layouts: Vec<(u32, Layout)>,
}

/// Decomposes and schedules a function, `compared` only with other forms of it.
pub fn planned(
    function: &Function,
    target: &Target,
    decider: &mut Decider,
    compared: bool,
    watch: &mut dyn Watch,
) -> Planned {
    // decompose: rewrites named ops in terms of basic ones.
    let mut graph = function.graph.clone();
    let mut hints = FxHashMap::default();
    let mut roots: Vec<Id> = function.outputs.iter().map(|o| o.1).collect();
    scan::expand(&mut graph, &mut roots);
    watch.pass("scan", &mut graph, &roots);
    scatter::expand(&mut graph, &mut roots, function, target, decider);
    watch.pass("scatter", &mut graph, &roots);
    attention::expand(
        &mut graph,
        &mut roots,
        &mut hints,
        target,
        &function.full_name(),
        decider,
    );
    watch.pass("attention", &mut graph, &roots);
    defer_norm_scale::defer_norm_scale(
        &mut graph, &mut roots, &mut hints, function, target, decider,
    );
    watch.pass("factors", &mut graph, &roots);
    let layouts = layouts::decided(
        function,
        int8::layouts_of(function, target),
        target,
        decider,
    );
    let name = function.full_name();
    let mut forms = MatmulVariants::new(&name, target, decider);
    let derived = int8::derive(&mut graph, &mut roots, &mut hints, layouts, &mut forms);
    watch.pass("int8", &mut graph, &roots);
    let outputs = distinct_outputs(&mut graph, function, &roots);
    watch.pass(
        "outputs",
        &mut graph,
        &outputs.iter().map(|o| o.1).collect::<Vec<_>>(),
    );
    for &(_, root) in &outputs {
        verify(&graph, root, Level::Tensor, "decompose");
    }
    let mut layouts: Vec<(u32, Layout)> = derived
        .layouts
        .iter()
        .map(|(&slot, l)| (slot, l.0))
        .collect();
    layouts.sort_by_key(|l| l.0);
    // materialise, fuse launches, plan memory.
    let of = Decomposed {
        function,
        outputs: &outputs,
        hints: &hints,
        derived: &derived,
        compared,
    };
    Planned {
        scheduled: schedule::schedule(&of, graph, target, decider),
        layouts,
    }
}

/// Whether the node is a version of a state.
fn is_state(g: &Graph, mut node: Id) -> bool {
    let is_version = g[node].op.is_version();
    while g[node].op.is_version() {
        node = g[node].src[0];
    }
    is_version && g[node].op == Op::Param
}

/// The outputs, each with a distinct node, because a node is written to one place only. A node that
/// another slot already writes, or that is a state, is copied.
fn distinct_outputs(g: &mut Graph, function: &Function, roots: &[Id]) -> Vec<(u32, Id)> {
    let mut taken: FxHashSet<Id> = FxHashSet::default();
    let own = |(&(slot, _), &root): (&(u32, Id), &Id)| {
        let mut node = root;
        if function.slots[slot as usize].kind != SlotKind::State {
            while is_state(g, node) || !taken.insert(node) {
                let dtype = g[node].dtype;
                let src: Sources = std::iter::once(node).chain(g.shape(node)).collect();
                // Interned directly: building it would let the rules simplify the
                // no-op reshape away.
                node = g.intern(Node {
                    op: Op::Reshape,
                    dtype,
                    src,
                    arg: Arg::None,
                });
            }
        }
        (slot, node)
    };
    function.outputs.iter().zip(roots).map(own).collect()
}
