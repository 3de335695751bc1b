//! Linearises the nests of a body into statements and loops.
//!
//! Each value is computed once, at the outermost loop where its operands are known (loop-invariant
//! code motion). Reductions over the same ranges share a loop, and copies of an `Upcast` or
//! `Unroll` range share common subexpressions, because equal nodes are one node.

pub(crate) mod dot2_accumulate;
mod sums;
mod updates;
pub(crate) mod vector;

use super::legalise::loads;
use super::linear_ir::threads;
use super::linear_ir::{Addition, Code, Statement};
use super::loops::early_exit::early_exit;
use super::loops::loop_carried::loop_carried;
use super::loops::loop_fusion::{self, Filled};
use super::loops::online_rescale::Rescaled;
use super::memory::coalesce;
use super::memory::store_forwarding::store_forwarding;
use super::mma::f16;
use super::mma::int8;
use super::mma::stage_products;
use super::mma::tiles::{self, MatrixTile};
use super::mma::unpacked;
use crate::ir::mma::tile_axes;
use crate::ir::nest::{Nest, global_ranges, unmasked};
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op, RangeKind};
use rustc_hash::{FxHashMap, FxHashSet};
use std::cell::RefCell;
use vector::{splat, vectorise};

/// Vector registers that a group of integer sums needs besides its accumulators: words, a product
/// and a constant. Counted, not measured.
pub const REGISTERS_OF_INTEGER_SUMS: usize = 12;

/// Returns how many sums of byte products a CPU accumulates interleaved, term by term: a quarter of
/// its vector registers. Each sum needs its own accumulator besides that of the float sum that it
/// is a term of; the words of a weight are multiplied for all sums while they are in registers.
///
/// Products per cycle on one Zen 5 core, with weights in L2, for separate and
/// interleaved sums: eight tokens by one vector of rows 82 and 93, four by two 91 and
/// 98; six by two leave no register for a second scale and reach 99 (a Xeon: 81, 81 and
/// 92 interleaved; `docs/experiments/123`).
pub fn integer_sums_at_once(target: &Target) -> usize {
    (target.registers / 4).max(1)
}

/// Linearises the nests of one body. Synchronisation is inserted by later passes.
pub fn lower_body(g: &mut Graph, nests: &[Id], target: &Target) -> Code {
    let nests = with_legal_loads(g, nests, target);
    let nests = loop_fusion::contracted(g, nests);
    let nests = loop_carried(g, nests);
    let leaves = target.machine.kind == MachineKind::Gpu && target.machine.early;
    let surplus = if leaves { early_exit(g, &nests) } else { None };
    let mut code = Code {
        globals: global_ranges(g, &nests),
        surplus,
        ..Code::default()
    };
    let mut stage_globals: FxHashMap<Id, Vec<Id>> = FxHashMap::default();
    // Nests that fill stages in each iteration of a loop of the last nest.
    let mut filled: Vec<Filled> = Vec::new();
    let multiplied = stage_products::multiplied(g, &nests, target);
    for nest in nests {
        let buffer = g[nest].src[0];
        let staged = g[buffer].op == Op::Local;
        let globals = globals_of(g, nest, &stage_globals);
        if staged {
            let all = stage_globals.entry(buffer).or_default();
            all.extend(globals.iter().copied());
            if !code.locals.contains(&buffer) {
                code.locals.push(buffer);
            }
        }
        let shared = loop_fusion::filled_in(g, nest);
        let nest = linearised(g, nest, &globals, shared, &filled, target);
        if shared.is_some() {
            filled.push(nest);
            continue;
        }
        // Nests before the one with the loop fill stages once.
        let mut parts = if loop_fusion::has_loop(g, &nest.statements) {
            std::mem::take(&mut filled)
        } else {
            vec![]
        };
        parts.push(nest);
        let Filled {
            threads,
            statements,
            ..
        } = joined(g, parts, &multiplied, &mut code.locals, target);
        code.statements.push(Statement::Nest {
            buffer,
            staged,
            globals,
            threads,
        });
        code.statements.extend(statements);
        code.statements.push(Statement::End);
    }
    code
}

