//! Places in the tree of pages.

/// A place in the tree: what comes after the page of that number of order. Pages are used again, these numbers are not.
pub(super) type Node = u64;

/// What comes before a first page.
pub(super) const START: Node = 0;

/// The place of a sequence in the tree: how many of its pages are known there, and the last of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Place {
    pub(super) blocks: usize,
    pub(super) node: Node,
    /// Behind the last is a page that the tree does not have any more: nothing that follows is known.
    pub(super) lost: bool,
}

impl Place {
    /// Behind so many pages, of which that is the last.
    pub(super) fn behind(blocks: usize, node: Node) -> Place {
        Place { blocks, node, lost: false }
    }
}
