//! Multistage software pipelining of matrix product loops: the memory that an iteration reads is
//! copied to shared memory some iterations earlier, into a ring buffer with a slot for each
//! iteration in flight.
//!
//! Memory stays busy during the MMA work, and waiting takes no registers.
//!
//! Each load of 16 bytes becomes an asynchronous copy. If several threads load the same data, one
//! copies it for all, and a barrier in every iteration synchronises them; otherwise a thread waits
//! only for its own copies. Shared loads at a constant distance form a family, of which each of
//! these threads copies another member: one address computation serves all. Narrower loads are made
//! one iteration early and carried in registers.
//!
//! The launch plan chooses how many iterations the copies are ahead (`propose/launch.rs`).

use super::ring::{BYTES, Columns, Family, Ring, Unit, group, rings};
use crate::ir::mma::fragment::{at_swizzle, swizzled};
use crate::lower::linear_ir::{Code, Statement, bytes_of, define};
use gristmill_uop::fragment::whole_swizzles;
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Node, Op, Scalar};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::smallvec;

/// Elements of a ring buffer, in 32-bit words, per copy.
const WORDS_OF_COPY: i64 = BYTES / 4;
/// Shared memory reserved for reductions over several warps, in bytes: a word for each of 1,024
/// threads, in two types.
const BYTES_OF_FOLDS: i64 = 8 << 10;
/// Asynchronous MMA products in flight while the next operands are unpacked; registers hold the
/// operands of all of them.
pub(crate) const UNDER_WAY: i64 = 1;
/// First number of ring buffers; stages have lower numbers.
const FIRST_RING: i64 = 1 << 16;

/// Pipelines a body's loops with copies `ahead` iterations early. Shared memory left by the
/// stages limits the number.
pub fn multistage(g: &mut Graph, code: Code, ahead: i64, target: &Target) -> Code {
    let found = rings(g, &code.statements, target);
    let wanted: i64 = found.iter().map(Ring::bytes).sum();
    let stages = whole_swizzles(code.locals.iter().map(|&l| bytes_of(g, l) as i64).sum());
    let room =
        (target.machine.shared_per_workgroup as i64 - stages - BYTES_OF_FOLDS) / wanted.max(1) - 1;
    let ahead = ahead.min(room).max(0);
    // Asynchronous MMA products read only copied data, so their loops need a ring even without
    // lookahead.
    let found: Vec<Ring> = found
        .into_iter()
        .filter(|ring| ahead > 0 || !ring.columns.is_empty())
        .collect();
    if found.is_empty() {
        return code;
    }
    let mut all = code.statements;
    let mut locals = code.locals;
    // Last to first, so that earlier statement indices stay valid.
    for (number, ring) in found.iter().enumerate().rev() {
        let ahead = ahead.min(ring.count - 1);
        let elements = g.int((ahead + 1) * ring.bytes() / 4);
        let number = FIRST_RING + number as i64;
        let number = Arg::Int(if ring.columns.is_empty() {
            number
        } else {
            at_swizzle(number)
        });
        let buffer = g.intern(Node {
            op: Op::Local,
            dtype: Scalar::U32.one(),
            src: smallvec![elements],
            arg: number,
        });
        locals.push(buffer);
        let known = known(g, &all[..ring.first]);
        let mut writer = Writer {
            g,
            ring,
            buffer,
            ahead,
            known,
            out: vec![],
        };
        writer.rewrite(&all);
        let new = writer.out;
        all.splice(ring.first..=ring.end, new);
    }
    Code {
        statements: without_unused(g, without_repeated(all)),
        locals,
        ..code
    }
}

/// Returns the values that are defined at the end of these statements.
pub(crate) fn known(g: &Graph, statements: &[Statement]) -> FxHashSet<Id> {
    let mut scopes = vec![FxHashSet::default()];
    for s in statements {
        let here = scopes.last_mut().expect("a scope is open");
        match s {
            Statement::Define(id) => drop(here.insert(*id)),
            Statement::Wide(_, _, _, parts) | Statement::Copied(_, _, _, parts) => {
                here.extend(parts.iter().map(|p| p.0));
            }
            // After its loops, an accumulator defines its reduction.
            Statement::Accumulator(acc) => drop(here.insert(g[*acc].src[1])),
            s if s.opens() => scopes.push(FxHashSet::default()),
            Statement::End => drop(scopes.pop()),
            _ => {}
        }
    }
    scopes.into_iter().flatten().collect()
}

