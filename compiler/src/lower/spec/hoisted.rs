//! Checks loads hoisted out of nests: they read settled memory, with the same thread indices as the
//! nest.

use crate::lower::linear_ir::threads::ThreadIndex;
use gristmill_uop::op::Class;
use gristmill_uop::{Arg, Graph, Id, Op};
use rustc_hash::FxHashSet;

/// The violated rule, and the offending node.
type Held = Result<(), (&'static str, Id)>;

/// Thread indices and values outside nests.
#[derive(Default)]
pub(super) struct Hoisted {
    threads: Vec<ThreadIndex>,
    pub defined: FxHashSet<Id>,
    /// Whether the grid-dependency wait has passed.
    pub waited: bool,
}

impl Hoisted {
    pub fn counts(&self, range: Id) -> bool {
        self.threads.iter().any(|t| t.range == range)
    }
    /// Records thread indices of hoisted loads.
    pub fn count(&mut self, threads: &[ThreadIndex]) -> Held {
        if let Some(again) = threads.iter().find(|t| self.counts(t.range)) {
            return Err((
                "a range is mapped to threads once outside nests",
                again.range,
            ));
        }
        self.threads.extend(threads);
        Ok(())
    }
    /// Checks that a nest maps the same ranges to the same threads.
    pub fn agrees(&self, threads: &[ThreadIndex]) -> Held {
        let other = |t: &&ThreadIndex| self.threads.iter().any(|x| x.range == t.range && x != *t);
        let rule = "a nest maps a range to threads as its hoisted loads do";
        threads
            .iter()
            .find(other)
            .map_or(Ok(()), |t| Err((rule, t.range)))
    }
    /// Checks that a value is a load from memory, or part of an address. Before the grid-dependency
    /// wait only weights may be loaded, which no step writes.
    pub fn takes(&self, g: &Graph, id: Id) -> Held {
        let buffer = match g[id].op {
            Op::Param => Some(id),
            Op::Load => Some(g[id].src[0]),
            _ => None,
        };
        let known = buffer.map_or(g[id].op.class() == Class::Elementwise, |buffer| {
            g[buffer].op == Op::Param
        });
        if !known {
            return Err((
                "a hoisted value is a load from memory or part of its address",
                id,
            ));
        }
        let settled =
            buffer.is_none_or(|buffer| self.waited || matches!(g[buffer].arg, Arg::Packed(..)));
        if settled {
            Ok(())
        } else {
            Err((
                "only weights are loaded before the grid-dependency wait",
                id,
            ))
        }
    }
}
