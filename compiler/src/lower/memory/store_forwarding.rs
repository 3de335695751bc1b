//! Store forwarding through stages: if each thread reads only values that it has written itself in
//! the same iteration of a shared loop, it keeps them in registers, without a barrier.
//!
//! A stage without remaining readers is removed.

use crate::lower::linear_ir::{Statement, define};
use crate::lower::loops::loop_fusion::Filled;
use crate::lower::mma::unpacked;
use gristmill_uop::{Graph, Id, Op, Scalar};
use rustc_hash::{FxHashMap, FxHashSet};

/// Forwards stored values in the parts of an iteration; the last part contains the loop. Removes
/// stages without readers, also from `locals`.
pub fn store_forwarding(g: &mut Graph, parts: &mut [Filled], locals: &mut Vec<Id>) {
    let mut of = Forwarding {
        g,
        threads: FxHashMap::default(),
        written: FxHashMap::default(),
        changed: false,
    };
    for part in parts.iter_mut() {
        of.part(part);
    }
    if !of.changed {
        return;
    }
    let stages: FxHashSet<Id> = parts
        .iter()
        .map(|part| part.stage)
        .filter(|&s| g[s].op == Op::Local)
        .collect();
    let mut read = FxHashSet::default();
    for s in parts.iter().flat_map(|part| &part.statements) {
        s.uses(g, &mut |id| {
            read.extend(Some(&g[id]).filter(|n| n.op == Op::Load).map(|n| n.src[0]))
        });
        if let Statement::Define(id) | Statement::Accumulate(_, id) = s {
            let n = &g[*id];
            read.extend(n.src.iter().copied().filter(|&s| g[s].op == Op::Local));
        }
    }
    let unread = |buffer: &Id| stages.contains(buffer) && !read.contains(buffer);
    for part in parts.iter_mut() {
        part.statements
            .retain(|s| !matches!(s, Statement::Write(buffer, ..) if unread(buffer)));
    }
    locals.retain(|local| !unread(local));
}

struct Forwarding<'a> {
    g: &'a mut Graph,
    /// Canonical range for each thread mapping, by stride and count: ranges that are mapped to the
    /// same threads are equal.
    threads: FxHashMap<(i64, i64), Id>,
    /// Value that a thread has written to a stage at an offset, in terms of canonical ranges.
    written: FxHashMap<(Id, Id), Id>,
    changed: bool,
}

impl Forwarding<'_> {
    fn part(&mut self, part: &mut Filled) {
        let mut alike = FxHashMap::default();
        for t in &part.threads {
            let count = self.g.max_of(self.g[t.range].src[0]);
            let first = *self.threads.entry((t.stride(), count)).or_insert(t.range);
            alike.insert(t.range, first);
        }
        let mut kept: FxHashMap<Id, Id> = FxHashMap::default();
        for s in &part.statements {
            if let Statement::Define(id) = s
                && let Some(value) = self.kept(*id, &alike)
            {
                kept.insert(*id, value);
            }
        }
        if !kept.is_empty() {
            self.changed = true;
            part.statements = self.rewritten(&part.statements, kept);
        }
        let mut depth = 0;
        for s in &part.statements {
            match s {
                s if s.opens() => depth += 1,
                Statement::End => depth -= 1,
                Statement::Write(stage, at, value)
                    if depth == 0 && self.g[*stage].op == Op::Local =>
                {
                    let at = self.g.substitute(*at, &mut alike.clone());
                    self.written.insert((*stage, at), *value);
                }
                _ => {}
            }
        }
    }
    /// Returns the value that a load reads back: one element, or the two halves of a word.
    fn kept(&mut self, load: Id, alike: &FxHashMap<Id, Id>) -> Option<Id> {
        let n = self.g[load].clone();
        if n.op != Op::Load || self.g[n.src[0]].op != Op::Local {
            return None;
        }
        let (stage, of_stage) = (n.src[0], self.g.scalar(n.src[0]));
        let at = self.g.substitute(n.src[1], &mut alike.clone());
        let own = |written: &FxHashMap<(Id, Id), Id>, at: Id| written.get(&(stage, at)).copied();
        if n.dtype == of_stage.one() {
            return own(&self.written, at);
        }
        if n.dtype != Scalar::U32.one() || !of_stage.is_half() {
            return None;
        }
        let one = self.g.int(1);
        let next = self.g.add(at, one);
        let [low, high] = [at, next].map(|at| own(&self.written, at));
        Some(unpacked::joined(self.g, low?, high?))
    }
    /// Replaces loads by values, in all statements that use them.
    fn rewritten(
        &mut self,
        statements: &[Statement],
        mut kept: FxHashMap<Id, Id>,
    ) -> Vec<Statement> {
        let loads: FxHashSet<Id> = kept.keys().copied().collect();
        let mut defined: FxHashSet<Id> = self.written.values().copied().collect();
        let mut out = Vec::with_capacity(statements.len());
        for s in statements {
            if matches!(s, Statement::Define(id) if loads.contains(id)) {
                continue;
            }
            let s = self.replaced(s, &mut kept);
            let mut needed = Vec::new();
            s.uses(self.g, &mut |id| needed.push(id));
            needed
                .into_iter()
                .for_each(|id| define(self.g, id, &mut defined, &mut out));
            match s {
                Statement::Define(id) if !defined.insert(id) => continue,
                Statement::Accumulator(acc) => drop(defined.insert(self.g[acc].src[1])),
                _ => {}
            }
            out.push(s);
        }
        out
    }
    fn replaced(&mut self, s: &Statement, map: &mut FxHashMap<Id, Id>) -> Statement {
        let mut new = |id: &Id| self.g.replace(*id, map);
        match s {
            Statement::Define(id) => Statement::Define(new(id)),
            Statement::Accumulator(id) => Statement::Accumulator(new(id)),
            Statement::Accumulate(acc, value) => Statement::Accumulate(new(acc), new(value)),
            Statement::Write(buffer, at, value) => Statement::Write(*buffer, *at, new(value)),
            s => s.clone(),
        }
    }
}
