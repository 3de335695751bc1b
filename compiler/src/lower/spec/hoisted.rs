//! Loads before the nests that need them: from memory that is settled, in threads that are counted as the nest counts them.

use super::super::threads::ThreadIndex;
use super::Checker;
use super::error::Checked;
use gristmill_uop::op::Class;
use gristmill_uop::{Arg, Id, Op};
use rustc_hash::FxHashSet;

/// Loads outside nests.
#[derive(Default)]
pub(super) struct Hoisted {
    pub threads: Vec<ThreadIndex>,
    pub defined: FxHashSet<Id>,
    /// Have the kernels before this one ended?
    pub waited: bool,
}

impl Checker<'_> {
    /// Threads of loads outside nests.
    pub(super) fn threads(&mut self, threads: &[ThreadIndex]) -> Checked {
        self.hold_here(self.nest.is_none() && !self.guarded, "threads are counted outside nests, or by one")?;
        self.counted(threads)?;
        for t in threads {
            let new = self.hoisted.threads.iter().all(|x| x.range != t.range);
            self.hold(new, "a range is counted once outside nests", t.range)?;
        }
        self.hoisted.threads.extend(threads);
        Ok(())
    }
    /// What may stand outside nests: loads from memory, and what addresses are made of. Before the wait for predecessors that memory is a weight's, which no step writes.
    pub(super) fn may_be_hoisted(&self, id: Id) -> Checked {
        let (g, rule) = (self.g, "what stands outside nests is a load from memory, or what its address is made of");
        let memory = |buffer: Id| {
            let settled = self.hoisted.waited || matches!(g[buffer].arg, Arg::Packed(..));
            self.hold(g[buffer].op == Op::Param, rule, id)?;
            self.hold(settled, "before the wait for predecessors weights alone are loaded", id)
        };
        self.hold(!self.guarded, rule, id)?;
        match g[id].op {
            Op::Param => memory(id),
            Op::Load => memory(g[id].src[0]),
            op => self.hold(op.class() == Class::Elementwise, rule, id),
        }
    }
}