/// Rewrites the statements of one pipelined loop.
struct Writer<'a> {
    g: &'a mut Graph,
    ring: &'a Ring,
    /// Ring buffer of the loop.
    buffer: Id,
    ahead: i64,
    /// Values defined up to now.
    known: FxHashSet<Id>,
    out: Vec<Statement>,
}

impl Writer<'_> {
    fn rewrite(&mut self, all: &[Statement]) {
        let Ring {
            first,
            end,
            range,
            count,
            ..
        } = *self.ring;
        let (shared, columns) = (self.ring.is_shared(), !self.ring.columns.is_empty());
        for step in 0..self.ahead {
            let step = self.g.int(step);
            self.copies(all, step, None);
            self.out.push(Statement::AsyncGroup);
        }
        let zero = self.g.int(0);
        let begun = self.loads(all, zero);
        self.out.extend(
            begun
                .iter()
                .map(|&(load, first)| Statement::Carried(load, first)),
        );
        self.out.push(Statement::Loop {
            range,
            step: 1,
            unroll: Some(1),
        });
        if self.ahead == 0 {
            self.out.push(Statement::Barrier);
            self.copies(all, range, None);
            self.out.push(Statement::AsyncGroup);
        }
        self.out.push(Statement::AsyncWait((self.ahead - 1).max(0)));
        if shared {
            self.out.push(Statement::Barrier);
        }
        if self.ahead > 0 {
            self.copies_later(all);
        }
        let [one, last] = [1, count - 1].map(|n| self.g.int(n));
        let next = self.g.add(range, one);
        let next = self.g.min(next, last);
        let next = self.loads(all, next);
        self.body(&all[first + 1..end]);
        if columns {
            self.out.push(Statement::ProductsEnded(0));
        }
        self.out.extend(
            next.into_iter()
                .map(|(load, next)| Statement::Carry(load, next)),
        );
        self.out.push(Statement::End);
    }
    /// Emits the copies for the iteration `ahead` steps later, if it exists.
    fn copies_later(&mut self, all: &[Statement]) {
        let Ring { range, count, .. } = *self.ring;
        let [ahead, last] = [self.ahead, count - self.ahead].map(|n| self.g.int(n));
        let (later, is_one) = (self.g.add(range, ahead), self.g.lt(range, last));
        self.copies(all, later, Some(is_one));
        self.out.push(Statement::AsyncGroup);
    }
    /// Emits the loop's remaining statements. A copied load is read from the ring directly before
    /// its first use, which keeps register pressure low.
    fn body(&mut self, inside: &[Statement]) {
        let places = self.g.int(self.ahead + 1);
        let place = self.g.modulo(self.ring.range, places);
        let mut waiting: FxHashMap<Id, usize> = FxHashMap::default();
        let mut copies: Vec<Option<Statement>> = vec![];
        for (i, s) in inside.iter().enumerate() {
            let at = self.ring.first + 1 + i;
            let ring = self.ring;
            let mut all = ring.copied.iter().enumerate();
            let found = all.find_map(|(number, f)| {
                Some((number, f.statements.iter().position(|&x| x == at)?))
            });
            if let Some((number, member)) = found
                && let Statement::Wide(_, _, bytes, parts) = s
            {
                if ring.copied[number].unit.is_some() {
                    continue;
                }
                let (at, behind) = self.address(place, number);
                let behind = behind + member as i64 * ring.copied[number].bytes_of_one() / 4;
                let behind = self.g.int(behind);
                let at = self.g.add(at, behind);
                self.define(at);
                waiting.extend(parts.iter().map(|p| (p.0, copies.len())));
                copies.push(Some(Statement::Copied(
                    self.buffer,
                    at,
                    *bytes,
                    parts.clone(),
                )));
            } else if !self.ring.carried.contains(&at)
                && !matches!(s, Statement::Define(id) if self.known.contains(id))
            {
                let out = &mut self.out;
                let mut read =
                    |id: Id| out.extend(waiting.get(&id).and_then(|&copy| copies[copy].take()));
                s.uses(self.g, &mut read);
                let s = self.of_columns(s, place);
                let of_columns = matches!(s, Statement::Accumulate(_, value) if self.g[value].op == Op::MmaShared);
                self.out.push(s);
                if of_columns {
                    self.out.push(Statement::ProductsEnded(UNDER_WAY));
                }
            }
        }
    }
    /// Emits the copies of an iteration, under the condition `is_one`.
    fn copies(&mut self, all: &[Statement], step: Id, is_one: Option<Id>) {
        let places = self.g.int(self.ahead + 1);
        let place = self.g.modulo(step, places);
        let ring = self.ring;
        let mut turns = 0;
        for (number, family) in ring.copied.iter().enumerate() {
            let Statement::Wide(from, at, bytes, _) = &all[family.statements[0]] else {
                continue;
            };
            let at = self.in_step(*at, step);
            let at = if family.unit.is_some() {
                self.swizzled(at, &family.own)
            } else {
                at
            };
            let (mut offset, behind) = self.split_constant(at);
            let (mut to, before) = self.address(place, number);
            let (count, sharing) = (family.statements.len() as i64, family.sharing());
            let mut mine = None;
            if sharing > 1 {
                // Selects the family's member that this thread copies, and whether it is this
                // thread's turn.
                let (me, count) = (self.flat(&family.others), self.g.int(count));
                let (which, turn) = (self.g.modulo(me, count), self.g.idiv(me, count));
                let turns_of_all = sharing / family.statements.len() as i64;
                let now = self.g.int(turns % turns_of_all);
                turns += 1;
                mine = (turns_of_all > 1).then(|| self.g.eq(turn, now));
                to = self.offset_by(
                    to,
                    which,
                    family
                        .unit
                        .map_or(family.bytes_of_one() / 4, |unit| unit.stride),
                );
                offset = self.offset_by(offset, which, family.stride);
            }
            for id in [to, offset] {
                self.define(id);
            }
            let when = match (is_one, mine) {
                (Some(a), Some(b)) => Some(self.g.and(a, b)),
                (a, b) => a.or(b),
            };
            let (to, from, plus) = ([self.buffer, to], [*from, offset], [before, behind]);
            self.out.push(Statement::AsyncCopy {
                to,
                from,
                plus,
                bytes: *bytes,
                when,
            });
        }
    }
    /// Rewrites an accumulation by an asynchronous MMA product to read its columns
    /// from the ring buffer.
    fn of_columns(&mut self, s: &Statement, place: Id) -> Statement {
        let &Statement::Accumulate(acc, value) = s else {
            return s.clone();
        };
        let Some(of) = group(self.g, value) else {
            return s.clone();
        };
        let node = self.g[value].clone();
        let (rows, sum) = (of.first.registers() as usize, node.src[of.words()]);
        let columns = &self.ring.columns;
        let begin = self.ring.columns_at() / 4 + columns.of[&node.src[rows]];
        let (of_place, of_group, begin) = (
            self.g.int(self.ring.bytes() / 4),
            self.g.int(columns.words),
            self.g.int(begin),
        );
        let groups = self.flat(&columns.groups);
        let (place, groups) = (self.g.mul(place, of_place), self.g.mul(groups, of_group));
        let at = self.g.add(place, groups);
        let at = self.g.add(at, begin);
        self.define(at);
        let src = node.src[..rows]
            .iter()
            .copied()
            .chain([self.buffer, at, sum])
            .collect();
        Statement::Accumulate(
            acc,
            self.g.intern(Node {
                op: Op::MmaShared,
                src,
                ..node
            }),
        )
    }
    /// Returns the index `at + times * stride`.
    fn offset_by(&mut self, at: Id, times: Id, stride: i64) -> Id {
        let stride = self.g.int(stride);
        let by = self.g.mul(times, stride);
        self.g.add(at, by)
    }
    /// Splits an index into its variable part and a constant.
    fn split_constant(&mut self, at: Id) -> (Id, i64) {
        let mut sum = self.g.linear(at);
        let constant = std::mem::take(&mut sum.constant);
        (self.g.from_linear(&sum, Scalar::I64.one()), constant)
    }
    /// Returns a thread's row-major number over these ranges.
    fn flat(&mut self, ranges: &[(Id, i64)]) -> Id {
        let zero = self.g.int(0);
        ranges.iter().fold(zero, |at, &(range, count)| {
            let count = self.g.int(count);
            let at = self.g.mul(at, count);
            self.g.add(at, range)
        })
    }
    /// Returns the address of a family's first member in the ring for this thread: an index, and
    /// a constant in elements.
    fn address(&mut self, place: Id, number: usize) -> (Id, i64) {
        let family = &self.ring.copied[number];
        if let Some(unit) = family.unit {
            return self.address_of_unit(place, unit, &family.own);
        }
        let before: i64 = self.ring.copied[..number]
            .iter()
            .filter(|f| f.unit.is_none())
            .map(Family::bytes)
            .sum();
        let (of_place, of_copy) = (self.g.int(self.ring.bytes() / 4), self.g.int(WORDS_OF_COPY));
        let own = self.flat(&family.own);
        let (place, own) = (self.g.mul(place, of_place), self.g.mul(own, of_copy));
        let at = self.g.add(place, own);
        let (at, behind) = self.split_constant(at);
        (at, behind + before / 4)
    }
    /// Same as [`Self::address`], for a unit of columns.
    fn address_of_unit(&mut self, place: Id, unit: Unit, own: &[(Id, i64)]) -> (Id, i64) {
        let Columns { words, strides, .. } = self.ring.columns;
        let (groups, lane) = own.split_at(own.len().saturating_sub(2));
        let groups = self.flat(groups);
        let of_place = self.g.int(self.ring.bytes() / 4);
        let mut at = self.g.mul(place, of_place);
        // The last digit of the lane selects its part of the K dimension.
        let steps = [words, strides[1], strides[0]].map(|n| self.g.int(n));
        for (index, step) in [groups]
            .into_iter()
            .chain(lane.iter().map(|t| t.0))
            .zip(steps)
        {
            let index = self.g.mul(index, step);
            at = self.g.add(at, index);
        }
        let (at, behind) = self.split_constant(at);
        (at, behind + self.ring.columns_at() / 4 + unit.at)
    }
    /// Swizzles the source address of a lane's unit. Ring addresses follow the lanes, so that lanes
    /// of the same columns fill whole lines; the swizzle permutes the units within a line.
    fn swizzled(&mut self, at: Id, own: &[(Id, i64)]) -> Id {
        let &[.., (column, _), (unit, _)] = own else {
            return at;
        };
        let turned = swizzled(self.g, unit, column);
        self.g
            .substitute(at, &mut FxHashMap::from_iter([(unit, turned)]))
    }
    /// Returns an index as of iteration `step`.
    fn in_step(&mut self, at: Id, step: Id) -> Id {
        self.g
            .substitute(at, &mut FxHashMap::from_iter([(self.ring.range, step)]))
    }
    /// Emits the carried loads of an iteration; returns pairs of the loop's load and
    /// that iteration's load.
    fn loads(&mut self, all: &[Statement], step: Id) -> Vec<(Id, Id)> {
        let mut out = Vec::new();
        for &statement in &self.ring.carried {
            match &all[statement] {
                Statement::Define(load) => {
                    let of_step = self.in_step(*load, step);
                    self.define(of_step);
                    out.push((*load, of_step));
                }
                Statement::Wide(buffer, at, bytes, parts) => {
                    let at = self.in_step(*at, step);
                    self.define(at);
                    let of_step = |g: &mut Graph, load: Id| {
                        g.substitute(load, &mut FxHashMap::from_iter([(self.ring.range, step)]))
                    };
                    let new: Vec<(Id, usize)> =
                        parts.iter().map(|p| (of_step(self.g, p.0), p.1)).collect();
                    out.extend(parts.iter().zip(&new).map(|(old, new)| (old.0, new.0)));
                    self.known.extend(new.iter().map(|p| p.0));
                    self.out.push(Statement::Wide(*buffer, at, *bytes, new));
                }
                _ => {}
            }
        }
        out
    }
    fn define(&mut self, id: Id) {
        define(self.g, id, &mut self.known, &mut self.out);
    }
}

