//! Rules of linear code, checked in debug builds after lowering; a violation is a bug of a pass.
//!
//! Statements nest; values are defined before use; reductions are read after completion; stages are
//! filled before they are read; wide accesses are aligned; threads and kernels are synchronised
//! (`spec/order.rs`).

mod error;
mod hoisted;
mod memory;
mod nodes;
mod order;
mod rings;
#[cfg(test)]
mod tests;
mod tile_registers;
mod widths;

use super::linear_ir::threads::ThreadIndex;
use super::linear_ir::{Addition, Code, KernelCode, Prefetch, Statement, Update};
use super::loops::loop_carried::Slot;
use error::Checked;
use gristmill_uop::text::print_node;
use gristmill_uop::{Graph, Id, Op, RangeKind};
use hoisted::Hoisted;
use rustc_hash::{FxHashMap, FxHashSet};

pub use error::LinearError;
pub use widths::check_widths;

/// Bytes of an asynchronous copy.
const COPIES: usize = 16;

/// Checks linear code; returns the first statement that violates a rule.
///
/// # Errors
///
/// The violated rule, the index of the statement, and the offending node.
pub fn check(g: &Graph, kernel: &KernelCode) -> Result<(), LinearError> {
    for code in &kernel.bodies {
        let mut c = Checker {
            g,
            code,
            workgroup: kernel.threads as i64,
            statement: 0,
            scopes: vec![],
            nest: None,
            threads: vec![],
            hoisted: Hoisted::default(),
            guarded: false,
            filled: FxHashSet::default(),
            carried: FxHashSet::default(),
        };
        if let Some(skip) = code.skip {
            c.condition(skip)?;
        }
        for (i, s) in code.statements.iter().enumerate() {
            c.statement = i;
            c.statement(s)?;
        }
        c.statement = code.statements.len();
        if let Some(open) = c.nest.as_ref() {
            return Err(c.error("every loop and nest is closed", open.buffer));
        }
        c.hold_here(!c.guarded, "every loop and nest is closed")?;
        order::check(g, kernel, code)?;
        rings::check(g, code)?;
        tile_registers::check(g, code)?;
    }
    Ok(())
}

/// State of an open accumulator.
#[derive(Default)]
struct Sum {
    added: bool,
    read: bool,
}

#[derive(Default)]
struct Scope {
    range: Option<Id>,
    /// Step of the loop.
    step: i64,
    /// Index value of an unrolled iteration.
    index: Option<Id>,
    defined: FxHashSet<Id>,
    /// Accumulators, by the reduction that they compute.
    sums: FxHashMap<Id, Sum>,
}

struct Open {
    buffer: Id,
    written: bool,
}

struct Checker<'a> {
    g: &'a Graph,
    code: &'a Code,
    /// Threads of a workgroup.
    workgroup: i64,
    statement: usize,
    /// Scopes of the open nest and of each open loop.
    scopes: Vec<Scope>,
    nest: Option<Open>,
    /// Ranges mapped to threads in the open nest.
    threads: Vec<Id>,
    /// Values hoisted out of nests.
    hoisted: Hoisted,
    /// Whether the statements are in an `Unless`.
    guarded: bool,
    /// Stages written by earlier nests.
    filled: FxHashSet<Id>,
    carried: FxHashSet<Id>,
}

