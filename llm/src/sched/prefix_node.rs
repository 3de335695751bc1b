//! Nodes of the prefix tree.

/// Identifier of a node of the prefix tree: the end of one page. Pages are
/// reused, identifiers are not.
pub(super) type NodeId = u64;

/// The root: the parent of all first pages.
pub(super) const ROOT: NodeId = 0;

/// Number of a sequence's pages in the prefix tree, and the node of the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PrefixNode {
    pub(super) blocks: usize,
    pub(super) id: NodeId,
    /// Whether the tree lost the node: no further pages are inserted.
    pub(super) lost: bool,
}

impl PrefixNode {
    /// Creates the node after that many pages.
    pub(super) fn new(blocks: usize, node: NodeId) -> PrefixNode {
        PrefixNode {
            blocks,
            id: node,
            lost: false,
        }
    }
}
