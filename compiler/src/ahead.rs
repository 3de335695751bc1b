//! Ask ahead: what a launch reads of a state, as far as that is known when the step starts, is asked for by a launch before it. Kernels of one token
//! leave memory idle for most of their time; a state then comes into the cache that all workgroups share while its reader waits for its other sources.
//! Whatever is written in between makes no request wrong, since everybody reads and writes through that cache.

use crate::decision::Decider;
use crate::schedule::Launch;
use gristmill_uop::function::{Function, SlotKind};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op};
use rustc_hash::{FxHashMap, FxHashSet};

/// Bytes, as far as a step may reach, from which a launch's own request comes too late: about a microsecond of memory's time.
const LEAST: i64 = 4 << 20;

/// A request for the first bytes of a buffer.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Which buffer.
    pub buffer: Id,
    /// How many bytes: an index expression over variables.
    pub bytes: Id,
}

/// Decides which launch asks for each state that a later one reads, for the first that does.
pub fn ask(g: &mut Graph, launches: &mut [Launch], function: &Function, target: &Target, decider: &mut Decider) {
    // Weights and activations want their place in the cache too.
    let room = target.shared_cache as i64 / 2;
    let mut seen: FxHashSet<u32> = FxHashSet::default();
    for reader in 0..launches.len() {
        for (buffer, slot, elements) in states(g, &launches[reader], function) {
            if !seen.insert(slot) {
                continue;
            }
            let slot = &function.slots[slot as usize];
            let size = slot.storage.bytes(&slot.dims).map_or(0, |n| n as i64);
            let (unit, most) = (g.int(g.unit_bytes(buffer)), g.int(room.min(size)));
            let bytes = g.mul(elements, unit);
            let bytes = g.min(bytes, most);
            if g.max_of(bytes) < LEAST {
                continue;
            }
            let memory = g.max_of(bytes) as f64 / target.bandwidth;
            // What is left to wait for, the farther before the reader somebody asks.
            let (mut askers, mut options) = (vec![], vec![("by itself".to_string(), memory)]);
            let level = launches[reader].level;
            let mut left = memory;
            for (asker, launch) in launches[..reader].iter().enumerate().rev().filter(|l| l.1.level < level) {
                if left <= 0.0 {
                    break;
                }
                left -= launch.price.seconds - launch.price.estimate.weight_bytes / target.bandwidth;
                askers.push(asker);
                options.push((format!("by level {}", launch.level), left.max(0.0)));
            }
            let chosen = decider.choose(format!("ask for {} of level {level}", slot.name), options);
            if let Some(&asker) = chosen.checked_sub(1).and_then(|i| askers.get(i)) {
                launches[asker].asks.push(Ask { buffer, bytes });
            }
        }
    }
}

/// The states that a launch reads: buffer, slot, and how many elements from the first on.
fn states(g: &mut Graph, launch: &Launch, function: &Function) -> Vec<(Id, u32, Id)> {
    let nests: Vec<Id> = launch.bodies.iter().flatten().copied().collect();
    let mut found: Vec<(Id, u32, Option<Id>)> = Vec::new();
    for n in g.toposort(&nests) {
        let (Op::Load, &[buffer, at, ..]) = (g[n].op, &g[n].src[..]) else { continue };
        let Arg::Param(slot) = g[buffer].arg else { continue };
        if function.slots.get(slot as usize).is_none_or(|s| s.kind != SlotKind::State) {
            continue;
        }
        let end = end(g, at);
        match found.iter_mut().find(|f| f.0 == buffer) {
            Some((.., known)) => {
                *known = known.zip(end).map(|(a, b)| if g.max_of(b) > g.max_of(a) { b } else { a });
            }
            None => found.push((buffer, slot, end)),
        }
    }
    found.into_iter().filter_map(|(buffer, slot, end)| Some((buffer, slot, end?))).collect()
}

/// One more than an index is at the end of all its ranges; `None` if that takes more than variables.
fn end(g: &mut Graph, at: Id) -> Option<Id> {
    let minus = g.int(-1);
    let mut map = FxHashMap::default();
    for r in g.free_ranges(at).to_vec() {
        let last = g.add(g[r].src[0], minus);
        map.insert(r, last);
    }
    let (last, one) = (g.substitute(at, &mut map), g.int(1));
    (!g.any(last, |_, n| matches!(n.op, Op::Load | Op::Range))).then(|| g.add(last, one))
}
