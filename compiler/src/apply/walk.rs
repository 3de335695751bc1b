//! Walks the linear code of a body as a workgroup of a GPU runs it.
//!
//! An instruction takes issue slots of its scheduler, which all resident workgroups share. A value
//! is there when its operands are, and its own latency later. Loads share the memory and the cache.
//! A barrier waits for everything written before it. Statements between two such points may be
//! reordered, as a device's compiler does, and unrolled iterations of a loop overlap.

use super::footprint::{Footprint, Indices, SECTOR};
use super::issue_slots::{issue_slots, matrix_slots};
use super::moment::Moment;
use crate::ir::size_estimate::typical;
use crate::lower::linear_ir::threads::ThreadIndex;
use crate::lower::{Code, Statement, end_of_block};
use gristmill_uop::features::{Amounts, Coefficients, Feature};
use gristmill_uop::machine::Machine;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::VecDeque;

/// Iterations of a loop that the device's compiler unrolls if the code leaves it to it.
const UNROLLED: f64 = 4.0;
/// Bytes that the loads and stores of a processor unit move in a cycle.
const BYTES_OF_CYCLE: f64 = 128.0;
/// Bytes from which a state is taken to be in memory rather than in the cache.
const LARGE: f64 = 1e6;
/// Dependent results after which the sums of a matrix product are there, and those of a root, a
/// quotient or an exponential.
const RESULTS_OF_MATRIX: f64 = 7.0;
const RESULTS_OF_FUNCTION: f64 = 8.0;

/// The device that a workgroup has to itself or shares.
#[derive(Clone, Copy)]
pub struct WorkgroupLoad {
    /// Threads of a workgroup.
    pub threads: f64,
    /// Workgroups of the body.
    pub groups: f64,
    /// Workgroups of the body that run at once, on the whole device.
    pub at_once: f64,
    /// Warps that share a scheduler.
    pub contention: f64,
    /// Words that a thread has registers for while they are loaded.
    pub words: f64,
}

/// What a workgroup takes.
pub struct Walked {
    /// Features of its critical path.
    pub path: Amounts,
    /// Issue slots of a warp.
    pub issue: f64,
    /// Bytes from memory and through the cache.
    pub memory: f64,
    pub cache: f64,
    /// Whether it has matrix products.
    pub multiplies: bool,
}

/// A sector that is loaded: buffer, variable part of its address, and number.
type Sector = (Id, Vec<(Id, i64)>, i64);

/// State of the walk through a body.
pub struct Walk<'a> {
    g: &'a Graph,
    machine: &'a Machine,
    by: Coefficients,
    load: WorkgroupLoad,
    /// When each value is there.
    ready: FxHashMap<Id, Moment>,
    /// No statement starts earlier.
    now: Moment,
    /// When all values of the current block are there, and when the last write happens.
    latest: Moment,
    written: Moment,
    /// When the memory and the cache have delivered everything asked for.
    memory: Moment,
    cache: Moment,
    /// Loads that are under way: words, and when they are there. All words of the walk so far.
    flight: VecDeque<(f64, Moment)>,
    words: f64,
    /// Groups of copies to stages that were not waited for, and the copies of no group yet.
    groups: Vec<Moment>,
    ungrouped: Moment,
    indices: Indices<'a>,
    /// Sectors that the workgroup has loaded before.
    loaded: FxHashSet<Sector>,
    /// Runs of the current statement, and issue slots of the walk so far, each counted once.
    runs: f64,
    slots: f64,
    /// Whether it has waited for the preceding kernel.
    waits: bool,
    total: Walked,
}