impl<'a> Checker<'a> {
    fn error(&self, rule: &'static str, id: Id) -> LinearError {
        let mut node = print_node(self.g, id);
        for &s in &self.g[id].src {
            node.push_str("\n  of ");
            node.push_str(&print_node(self.g, s));
        }
        LinearError {
            rule,
            statement: self.statement,
            node,
        }
    }
    fn hold(&self, holds: bool, rule: &'static str, id: Id) -> Checked {
        if holds {
            Ok(())
        } else {
            Err(self.error(rule, id))
        }
    }
    fn held(&self, held: Result<(), (&'static str, Id)>) -> Checked {
        held.map_err(|(rule, id)| self.error(rule, id))
    }
    /// Checks a rule of a statement without a node.
    fn hold_here(&self, holds: bool, rule: &'static str) -> Checked {
        let node = || format!("statement {}", self.statement);
        if holds {
            Ok(())
        } else {
            Err(LinearError {
                rule,
                statement: self.statement,
                node: node(),
            })
        }
    }
    fn condition(&self, id: Id) -> Checked {
        let known = self
            .g
            .free_ranges(id)
            .iter()
            .all(|r| self.code.globals.contains(r));
        let read = self.g.any(id, |_, n| matches!(n.op, Op::Load | Op::Reduce));
        self.hold(
            known && !read,
            "a condition is one on variables and workgroup indices",
            id,
        )
    }
    /// Checks that the statement is allowed at this position.
    fn stands(&self, s: &Statement) -> Checked {
        let in_nest = "a statement stands in a nest";
        match s {
            // Checked by their own rules.
            Statement::Nest { .. }
            | Statement::End
            | Statement::Barrier
            | Statement::AsyncWait(_)
            | Statement::Unless(_)
            | Statement::Leave(_)
            | Statement::Threads(_)
            | Statement::Prefetch(Prefetch::Span(_)) => Ok(()),
            Statement::DependencyWait | Statement::LaunchDependents => {
                self.hold_here(self.nest.is_none(), "kernels are waited for outside nests")
            }
            Statement::AsyncGroup
            | Statement::ProductsEnded(_)
            | Statement::WritesShown
            | Statement::Prefetch(_) => self.hold_here(self.nest.is_some(), in_nest),
            Statement::Define(id) | Statement::Wide(id, ..) if self.nest.is_none() => {
                self.hold(
                    !self.guarded,
                    "a condition stands around nests, and around no other",
                    *id,
                )?;
                self.held(self.hoisted.takes(self.g, *id))
            }
            Statement::Define(id)
            | Statement::Loop { range: id, .. }
            | Statement::Iteration(id, _)
            | Statement::Accumulator(id)
            | Statement::Accumulate(id, _)
            | Statement::Write(id, ..)
            | Statement::Add(Addition { buffer: id, .. })
            | Statement::Update(Update { buffer: id, .. })
            | Statement::WriteTile(id, ..)
            | Statement::Wide(id, ..)
            | Statement::WideWrite(id, ..)
            | Statement::Copied(id, ..)
            | Statement::Carried(id, _)
            | Statement::Carry(id, _)
            | Statement::AsyncCopy { to: [id, _], .. } => {
                self.hold(self.nest.is_some(), in_nest, *id)
            }
        }
    }
    fn statement(&mut self, s: &'a Statement) -> Checked {
        self.stands(s)?;
        match s {
            Statement::Nest {
                buffer,
                staged,
                globals,
                threads,
            } => self.nest(*buffer, *staged, globals, threads),
            Statement::End => self.end(),
            Statement::Barrier => self.hold_here(
                self.all_come(),
                "threads are waited for where all of them come",
            ),
            Statement::AsyncWait(groups) => self.hold_here(
                *groups >= 0,
                "copies that are not waited for are groups of copies",
            ),
            Statement::DependencyWait => {
                self.hoisted.waited = true;
                Ok(())
            }
            Statement::LaunchDependents
            | Statement::AsyncGroup
            | Statement::ProductsEnded(_)
            | Statement::WritesShown => Ok(()),
            Statement::Threads(threads) => self.threads_outside(threads),
            Statement::Unless(condition) => self.unless(*condition),
            Statement::Leave(condition) => self.leave(*condition),
            Statement::Define(id) => self.define(*id),
            &Statement::Loop {
                range,
                step,
                unroll,
            } => self.open(range, step, unroll),
            Statement::Iteration(range, index) => self.iteration(*range, *index),
            Statement::Accumulator(acc) => self.accumulator(*acc),
            Statement::Accumulate(acc, update) => self.accumulate(*acc, *update),
            Statement::Write(buffer, at, value) => self.write(*buffer, *at, *value),
            Statement::Add(addition) => self.add(addition),
            Statement::Update(update) => self.update(update),
            Statement::WriteTile(buffer, at, stride, value) => {
                self.write_tile(*buffer, *at, *stride, *value)
            }
            Statement::Wide(buffer, at, bytes, parts) => self.wide(*buffer, *at, *bytes, parts),
            Statement::WideWrite(buffer, at, bytes, values) => {
                self.wide_write(*buffer, *at, *bytes, values)
            }
            Statement::AsyncCopy {
                to,
                from,
                plus,
                bytes,
                when,
            } => {
                self.copies_behind([to[0], from[0]], *plus)?;
                self.async_copy(*to, *from, *bytes, *when)
            }
            Statement::Copied(ring, at, bytes, parts) => self.copied(*ring, *at, *bytes, parts),
            Statement::Carried(load, first) => self.carried(*load, *first),
            Statement::Carry(load, next) => self.carry(*load, *next),
            Statement::Prefetch(Prefetch::Span(span)) => self.span(span),
            Statement::Prefetch(p) => self.prefetch(p),
        }
    }
    /// Checks thread indices that are counted outside nests.
    fn threads_outside(&mut self, threads: &[ThreadIndex]) -> Checked {
        self.hold_here(
            self.nest.is_none() && !self.guarded,
            "threads are counted outside nests, or by one",
        )?;
        self.counted(threads)?;
        let counted = self.hoisted.count(threads);
        self.held(counted)
    }
    /// Checks the constant distances of an asynchronous copy from its two offsets.
    fn copies_behind(&self, [to, from]: [Id; 2], plus: [i64; 2]) -> Checked {
        let behind = |buffer: Id, n: i64| n * self.g.unit_bytes(buffer) % COPIES as i64 == 0;
        let aligned = behind(to, plus[0]) && behind(from, plus[1]);
        self.hold(
            aligned,
            "an asynchronous copy has 16 bytes and is aligned to its size",
            to,
        )
    }
    /// Returns whether all threads of the workgroup reach this point equally often.
    fn all_come(&self) -> bool {
        let parted = |r: Id| {
            self.g
                .free_ranges(self.g[r].src[0])
                .iter()
                .any(|t| self.threads.contains(t))
        };
        !self.scopes.iter().filter_map(|s| s.range).any(parted)
    }
    fn unless(&mut self, condition: Id) -> Checked {
        self.hold(
            self.nest.is_none() && !self.guarded,
            "a condition stands around nests, and around no other",
            condition,
        )?;
        self.guarded = true;
        self.condition(condition)
    }
    fn leave(&mut self, condition: Id) -> Checked {
        let g = self.g;
        self.hold(
            self.nest.is_none() && !self.guarded,
            "a workgroup ends between its nests",
            condition,
        )?;
        let known = g
            .free_ranges(condition)
            .iter()
            .all(|r| self.code.globals.contains(r));
        let far = |n: Id| g[n].op != Op::Load || g[g[n].src[0]].op == Op::Param;
        let read = g
            .toposort(&[condition])
            .into_iter()
            .all(|n| far(n) && !matches!(g[n].op, Op::Reduce | Op::Fold));
        self.hold(
            known && read,
            "where a workgroup ends is known from its indices and from memory",
            condition,
        )
    }
    fn nest(
        &mut self,
        buffer: Id,
        staged: bool,
        globals: &[Id],
        threads: &[ThreadIndex],
    ) -> Checked {
        let g = self.g;
        self.hold(self.nest.is_none(), "a nest stands in no other", buffer)?;
        let of = if staged { Op::Local } else { Op::Param };
        self.hold(
            g[buffer].op == of,
            "a nest writes a parameter, or a stage where it is one",
            buffer,
        )?;
        for &r in globals {
            self.hold(
                self.code.globals.contains(&r),
                "a nest depends on workgroup indices of the launch",
                r,
            )?;
        }
        self.counted(threads)?;
        self.threads = threads.iter().map(|t| t.range).collect();
        self.nest = Some(Open {
            buffer,
            written: false,
        });
        self.scopes.push(Scope::default());
        Ok(())
    }
    /// Checks thread indices; a nest must agree with the loads hoisted out of it.
    fn counted(&self, threads: &[ThreadIndex]) -> Checked {
        let g = self.g;
        for t in threads {
            let lanes = g.int_value(g[t.range].src[0]);
            let kind = matches!(
                g.range_kind(t.range),
                Some(RangeKind::Vector | RangeKind::VectorReduce)
            );
            self.hold(
                kind && lanes.is_some(),
                "threads are a constant number of lanes",
                t.range,
            )?;
            let most = t.modulo.unwrap_or((self.workgroup - 1) / t.stride() + 1);
            self.hold(
                lanes.is_some_and(|n| most <= n),
                "a thread's index lies within its range",
                t.range,
            )?;
        }
        self.held(self.hoisted.agrees(threads))
    }
    fn end(&mut self) -> Checked {
        let Some(scope) = self.scopes.pop() else {
            self.hold_here(self.guarded, "an end closes a loop or a nest")?;
            self.guarded = false;
            return Ok(());
        };
        for (&sum, state) in &scope.sums {
            self.hold(
                state.added,
                "an accumulator is added to before its scope ends",
                sum,
            )?;
        }
        if !self.scopes.is_empty() {
            return Ok(());
        }
        let nest = self
            .nest
            .take()
            .unwrap_or_else(|| unreachable!("a scope is open outside nests"));
        self.threads.clear();
        self.hold(nest.written, "a nest writes its buffer", nest.buffer)?;
        if self.g[nest.buffer].op == Op::Local {
            self.filled.insert(nest.buffer);
        }
        Ok(())
    }
    fn is_open(&self, r: Id) -> bool {
        let around = self.code.globals.contains(&r) || self.threads.contains(&r);
        let hoisted = self.nest.is_none() && self.hoisted.counts(r);
        around || hoisted || self.scopes.iter().any(|s| s.range == Some(r))
    }
    fn open(&mut self, r: Id, step: i64, unroll: Option<i64>) -> Checked {
        let counts = step == 1 || step > 1 && self.g.range_kind(r) == Some(RangeKind::Loop);
        self.hold(
            counts,
            "a loop comes to its end in steps, and one that others share, or a sum's, in steps of one",
            r,
        )?;
        self.hold(
            unroll.is_none_or(|n| n > 0),
            "an iteration at least is written out",
            r,
        )?;
        self.closed(r)?;
        let bound = self.g[r].src[0];
        self.hold(
            self.g[bound].dtype == self.g[r].dtype,
            "a range counts up to a bound of its type",
            r,
        )?;
        self.value(bound, r)?;
        self.scopes.push(Scope {
            range: Some(r),
            step,
            ..Scope::default()
        });
        Ok(())
    }
    fn iteration(&mut self, r: Id, index: Id) -> Checked {
        self.closed(r)?;
        self.value(index, r)?;
        let most = self.g.int_value(self.g[r].src[0]).unwrap_or(i64::MAX);
        let within = match self.round(index) {
            Some((round, behind)) => {
                let bound = round.range.map(|first| self.g[first].src[0]);
                (0..round.step).contains(&behind) && bound == Some(self.g[r].src[0])
            }
            None => self.g.within(index, 0, most.saturating_sub(1)),
        };
        let own = self.g[index].dtype == self.g[r].dtype;
        self.hold(
            own && within,
            "the index of an iteration that is written out lies within its range",
            index,
        )?;
        self.scopes.push(Scope {
            range: Some(r),
            index: Some(index),
            ..Scope::default()
        });
        Ok(())
    }
    /// Returns the open stepped loop that the index counts from, and the offset from its index.
    fn round(&self, index: Id) -> Option<(&Scope, i64)> {
        let (g, n) = (self.g, &self.g[index]);
        let (first, behind) = if n.op == Op::Add {
            (n.src[0], g.int_value(n.src[1])?)
        } else {
            (index, 0)
        };
        let round = self
            .scopes
            .iter()
            .find(|s| s.range == Some(first) && s.step > 1)?;
        Some((round, behind))
    }
    /// Checks that a loop over the range may be opened here.
    fn closed(&self, r: Id) -> Checked {
        let is_range = self.g[r].op == Op::Range && self.g.range_kind(r) != Some(RangeKind::Global);
        self.hold(
            is_range && !self.is_open(r),
            "a loop is over a range that is not open",
            r,
        )
    }
    /// Checks that a value may be read here by `user`.
    fn value(&mut self, id: Id, user: Id) -> Checked {
        let n = &self.g[id];
        match n.op {
            Op::Range => {
                return self.hold(self.is_open(id), "a range is open where it is used", user);
            }
            Op::Acc => {
                return Err(self.error("an accumulator is read by its own update alone", user));
            }
            Op::Const | Op::Var if n.dtype.lanes == 1 => return Ok(()),
            _ => {}
        }
        let at = self.scopes.iter().position(|s| s.sums.contains_key(&id));
        if let Some(at) = at {
            let inside = self
                .loops_of(id)
                .any(|r| self.scopes.iter().any(|s| s.range == Some(r)));
            let sum = self.scopes[at]
                .sums
                .get_mut(&id)
                .unwrap_or_else(|| unreachable!("a sum of this scope: {id:?}"));
            sum.read = true;
            let done = sum.added && !inside;
            return self.hold(done, "a sum is read when all is added", user);
        }
        let defined = self.scopes.iter().any(|s| s.defined.contains(&id))
            || self.hoisted.defined.contains(&id);
        self.hold(
            defined,
            "a value is defined before it is used, in a scope around it",
            user,
        )
    }
    /// Returns the loops of a reduction.
    fn loops_of(&self, reduction: Id) -> impl Iterator<Item = Id> + 'a {
        let g = self.g;
        let all = g[reduction].src[1..].iter().copied();
        all.filter(|&r| g.range_kind(r) != Some(RangeKind::Unroll))
    }
    /// Checks a node's sources, except `except`, and that the node may be here.
    fn node(&mut self, id: Id, except: Option<Id>) -> Checked {
        let g = self.g;
        if let Some(rule) = nodes::broken(g, &g[id], &self.threads) {
            return Err(self.error(rule, id));
        }
        for (i, &s) in g[id].src.iter().enumerate() {
            match g[id].op {
                Op::Load if i == 0 && self.left_before(id) => {}
                Op::Load | Op::TileLoad if i == 0 => self.readable(s, id)?,
                Op::MmaShared if g[s].op == Op::Local && g.scalar(s).is_half() => {
                    self.readable(s, id)?
                }
                // A ring buffer, which copies fill (`rings.rs`).
                Op::MmaShared if g[s].op == Op::Local => {}
                // The range of the threads, not its index.
                Op::Fold if i == 1 => {}
                _ if Some(s) == except => {}
                _ => self.value(s, id)?,
            }
        }
        Ok(())
    }
    /// Returns whether the load reads the previous iteration's value of a carried stage.
    fn left_before(&self, load: Id) -> bool {
        let before =
            |r: Id| Slot::from_offset(self.g, self.g[load].src[1], r) == Some(Slot::Before);
        self.shared_loop().is_some_and(before)
    }
    /// Returns the shared loop, if it is open.
    fn shared_loop(&self) -> Option<Id> {
        self.scopes
            .iter()
            .filter_map(|s| s.range)
            .find(|&r| self.g.range_kind(r) == Some(RangeKind::Fused))
    }
    fn readable(&self, buffer: Id, load: Id) -> Checked {
        let filled = self.g[buffer].op != Op::Local || self.filled.contains(&buffer);
        self.hold(
            filled,
            "a stage is filled by a nest before the one that reads it",
            load,
        )
    }
    fn define(&mut self, id: Id) -> Checked {
        self.hold(
            self.g[id].op != Op::Acc,
            "an accumulator has a statement of its own",
            id,
        )?;
        self.node(id, None)?;
        self.defined(id)
    }
    fn defined(&mut self, id: Id) -> Checked {
        let again = self
            .scopes
            .iter()
            .any(|s| s.defined.contains(&id) || s.sums.contains_key(&id));
        self.hold(
            !again && !self.hoisted.defined.contains(&id),
            "a value is defined once",
            id,
        )?;
        let scope = self.scopes.last_mut().map(|s| &mut s.defined);
        scope.unwrap_or(&mut self.hoisted.defined).insert(id);
        Ok(())
    }
    fn accumulator(&mut self, acc: Id) -> Checked {
        let n = &self.g[acc];
        self.hold(
            n.op == Op::Acc,
            "an accumulator is a node of its own kind",
            acc,
        )?;
        if let Some(rule) = nodes::broken(self.g, n, &self.threads) {
            return Err(self.error(rule, acc));
        }
        let (first, sum) = (n.src[0], n.src[1]);
        self.value(first, acc)?;
        let again = self
            .scopes
            .iter()
            .any(|s| s.defined.contains(&sum) || s.sums.contains_key(&sum));
        self.hold(!again, "a value is defined once", acc)?;
        let scope = self
            .scopes
            .last_mut()
            .unwrap_or_else(|| unreachable!("a nest is open: {acc:?}"));
        scope.sums.insert(sum, Sum::default());
        Ok(())
    }
    fn accumulate(&mut self, acc: Id, update: Id) -> Checked {
        let g = self.g;
        let sum = (g[acc].op == Op::Acc).then(|| g[acc].src[1]);
        let at = sum.and_then(|sum| self.scopes.iter().position(|s| s.sums.contains_key(&sum)));
        let (Some(sum), Some(at)) = (sum, at) else {
            return Err(self.error("an accumulator is opened before it is added to", acc));
        };
        let own = g[update].src.contains(&acc) && g[update].dtype == g[acc].dtype;
        self.hold(own, "an update adds to its accumulator", update)?;
        // A range that counts groups of another range's iterations stands for that range.
        let inner = &self.scopes[at + 1..];
        let rounds: FxHashSet<Id> = inner
            .iter()
            .filter_map(|s| s.index)
            .flat_map(|i| g.free_ranges(i).to_vec())
            .collect();
        let inner: Vec<Id> = inner
            .iter()
            .filter_map(|s| s.range)
            .filter(|r| !rounds.contains(r))
            .collect();
        let of_sum = inner.iter().all(|&r| self.loops_of(sum).any(|l| l == r));
        // In a shared loop, the accumulated value may be rescaled before terms are added.
        let is_scaled = g[update].op == Op::Mul && self.shared_loop().is_some_and(|r| inner == [r]);
        let inside = is_scaled || self.loops_of(sum).all(|r| inner.contains(&r));
        self.hold(
            inside && of_sum,
            "an accumulator is added to in the loops of its reduction",
            acc,
        )?;
        self.node(update, Some(acc))?;
        if is_scaled {
            return Ok(());
        }
        let state = self.scopes[at]
            .sums
            .get_mut(&sum)
            .unwrap_or_else(|| unreachable!("a sum of this scope: {sum:?}"));
        state.added = true;
        let read = state.read;
        self.hold(!read, "nothing is added to a sum that has been read", acc)
    }
}
