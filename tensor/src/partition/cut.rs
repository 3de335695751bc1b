//! The minimum cut between weights that are away and everything that stays.

use super::nodes::{is_storable, slot_of, users, viewed};
use gristmill_uop::function::Function;
use gristmill_uop::op::Class;
use gristmill_uop::{Arg, Graph, Id, Op};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;

/// The slots of a function that decide its parts.
#[derive(Clone, Copy)]
pub struct Cut<'a> {
    /// Whether an input or a weight is read by the away part alone; the others are read at home.
    pub is_away: &'a dyn Fn(u32) -> bool,
    /// Whether a result is needed before the away part starts, unless it depends on that.
    pub is_early: &'a dyn Fn(u32) -> bool,
}

impl<'a> Cut<'a> {
    /// Creates a cut at weights, without early results.
    pub fn at(is_away: &'a dyn Fn(u32) -> bool) -> Cut<'a> {
        let is_early = &|_: u32| false;
        Cut { is_away, is_early }
    }
}

/// Capacity of values that cannot be moved.
const NEVER: i64 = i64::MAX / 8;

/// Returns the nodes that run where the away weights are: the side of the minimum cut, by bytes of
/// values at their largest dims. `None` if there is no cut, or no valid order of the two sides.
pub(super) fn away_nodes(function: &Function, order: &[Id], by: Cut) -> Option<FxHashSet<Id>> {
    let g = &function.graph;
    let mut network = Network::default();
    let results = function.outputs.iter();
    let stays: FxHashSet<Id> = results
        .filter(|&&(slot, id)| g[id].op.is_version() || (by.is_early)(slot))
        .map(|result| result.1)
        .collect();
    let mut number: FxHashMap<Id, usize> = FxHashMap::default();
    for &id in order {
        let has_data = g[id].src.iter().any(|s| number.contains_key(s));
        if has_data || g[id].op == Op::Param {
            let at = network.node();
            number.insert(id, at);
            match slot_of(g, id) {
                Some(slot) if (by.is_away)(slot) => network.edge(SOURCE, at, NEVER),
                Some(_) => network.edge(at, SINK, NEVER),
                None => {}
            }
        }
    }
    for id in &stays {
        network.edge(number.get(id).copied()?, SINK, NEVER);
    }
    add_values(function, order, &number, &mut network)?;
    if network.saturate() >= NEVER {
        return None;
    }
    let reached = network.reached();
    let mut away: FxHashSet<Id> = order
        .iter()
        .copied()
        .filter(|id| number.get(id).is_some_and(|&at| reached[at]))
        .collect();
    absorb(g, order, &stays, &mut away).then_some(away)
}

/// Adds an edge for each value: it costs its bytes once if any of its readers is on the other side.
/// Results are read at home. `None` if one of them does not depend on data.
fn add_values(
    function: &Function,
    order: &[Id],
    number: &FxHashMap<Id, usize>,
    network: &mut Network,
) -> Option<()> {
    let g = &function.graph;
    let mut readers: FxHashMap<Id, Vec<usize>> = FxHashMap::default();
    for id in order {
        for source in &g[*id].src {
            if let (Some(&reader), true) = (number.get(id), number.contains_key(source)) {
                readers.entry(*source).or_default().push(reader);
            }
        }
    }
    for (_, id) in &function.outputs {
        number.get(id)?;
        readers.entry(*id).or_default().push(SINK);
    }
    for id in order {
        let (Some(readers), Some(&at)) = (readers.get(id), number.get(id)) else {
            continue;
        };
        let [first, last] = [network.node(), network.node()];
        network.edge(first, last, cost(g, *id));
        for &member in readers.iter().chain([&at]) {
            network.edge(member, first, NEVER);
            network.edge(last, member, NEVER);
        }
    }
    Some(())
}

/// Cost of moving a value: its bytes, and a little more for a view, since the value that it views
/// is as good, and is what is moved if the view shows all of it.
fn cost(g: &Graph, id: Id) -> i64 {
    const UNIT: i64 = 2;
    if let Some(whole) = viewed(g, id) {
        return cost(g, whole).saturating_add(1).min(NEVER);
    }
    // A weight is not copied in every step.
    let is_weight = matches!(g[id].arg, Arg::Packed(..)) || g[id].op == Op::Decode;
    if is_weight || !is_storable(g.scalar(id)) || g[id].op.is_version() {
        return NEVER;
    }
    let bytes = g.scalar(id).bytes() as i64 * UNIT;
    let dims = g.dims(id).iter();
    let all = dims.fold(bytes, |n, &d| {
        n.saturating_mul(g.max_of(d).max(1)).min(NEVER)
    });
    (all + i64::from(g[id].op.class() == Class::Movement)).min(NEVER)
}

/// Adds the nodes that lie between two nodes that are away. Returns false if one of them must stay.
fn absorb(g: &Graph, order: &[Id], stays: &FxHashSet<Id>, away: &mut FxHashSet<Id>) -> bool {
    let below = users(g, order, away);
    let begin: Vec<Id> = away.iter().copied().collect();
    let above: FxHashSet<Id> = g.toposort(&begin).into_iter().collect();
    let between: Vec<Id> = below.intersection(&above).copied().collect();
    away.extend(&between);
    !between
        .iter()
        .any(|id| stays.contains(id) || g[*id].op.is_version())
}

const SOURCE: usize = 0;
const SINK: usize = 1;

/// A flow network; edges are stored in pairs, each the other's reverse.
struct Network {
    edges: Vec<(usize, i64)>,
    from: Vec<Vec<usize>>,
}

impl Default for Network {
    fn default() -> Network {
        Network {
            edges: Vec::new(),
            from: vec![Vec::new(); 2],
        }
    }
}

impl Network {
    fn node(&mut self) -> usize {
        self.from.push(Vec::new());
        self.from.len() - 1
    }
    fn edge(&mut self, from: usize, to: usize, capacity: i64) {
        self.from[from].push(self.edges.len());
        self.edges.push((to, capacity));
        self.from[to].push(self.edges.len());
        self.edges.push((from, 0));
    }
    /// Returns the edge by which a search from the source reaches each node.
    fn search(&self) -> Vec<Option<usize>> {
        let mut by = vec![None; self.from.len()];
        let mut queue = VecDeque::from([SOURCE]);
        while let Some(at) = queue.pop_front() {
            for &edge in &self.from[at] {
                let (to, capacity) = self.edges[edge];
                if capacity > 0 && to != SOURCE && by[to].is_none() {
                    by[to] = Some(edge);
                    queue.push_back(to);
                }
            }
        }
        by
    }
    /// Sends the largest flow along shortest paths (Edmonds and Karp) and returns it; stops at
    /// [`NEVER`].
    fn saturate(&mut self) -> i64 {
        let mut flow = 0i64;
        while flow < NEVER {
            let by = self.search();
            let mut path = Vec::new();
            let mut at = SINK;
            while let Some(edge) = by[at] {
                path.push(edge);
                at = self.edges[edge ^ 1].0;
            }
            let Some(least) = path.iter().map(|&edge| self.edges[edge].1).min() else {
                break;
            };
            for edge in path {
                self.edges[edge].1 -= least;
                self.edges[edge ^ 1].1 += least;
            }
            flow = flow.saturating_add(least);
        }
        flow
    }
    /// Returns which nodes are on the source's side of the minimum cut.
    fn reached(&self) -> Vec<bool> {
        self.search().iter().map(Option::is_some).collect()
    }
}