impl<'a> Walk<'a> {
    /// A walk through `body` that has not begun.
    pub fn new(g: &'a Graph, body: &'a Code, load: WorkgroupLoad, target: &'a Target) -> Walk<'a> {
        let total = Walked {
            path: Amounts::default(),
            issue: 0.0,
            memory: 0.0,
            cache: 0.0,
            multiplies: false,
        };
        Walk {
            g,
            machine: &target.machine,
            by: target.machine.code_coefficients(),
            load,
            ready: FxHashMap::default(),
            now: Moment::default(),
            latest: Moment::default(),
            written: Moment::default(),
            memory: Moment::default(),
            cache: Moment::default(),
            flight: VecDeque::new(),
            words: 0.0,
            groups: vec![],
            ungrouped: Moment::default(),
            indices: Indices::new(&body.globals, target.machine.subgroup),
            loaded: FxHashSet::default(),
            runs: 1.0,
            slots: 0.0,
            waits: false,
            total,
        }
    }
    /// Walks through all statements of the body.
    pub fn run(mut self, body: &Code) -> Walked {
        self.block(&body.statements);
        let mut path = self.now.later(self.latest).amounts;
        if self.waits {
            // The launch is counted with the kernel.
            path += Feature::Launch.times(-1.0);
        }
        Walked { path, ..self.total }
    }
    fn at(&self, id: Id) -> Moment {
        self.ready.get(&id).copied().unwrap_or_default()
    }
    /// When these values are there, not before now.
    fn after(&self, ids: impl IntoIterator<Item = Id>) -> Moment {
        ids.into_iter()
            .map(|id| self.at(id))
            .fold(self.now, Moment::later)
    }
    fn define(&mut self, id: Id, at: Moment) {
        self.ready.insert(id, at);
        self.latest = self.latest.later(at);
    }
    fn plus(&self, at: Moment, feature: Feature, amount: f64) -> Moment {
        at.plus(feature, amount, &self.by)
    }
    /// Issues instructions of that many slots.
    fn issue(&mut self, slots: f64) {
        self.now = self.plus(self.now, Feature::Cycle, slots * self.load.contention);
        self.slots += slots;
        self.total.issue += slots * self.runs;
    }

    /// Walks through the statements of a block.
    fn block(&mut self, statements: &[Statement]) {
        let mut i = 0;
        while i < statements.len() {
            let end = match statements[i].opens() {
                true => i + end_of_block(&statements[i..]),
                false => i,
            };
            let inner = statements.get(i + 1..end).unwrap_or_default();
            match &statements[i] {
                Statement::Loop {
                    range,
                    step,
                    unroll,
                } => self.turns(*range, *step, *unroll, inner),
                Statement::Nest { threads, .. } => {
                    let before = self.indices.set_threads(threads.clone());
                    self.block(inner);
                    self.indices.set_threads(before);
                }
                Statement::Iteration(..) | Statement::Unless(_) => self.block(inner),
                statement => self.statement(statement),
            }
            i = end + 1;
        }
    }
    /// A loop: its first turn, and the others as long as the second. The iterations of a turn
    /// are unrolled, so that only their instructions add up.
    fn turns(&mut self, range: Id, step: i64, unroll: Option<i64>, inner: &[Statement]) {
        let bound = self.g[range].src[0];
        let trips = (typical(self.g, bound) / step as f64).ceil().max(1.0);
        let copies = unroll.map_or(UNROLLED, |n| n as f64).clamp(1.0, trips);
        self.now = self.after([bound]);
        let runs = self.runs;
        self.indices.enter(range, trips);
        let loaded = self.loaded.clone();
        self.turn(copies, runs * copies, inner);
        let rest = trips / copies - 1.0;
        if rest > 0.0 {
            // The same addresses but for the loop's index.
            self.loaded = loaded;
            let begin = self.now;
            self.turn(copies, runs * (trips - copies), inner);
            self.now = self.now.again(begin, (rest - 1.0).max(0.0), &self.by);
        }
        self.indices.leave();
        self.latest = self.latest.later(self.now);
        self.runs = runs;
    }
    fn turn(&mut self, copies: f64, runs: f64, inner: &[Statement]) {
        self.runs = runs;
        self.latest = self.now;
        let (begin, slots, words) = (self.now, self.slots, self.words);
        self.block(inner);
        let (slots, words) = (self.slots - slots, self.words - words);
        // As many iterations overlap as have registers for what they load.
        let overlap = (self.load.words / words).floor().clamp(1.0, copies);
        let more = slots * (overlap - 1.0) * self.load.contention;
        let end = self.now.later(self.latest);
        let end = self.plus(end, Feature::Cycle, more);
        self.now = end.again(begin, copies / overlap - 1.0, &self.by);
    }
    fn statement(&mut self, statement: &Statement) {
        match statement {
            Statement::Define(id) => {
                let at = self.value(*id);
                self.define(*id, at);
            }
            Statement::Accumulator(sum) => self.define(*sum, self.at(self.g[*sum].src[0])),
            Statement::Accumulate(sum, value) => {
                let at = self.value(*value);
                self.define(*value, at);
                self.define(*sum, at);
            }
            Statement::Carried(load, value) | Statement::Carry(load, value) => {
                self.define(*load, self.at(*value));
            }
            Statement::Wide(buffer, offset, bytes, loads)
            | Statement::Copied(buffer, offset, bytes, loads) => {
                let at = self.load(*buffer, *offset, *bytes as f64);
                loads.iter().for_each(|load| self.define(load.0, at));
            }
            Statement::AsyncCopy { from, bytes, .. } => {
                let at = self.load(from[0], from[1], *bytes as f64);
                self.ungrouped = self.ungrouped.later(at);
            }
            Statement::AsyncGroup => {
                let group = std::mem::take(&mut self.ungrouped);
                self.groups.push(group);
            }
            Statement::AsyncWait(pending) => {
                let ended = self.groups.len().saturating_sub(*pending as usize);
                self.now = self.groups.drain(..ended).fold(self.now, Moment::later);
            }
            Statement::Barrier => {
                self.now = self.plus(self.now.later(self.written), Feature::Barrier, 1.0);
            }
            Statement::DependencyWait => self.begin(),
            Statement::Threads(threads) => drop(self.indices.set_threads(threads.clone())),
            Statement::Leave(condition) => {
                self.now = self.after(self.g.toposort(&[*condition]));
            }
            other => self.write(other),
        }
    }
    /// The preceding kernel has ended: a launch after this one began, if it waits for that.
    fn begin(&mut self) {
        let launched = self.plus(Moment::default(), Feature::Launch, 1.0);
        self.now = self.now.later(launched);
        self.waits = true;
    }
    fn write(&mut self, statement: &Statement) {
        let (buffer, offset, bytes) = match statement {
            Statement::Write(buffer, offset, value) => {
                (*buffer, *offset, self.g[*value].dtype.scalar.bytes())
            }
            Statement::WriteTile(buffer, offset, ..) => (*buffer, *offset, 4),
            Statement::WideWrite(buffer, offset, bytes, _) => (*buffer, *offset, *bytes),
            Statement::Add(addition) => (addition.buffer, addition.at, 4),
            Statement::Update(update) => (update.buffer, update.at, 4),
            _ => return,
        };
        let mut used = vec![];
        statement.uses(self.g, &mut |id| used.push(id));
        let at = self.after(used);
        let footprint = self.indices.footprint(self.g, buffer, offset, bytes as f64);
        self.issue(self.access_slots(&footprint));
        self.written = self.written.later(at).later(self.now);
        self.latest = self.latest.later(self.written);
    }
    /// Slots of an access: the cycles in which the unit moves its sectors, of which all
    /// schedulers have to wait.
    fn access_slots(&self, of: &Footprint) -> f64 {
        (of.sectors * SECTOR as f64 / BYTES_OF_CYCLE)
            .ceil()
            .max(1.0)
            * self.machine.schedulers as f64
    }
    fn value(&mut self, id: Id) -> Moment {
        let node = &self.g[id];
        let at = self.after(node.src.iter().copied());
        let results = match node.op {
            Op::Load => {
                return self.load(node.src[0], node.src[1], node.dtype.scalar.bytes() as f64);
            }
            Op::Fold => return self.fold(id, at),
            Op::Mma | Op::MmaHalf | Op::MmaShared => {
                self.total.multiplies = true;
                self.issue(matrix_slots(node, self.machine));
                RESULTS_OF_MATRIX
            }
            op => {
                self.issue(issue_slots(node));
                match op {
                    Op::Exp | Op::Exp2 | Op::Log | Op::Sqrt | Op::Recip | Op::Div => {
                        RESULTS_OF_FUNCTION
                    }
                    _ => 1.0,
                }
            }
        };
        self.plus(self.now.later(at), Feature::Result, results)
    }
    /// A reduction over threads: exchanges within a warp, then through workgroup memory.
    fn fold(&mut self, id: Id, at: Moment) -> Moment {
        let g = self.g;
        let of: Vec<&ThreadIndex> = self.indices.threads_in(&g[id].src[1..]).collect();
        let lanes: f64 = of.iter().map(|t| typical(g, g[t.range].src[0])).product();
        let stride = of.iter().map(|t| t.stride()).max().unwrap_or(1) as f64;
        let inside = lanes.min((self.machine.subgroup as f64 / stride).max(1.0));
        let (steps, beyond) = (inside.log2(), lanes / inside);
        // An exchange and an addition each.
        self.issue(4.0 * steps);
        let mut at = self.plus(at, Feature::Exchange, steps);
        if beyond > 1.0 {
            self.issue(4.0 * self.machine.schedulers as f64);
            at = self.plus(at, Feature::Barrier, 2.0);
            at = self.plus(at, Feature::StageWait, 2.0);
            at = self.plus(at, Feature::Exchange, beyond.log2());
        }
        at
    }
    /// A load of that many bytes by every thread: when its value is there.
    fn load(&mut self, buffer: Id, offset: Id, bytes: f64) -> Moment {
        let g = self.g;
        let footprint = self.indices.footprint(g, buffer, offset, bytes);
        self.issue(self.access_slots(&footprint));
        let start = self.now.later(self.at(offset));
        if g[buffer].op == Op::Local {
            return self.plus(start, Feature::StageWait, 1.0);
        }
        let words = (bytes / 4.0).ceil();
        let start = start.later(self.registers(words));
        let at = self.transfer(&footprint, buffer, offset, bytes, start);
        self.flight.push_back((words, at));
        self.words += words;
        at
    }
    /// When there are registers to load that many words: the oldest loads are used first.
    fn registers(&mut self, words: f64) -> Moment {
        let mut taken: f64 = self.flight.iter().map(|load| load.0).sum();
        while taken + words > self.load.words
            && let Some((used, at)) = self.flight.pop_front()
        {
            taken -= used;
            self.now = self.now.later(at);
        }
        self.now
    }
    /// Moves the sectors of a load to the workgroup from `start` on: when its value is there.
    fn transfer(
        &mut self,
        footprint: &Footprint,
        buffer: Id,
        offset: Id,
        bytes: f64,
        start: Moment,
    ) -> Moment {
        let moved = self.moved(footprint, buffer, offset, bytes);
        self.total.cache += self.runs * moved;
        let cache = self.cache.later(start);
        self.cache = self.plus(cache, Feature::Cache, moved * self.load.at_once);
        if !self.is_in_memory(buffer, offset) {
            return self.plus(self.cache, Feature::CacheWait, 1.0);
        }
        // Workgroups that read the same bytes share one transfer.
        let share = (footprint.groups / self.load.groups).min(1.0);
        let bytes = moved * share;
        self.total.memory += self.runs * bytes;
        let memory = self.memory.later(start);
        self.memory = self.plus(memory, Feature::Memory, bytes * self.load.at_once);
        self.plus(self.memory.later(self.cache), Feature::Wait, 1.0)
    }
    /// Bytes that a load moves to the workgroup in one run: each sector once, so that none is
    /// counted again for threads and iterations that read the same.
    fn moved(&mut self, of: &Footprint, buffer: Id, offset: Id, bytes: f64) -> f64 {
        let linear = self.g.linear(offset);
        let sector = linear.constant * self.g.unit_bytes(buffer) / SECTOR;
        if !self.loaded.insert((buffer, linear.terms.to_vec(), sector)) {
            return 0.0;
        }
        let warps = self.load.threads / self.machine.subgroup as f64;
        let whole = of.sectors * SECTOR as f64;
        let unused = (whole / (of.lanes * bytes)).max(1.0);
        let distinct = of.threads.min(self.load.threads) * bytes * unused;
        distinct.min(whole * warps) / of.repeats
    }
    /// Whether a buffer comes from memory: a weight, or a large state.
    fn is_in_memory(&self, buffer: Id, offset: Id) -> bool {
        let g = self.g;
        let is_large = || {
            let end = g.bounds(offset).map_or(0, |bounds| bounds.1);
            end as f64 * g.unit_bytes(buffer) as f64 > LARGE
        };
        match g[buffer].arg {
            Arg::Packed(..) => true,
            Arg::Param(slot) => slot < crate::ir::TEMP && is_large(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_uop::Scalar;

    const LOAD: WorkgroupLoad = WorkgroupLoad {
        threads: 256.0,
        groups: 132.0,
        at_once: 132.0,
        contention: 2.0,
        words: 64.0,
    };

    /// Path of a body that runs these loads of a small buffer, in order.
    fn path(g: &Graph, loads: &[Id], load: WorkgroupLoad) -> Amounts {
        let body = Code {
            statements: loads.iter().map(|&id| Statement::Define(id)).collect(),
            ..Code::default()
        };
        let target = Target::named("h200");
        Walk::new(g, &body, load, &target).run(&body).path
    }

    #[test]
    fn loads_wait_in_turn_only_for_their_addresses_or_registers() {
        let mut g = Graph::new();
        let buffer = g.param(crate::ir::TEMP, &[], Scalar::I64);
        let load = |g: &mut Graph, at: Id| g.load(buffer, at, Scalar::I64.one());
        let [zero, one] = [0, 8].map(|at| g.int(at));
        let (a, b) = (load(&mut g, zero), load(&mut g, one));
        let behind = load(&mut g, a);
        let waits = |loads: &[Id], of: WorkgroupLoad| path(&g, loads, of).get(Feature::CacheWait);
        assert_eq!(waits(&[a, b], LOAD), 1.0);
        assert_eq!(waits(&[a, behind], LOAD), 2.0);
        let few = WorkgroupLoad { words: 2.0, ..LOAD };
        assert_eq!(waits(&[a, b], few), 2.0, "no registers for both");
    }

    #[test]
    fn a_launch_waits_for_its_predecessor_but_not_with_loads_before() {
        let mut g = Graph::new();
        let buffer = g.param(crate::ir::TEMP, &[], Scalar::I64);
        let zero = g.int(0);
        let load = g.load(buffer, zero, Scalar::I64.one());
        let target = Target::named("h200");
        let seconds = |statements: Vec<Statement>| {
            let body = Code {
                statements,
                ..Code::default()
            };
            let path = Walk::new(&g, &body, LOAD, &target).run(&body).path;
            path.seconds(&target.machine.code_coefficients())
        };
        let wait = Statement::DependencyWait;
        let behind = seconds(vec![wait.clone(), Statement::Define(load)]);
        let before = seconds(vec![Statement::Define(load), wait]);
        assert!(before < 1e-12 && behind > 1e-7, "{before} {behind}");
    }
}
