//! Which nodes a walk over a graph has met: one mark a node, kept from walk to walk, so that a walk costs what it meets and not what the graph holds.

use crate::id::Id;
use std::cell::RefCell;

/// Marks of the walk under way.
#[derive(Default)]
pub(crate) struct Visited {
    walk: u32,
    /// The last walk that met each node.
    met: Vec<u32>,
}

impl Visited {
    /// Is it met for the first time?
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

/// `walk` over a graph of so many nodes, none of which it has met.
pub(crate) fn visiting<T>(nodes: usize, walk: impl FnOnce(&mut Visited) -> T) -> T {
    MARKS.with(|marks| match marks.try_borrow_mut() {
        Ok(mut marks) => walk(marks.begin(nodes)),
        // Inside another walk.
        Err(_) => walk(Visited::default().begin(nodes)),
    })
}