/// Legalises the loads of the nests. Nests that load MMA tiles, and nests that unpack weights into
/// stages, do their own loads.
fn with_legal_loads(g: &mut Graph, nests: &[Id], target: &Target) -> Vec<Id> {
    let machine = &target.machine;
    let is_as_it_is = |g: &Graph, nest: Id| {
        tile_axes::ranges(g, &g[nest].src[3..], machine).is_some()
            || unpacked::fills_stage(g, nest, machine)
    };
    let legal = |&nest: &Id| {
        if is_as_it_is(g, nest) {
            nest
        } else {
            loads::loads(g, nest, target)
        }
    };
    nests.iter().map(legal).collect()
}

/// Linearises one nest. With `shared`, it fills a stage in each iteration of that loop; otherwise
/// it may read the stages of `filled`.
fn linearised(
    g: &mut Graph,
    nest: Id,
    globals: &[Id],
    shared: Option<Id>,
    filled: &[Filled],
    target: &Target,
) -> Filled {
    let stage = g[nest].src[0];
    let threads = threads_of(g, nest, target);
    let counted = threads::count(g, &threads, target.threads as i64);
    debug_assert!(
        threads::folds_alike(g, nest, &counted),
        "lanes fold terms of different elements"
    );
    let outer = globals
        .iter()
        .copied()
        .chain(threads)
        .chain(shared)
        .collect();
    let stages = filled
        .iter()
        .filter(|_| shared.is_none())
        .map(|f| f.stage)
        .collect();
    let mut e = Emitter::new(g, target, outer, stages);
    e.nest(nest);
    let statements = e.scopes.pop().expect("one scope is left").statements;
    Filled {
        stage,
        threads: counted,
        statements,
    }
}

/// Returns the workgroup indices that a nest depends on, directly or through stages. A stage is
/// stale when a stage that it reads is.
fn globals_of(g: &Graph, nest: Id, of_stages: &FxHashMap<Id, Vec<Id>>) -> Vec<Id> {
    let mut globals: Vec<Id> = g
        .free_ranges(nest)
        .iter()
        .copied()
        .filter(|&r| g.range_kind(r) == Some(RangeKind::Global))
        .collect();
    for n in g.toposort(&[g[nest].src[1], g[nest].src[2]]) {
        if g[n].op == Op::Load {
            globals.extend(of_stages.get(&g[n].src[0]).into_iter().flatten().copied());
        }
    }
    globals.sort();
    globals.dedup();
    globals
}

/// Joins the last nest with the preceding ones, which fill its stages in each iteration of its
/// loop. Store forwarding runs before loads are coalesced into wide ones, because a wide load may
/// combine several written values.
fn joined(
    g: &mut Graph,
    mut parts: Vec<Filled>,
    multiplied: &FxHashSet<Id>,
    locals: &mut Vec<Id>,
    target: &Target,
) -> Filled {
    let is_loop = parts.len() > 1;
    if is_loop {
        store_forwarding(g, &mut parts, locals);
    }
    for part in &mut parts {
        let mut s = std::mem::take(&mut part.statements);
        if target.machine.kind == MachineKind::Gpu && target.wide_loads {
            s = coalesce::loads(g, s, target.machine.gpu_facts().registers_in_flight);
        }
        s = stage_products::ended(g, s);
        s.extend(
            multiplied
                .contains(&part.stage)
                .then_some(Statement::WritesShown),
        );
        part.statements = s;
    }
    let mut nest = parts.pop().expect("the nest is the last part");
    if is_loop {
        nest.statements = loop_fusion::fused(g, nest.statements, &parts);
        nest.threads
            .extend(parts.into_iter().flat_map(|part| part.threads));
    }
    nest
}

/// Returns the ranges of a nest that are mapped to threads.
fn threads_of(g: &Graph, nest: Id, target: &Target) -> Vec<Id> {
    if target.machine.kind == MachineKind::Cpu {
        return vec![];
    }
    let kinds = [Some(RangeKind::Vector), Some(RangeKind::VectorReduce)];
    let mut found: Vec<Id> = g
        .toposort(&[nest])
        .into_iter()
        .filter(|&n| kinds.contains(&g.range_kind(n)))
        .collect();
    found.sort_by_key(|&r| g.range_number(r));
    found
}

#[derive(Default)]
struct Scope {
    range: Option<Id>,
    statements: Vec<Statement>,
    defined: FxHashSet<Id>,
    /// Accumulator that holds a reduction after its loop.
    results: FxHashMap<Id, Id>,
}

