//! Visited set for graph walks, with one mark per node that is reused by every walk.
//!
//! The cost of a walk is proportional to the nodes visited, not to the size of the graph.

use crate::id::Id;
use std::cell::RefCell;

/// Marks of the current walk.
#[derive(Default)]
pub(crate) struct Visited {
    walk: u32,
    /// Number of the last walk that visited each node.
    met: Vec<u32>,
}

impl Visited {
    /// Marks `id`; returns whether it was not yet visited.
    pub fn first(&mut self, id: Id) -> bool {
        std::mem::replace(&mut self.met[id.index()], self.walk) != self.walk
    }
    fn begin(&mut self, nodes: usize) -> &mut Visited {
        if self.walk == u32::MAX {
            *self = Visited::default();
        }
        self.walk += 1;
        if self.met.len() < nodes {
            self.met.resize(nodes, 0);
        }
        self
    }
}

thread_local! { static MARKS: RefCell<Visited> = RefCell::default(); }

/// Runs `walk` with an empty visited set for a graph of `nodes` nodes.
pub(crate) fn visiting<T>(nodes: usize, walk: impl FnOnce(&mut Visited) -> T) -> T {
    MARKS.with(|marks| match marks.try_borrow_mut() {
        Ok(mut marks) => walk(marks.begin(nodes)),
        // A nested walk gets its own marks.
        Err(_) => walk(Visited::default().begin(nodes)),
    })
}
