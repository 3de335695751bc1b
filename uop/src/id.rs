//! What nodes are referred to by.

/// A node of a [`Graph`](crate::Graph).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Id(pub u32);

impl Id {
    /// Position in the arena.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