struct Emitter<'a> {
    g: &'a mut Graph,
    target: &'a Target,
    scopes: Vec<Scope>,
    outer: FxHashSet<Id>,
    rescaled: Rescaled,
    /// Stages that are refilled in each iteration of the loop that nests share.
    filled: FxHashSet<Id>,
    /// Whether MMA tiles of activations share registers: each is then loaded where it is
    /// multiplied, and not before a loop in which it is constant.
    tiles_rotate: bool,
    /// Caches whether a node depends on the contents of these stages in an iteration.
    of_iteration: RefCell<FxHashMap<Id, bool>>,
}

impl<'a> Emitter<'a> {
    fn new(
        g: &'a mut Graph,
        target: &'a Target,
        outer: FxHashSet<Id>,
        filled: FxHashSet<Id>,
    ) -> Emitter<'a> {
        let (scopes, rescaled, of_iteration) = (
            vec![Scope::default()],
            Rescaled::default(),
            RefCell::default(),
        );
        Emitter {
            g,
            target,
            scopes,
            outer,
            rescaled,
            filled,
            tiles_rotate: false,
            of_iteration,
        }
    }
    /// Returns whether a value is known only within an iteration of the shared loop. Its ranges do
    /// not show this, because a stage holds one iteration at a time.
    fn is_of_iteration(&self, id: Id) -> bool {
        if self.filled.is_empty() {
            return false;
        }
        let mut all = self.of_iteration.borrow_mut();
        for n in self.g.toposort_within(&[id], |n| !all.contains_key(&n)) {
            let node = &self.g[n];
            let sums = node.op == Op::Reduce
                && node.src[1..]
                    .iter()
                    .any(|&r| self.g.range_kind(r) == Some(RangeKind::Fused));
            let reads =
                matches!(node.op, Op::Load | Op::TileLoad) && self.filled.contains(&node.src[0]);
            let below = || node.src.iter().any(|s| all.get(s) == Some(&true));
            let known = !sums && (reads || below());
            all.insert(n, known);
        }
        all[&id]
    }
    fn nest(&mut self, nest: Id) {
        let Nest {
            buffer,
            offset,
            mut value,
            adds,
            closed,
        } = Nest::from_store(self.g, nest);
        if adds {
            return self.additions(Nest {
                buffer,
                offset,
                value,
                adds,
                closed,
            });
        }
        let whole = Nest {
            buffer,
            offset,
            value,
            adds,
            closed: closed.clone(),
        };
        let words = unpacked::words_of_stage(self.g, &whole, self.target);
        let in_words = words.as_ref().map(|(range, _)| *range);
        // One copy for every combination of the upcast indices.
        let mut copies = vec![FxHashMap::default()];
        for &r in &closed {
            if self.g.range_kind(r) == Some(RangeKind::Upcast) && Some(r) != in_words {
                copies = self.times(&copies, r);
            }
        }
        if let Some(tile) = tile_axes::ranges(self.g, &closed, &self.target.machine) {
            return self.tiles(
                Nest {
                    buffer,
                    offset,
                    value,
                    adds,
                    closed,
                },
                &copies,
                tile,
            );
        }
        if self.target.machine.kind == MachineKind::Gpu {
            value = int8::products(self.g, value, &closed, self.target);
            value = f16::products(self.g, value, &closed, self.target);
        }
        let gpu = self.target.machine.kind == MachineKind::Gpu;
        let is_lane = |g: &Graph, r: Id| !gpu && g.range_kind(r) == Some(RangeKind::Vector);
        let lane = closed.iter().copied().find(|&r| is_lane(self.g, r));
        let mut stores: Vec<(Id, Id)> = Vec::new();
        let written = words.map_or_else(|| vec![[offset, value]], |(_, words)| words);
        for (map, [offset, value]) in copies
            .iter()
            .flat_map(|map| written.iter().map(move |&w| (map, w)))
        {
            let (at, v) = self.store_of_copy([offset, value], map, lane);
            if !stores.contains(&(at, v)) {
                stores.push((at, v));
            }
        }
        let writes = stores
            .into_iter()
            .map(|(at, v)| (vec![at, v], Statement::Write(buffer, at, v)))
            .collect();
        self.looped(&closed, writes);
    }
    /// Returns the offset and the value of one copy of a store, for the threads or vector lanes of
    /// the machine.
    fn store_of_copy(
        &mut self,
        [offset, value]: [Id; 2],
        map: &FxHashMap<Id, Id>,
        lane: Option<Id>,
    ) -> (Id, Id) {
        let at = self.g.substitute(offset, &mut map.clone());
        let v = self.g.substitute(value, &mut map.clone());
        let v = if self.target.machine.kind == MachineKind::Gpu {
            threads::folded(self.g, v)
        } else {
            vectorise(self.g, v, self.target)
        };
        let v = self.rescaled.without(self.g, v);
        match lane {
            Some(l) => {
                let zero = self.g.int(0);
                let at = self
                    .g
                    .substitute(at, &mut FxHashMap::from_iter([(l, zero)]));
                // A copy may be uniform across lanes, if a condition on it is constant; a
                // vector is stored regardless.
                let lanes = self.g.int_value(self.g[l].src[0]).unwrap_or(1) as u16;
                (at, splat(self.g, v, lanes))
            }
            None => (at, v),
        }
    }
    /// Emits a nest that adds to its buffer.
    fn additions(&mut self, nest: Nest) {
        let Nest {
            buffer,
            offset,
            value,
            closed,
            ..
        } = nest;
        let of_kind = |g: &Graph, kind| {
            closed
                .iter()
                .copied()
                .filter(|&r| g.range_kind(r) == Some(kind))
                .collect()
        };
        let (upcasts, ordered): (Vec<Id>, Vec<Id>) = (
            of_kind(self.g, RangeKind::Upcast),
            of_kind(self.g, RangeKind::Reduce),
        );
        let copies = upcasts
            .iter()
            .fold(vec![FxHashMap::default()], |copies, &r| {
                self.times(&copies, r)
            });
        let lanes: Vec<Id> = match self.target.machine.kind {
            MachineKind::Cpu => of_kind(self.g, RangeKind::Vector),
            MachineKind::Gpu => vec![],
        };
        // A condition that all lanes share holds for each: a nest has lanes only along consecutive
        // elements of its output, and such an index is not clamped to its axis.
        let (when, value) = unmasked(self.g, value);
        let mut writes = Vec::new();
        for map in copies {
            let mut own = [Some(offset), Some(value), when]
                .map(|x| x.map(|x| self.g.substitute(x, &mut map.clone())));
            if let &[lane] = &lanes[..] {
                let zero = self.g.int(0);
                let count = self.g.int_value(self.g[lane].src[0]).unwrap_or(1) as u16;
                let vector = own[1]
                    .map(|v| vectorise(self.g, v, self.target))
                    .map(|v| splat(self.g, v, count));
                let first = |g: &mut Graph, x: Id| {
                    g.substitute(x, &mut FxHashMap::from_iter([(lane, zero)]))
                };
                own = [
                    own[0].map(|x| first(self.g, x)),
                    vector,
                    own[2].map(|x| first(self.g, x)),
                ];
            }
            let [Some(at), Some(value), when] = own else {
                unreachable!("an offset and a value are there: {own:?}")
            };
            let addition = Addition {
                buffer,
                at,
                values: vec![value],
                when,
                atomic: ordered.is_empty(),
            };
            writes.push((addition.uses().collect(), Statement::Add(addition)));
        }
        self.looped(&closed, writes);
    }
    /// Emits writes, each with the values that it reads, in the loops of a nest.
    fn looped(&mut self, closed: &[Id], writes: Vec<(Vec<Id>, Statement)>) {
        let is_loop =
            |g: &Graph, r: Id| matches!(g.range_kind(r), Some(RangeKind::Loop | RangeKind::Reduce));
        let loops: Vec<Id> = closed
            .iter()
            .copied()
            .filter(|&r| is_loop(self.g, r))
            .collect();
        let depth = self.scopes.len();
        for r in loops {
            self.open(r);
        }
        let roots: Vec<Id> = writes.iter().flat_map(|w| w.0.iter().copied()).collect();
        self.all(&roots);
        for (_, write) in writes {
            self.push_here(write);
        }
        while self.scopes.len() > depth {
            self.close();
        }
    }
    /// Emits a nest that is a product of MMA tiles.
    fn tiles(&mut self, nest: Nest, copies: &[FxHashMap<Id, Id>], [row, column]: [Id; 2]) {
        let count = copies.len() as i64;
        self.tiles_rotate = self.target.machine.kind == MachineKind::Cpu && tiles::rotate(count);
        let mut writes = Vec::new();
        for (number, map) in copies.iter().enumerate() {
            let [offset, value] =
                [nest.offset, nest.value].map(|x| self.g.substitute(x, &mut map.clone()));
            let beside = tiles::Beside {
                number: number as i64,
                count,
            };
            let sum = tiles::SumOfTile {
                offset,
                value,
                row,
                column,
            };
            let found = tiles::product(self.g, sum, beside, self.target);
            let MatrixTile {
                offset,
                stride,
                value,
            } = found.expect("a nest of this shape is a product of tiles");
            writes.push((
                vec![offset, value],
                Statement::WriteTile(nest.buffer, offset, stride, value),
            ));
        }
        self.looped(&nest.closed, writes);
    }
    fn times(&mut self, copies: &[FxHashMap<Id, Id>], r: Id) -> Vec<FxHashMap<Id, Id>> {
        let n = self.g.int_value(self.g[r].src[0]).unwrap_or(1);
        let mut out = Vec::new();
        for c in copies {
            for i in 0..n {
                let mut c = c.clone();
                c.insert(r, self.g.int(i));
                out.push(c);
            }
        }
        out
    }
    fn open(&mut self, r: Id) {
        // The bound is known outside the loop.
        let bound = self.g[r].src[0];
        self.all(&[bound]);
        self.scopes.push(Scope {
            range: Some(r),
            ..Scope::default()
        });
    }
    fn close(&mut self) {
        let scope = self.scopes.pop().expect("a loop is open");
        let r = scope.range.expect("a loop has a range");
        let into = self.scopes.last_mut().expect("the nest is open");
        into.statements.push(Statement::Loop {
            range: r,
            step: 1,
            unroll: None,
        });
        into.statements.extend(scope.statements);
        into.statements.push(Statement::End);
    }
    fn push_here(&mut self, s: Statement) {
        self.scopes
            .last_mut()
            .expect("the nest is open")
            .statements
            .push(s);
    }
    fn is_defined(&self, id: Id) -> bool {
        self.scopes.iter().any(|s| s.defined.contains(&id))
    }
    /// Returns the scope where all operands of `id` are known; `None` if one of its
    /// ranges is not open.
    fn depth(&self, id: Id) -> Option<usize> {
        if self.tiles_rotate && self.g[id].op == Op::TileLoad {
            return Some(self.scopes.len() - 1);
        }
        let mut depth = 0;
        if self.is_of_iteration(id) {
            let is_shared = |s: &Scope| {
                s.range
                    .is_some_and(|r| self.g.range_kind(r) == Some(RangeKind::Fused))
            };
            depth = self.scopes.iter().position(is_shared)?;
        }
        for &r in self.g.free_ranges(id) {
            if self.outer.contains(&r) {
                continue;
            }
            let at = self.scopes.iter().position(|s| s.range == Some(r))?;
            depth = depth.max(at);
        }
        Some(depth)
    }
    /// Defines `id` and its operands, each at its depth.
    fn define(&mut self, id: Id) {
        let mut stack = vec![id];
        while let Some(&n) = stack.last() {
            let node = &self.g[n];
            let leaf = matches!(
                node.op,
                Op::Const | Op::Var | Op::Param | Op::Local | Op::Range | Op::Acc
            );
            if leaf && node.dtype.lanes == 1 || self.is_defined(n) {
                stack.pop();
                continue;
            }
            let missing: Vec<Id> = node
                .src
                .iter()
                .copied()
                .filter(|&s| {
                    let leaf = matches!(
                        self.g[s].op,
                        Op::Const | Op::Var | Op::Param | Op::Local | Op::Range | Op::Acc
                    );
                    !(self.is_defined(s) || leaf && self.g[s].dtype.lanes == 1)
                })
                .collect();
            if missing.is_empty() {
                debug_assert!(
                    self.g[n].op != Op::Reduce,
                    "a reduction outside its ranges: {:?}",
                    self.g[n]
                );
                let depth = self.depth(n).unwrap_or(self.scopes.len() - 1);
                let scope = &mut self.scopes[depth];
                scope.statements.push(Statement::Define(n));
                scope.defined.insert(n);
                stack.pop();
            } else {
                stack.extend(missing);
            }
        }
    }
}

/// Substitutes without simplifying vector nodes; ranges are scalar, and index
/// arithmetic below is simplified.
fn substitute_raw(g: &mut Graph, id: Id, map: &FxHashMap<Id, Id>) -> Id {
    if map.is_empty() {
        id
    } else {
        g.substitute(id, &mut map.clone())
    }
}