/// Removes definitions of values that are already defined.
pub(crate) fn without_repeated(statements: Vec<Statement>) -> Vec<Statement> {
    let mut scopes: Vec<FxHashSet<Id>> = vec![FxHashSet::default()];
    let is_new = |s: &Statement| {
        match s {
            Statement::Define(id) => {
                let again = scopes.iter().any(|scope| scope.contains(id));
                scopes.last_mut().expect("a scope is open").insert(*id);
                return !again;
            }
            s if s.opens() => scopes.push(FxHashSet::default()),
            Statement::End => drop(scopes.pop()),
            _ => {}
        }
        true
    };
    let mut statements = statements;
    statements.retain(is_new);
    statements
}

/// Removes definitions of unused values, such as addresses of removed loads.
pub(crate) fn without_unused(g: &Graph, statements: Vec<Statement>) -> Vec<Statement> {
    let mut used: FxHashSet<Id> = FxHashSet::default();
    let mut out: Vec<Statement> = Vec::with_capacity(statements.len());
    for s in statements.into_iter().rev() {
        if matches!(s, Statement::Define(id) if !used.contains(&id)) {
            continue;
        }
        s.uses(g, &mut |id| {
            used.insert(id);
        });
        out.push(s);
    }
    out.reverse();
    out
}
