//! Node identifiers.

/// Identifier of a node of a [`Graph`](crate::Graph).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Id(pub u32);

impl Id {
    /// Index in the arena.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}
