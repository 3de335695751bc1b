//! Nodes of the prefix tree.

/// Number of a node of the prefix tree: what follows one page. Pages are used again, these numbers are not.
pub(super) type NodeId = u64;

/// The node before all first pages.
pub(super) const ROOT: NodeId = 0;

/// How many pages of a sequence the prefix tree has, and the node behind the last of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PrefixNode {
    pub(super) blocks: usize,
    pub(super) id: NodeId,
    /// Whether the tree lost the page behind the last: nothing that follows is inserted.
    pub(super) lost: bool,
}

impl PrefixNode {
    /// Creates the node behind that many pages.
    pub(super) fn new(blocks: usize, node: NodeId) -> PrefixNode {
        PrefixNode { blocks, id: node, lost: false }
    }
}
