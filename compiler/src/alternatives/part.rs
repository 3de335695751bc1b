//! A part of a function, independent of its context. Nodes and slots are renumbered as its
//! outputs need them, so equal parts of different layers compare equal, and each is
//! scheduled once per process.

use gristmill_uop::function::{Function, Slot};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Node};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Cached costs over all targets, after which the cache is cleared. A model has about
/// ten parts per target.
const KEPT: usize = 4096;

/// A renumbered part of a function.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Subfunction {
    /// Nodes, sources before users; sources are indices into this list.
    nodes: Vec<Node>,
    slots: Vec<Slot>,
    /// Slot and node index of each output.
    outputs: Vec<(u32, u32)>,
}

impl Subfunction {
    /// Extracts the computation of these outputs from a function with these slots.
    pub fn new(g: &Graph, slots: &[Slot], outputs: &[(u32, Id)]) -> Subfunction {
        let roots: Vec<Id> = outputs.iter().map(|o| o.1).collect();
        let mut number: FxHashMap<Id, u32> = FxHashMap::default();
        let mut own = Slots {
            of: slots,
            own: vec![],
            number: FxHashMap::default(),
        };
        let mut nodes = Vec::new();
        for id in g.toposort(&roots) {
            let mut node = g[id].clone();
            node.src.iter_mut().for_each(|s| *s = Id(number[s]));
            match &mut node.arg {
                Arg::Param(slot) | Arg::Packed(slot, _) => *slot = own.number(*slot),
                _ => {}
            }
            number.insert(id, nodes.len() as u32);
            nodes.push(node);
        }
        let outputs = outputs
            .iter()
            .map(|&(slot, id)| (own.number(slot), number[&id]))
            .collect();
        Subfunction {
            nodes,
            slots: own.own,
            outputs,
        }
    }
    /// Converts the part to a function.
    pub fn function(&self) -> Function {
        let mut graph = Graph::new();
        let mut ids: Vec<Id> = Vec::new();
        for node in &self.nodes {
            let Node {
                op,
                dtype,
                src,
                arg,
            } = node.clone();
            let src: Vec<Id> = src.iter().map(|s| ids[s.index()]).collect();
            ids.push(graph.build(op, dtype, src, arg));
        }
        let outputs = self
            .outputs
            .iter()
            .map(|&(slot, at)| (slot, ids[at as usize]))
            .collect();
        Function {
            name: String::new(),
            graph,
            slots: self.slots.clone(),
            outputs,
        }
    }
}

/// Slots, renumbered in order of first use.
struct Slots<'a> {
    of: &'a [Slot],
    own: Vec<Slot>,
    number: FxHashMap<u32, u32>,
}

impl Slots<'_> {
    fn number(&mut self, slot: u32) -> u32 {
        *self.number.entry(slot).or_insert_with(|| {
            self.own.push(Slot {
                name: String::new(),
                ..self.of[slot as usize].clone()
            });
            self.own.len() as u32 - 1
        })
    }
}

/// Costs of a target's parts, finished or being computed.
type Known = (Target, FxHashMap<Subfunction, Arc<OnceLock<f64>>>);

static KNOWN: Mutex<Vec<Known>> = Mutex::new(Vec::new());

/// Returns the cost of a part, computed by `schedule` on first use. Concurrent callers wait for it.
pub fn cost(
    part: &Subfunction,
    target: &Target,
    schedule: impl FnOnce(&Subfunction, &Target) -> f64,
) -> f64 {
    // Stored tuning plans refer to whole functions, so they are dropped here.
    let target = Target {
        plans: BTreeMap::new(),
        ..target.clone()
    };
    let cost = place(part.clone(), &target);
    *cost.get_or_init(|| schedule(part, &target))
}

/// Cache entry of the cost.
fn place(part: Subfunction, target: &Target) -> Arc<OnceLock<f64>> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if known.iter().map(|k| k.1.len()).sum::<usize>() >= KEPT {
        known.clear();
    }
    let at = known
        .iter()
        .position(|k| k.0 == *target)
        .unwrap_or_else(|| {
            known.push((target.clone(), FxHashMap::default()));
            known.len() - 1
        });
    known[at].1.entry(part).or_default().clone()
}
