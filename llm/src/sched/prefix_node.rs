//! Nodes of the prefix tree.

use crate::arch::AdapterScales;
use rustc_hash::FxHasher;
use std::hash::{Hash, Hasher};

/// Identifier of a node of the prefix tree: the end of one page. Pages are
/// reused, identifiers are not.
pub(super) type NodeId = u64;

/// The root: the parent of all first pages.
pub(super) const ROOT: NodeId = 0;

/// Identifiers from here on are roots of other trees: those of sequences with adapters.
const OTHER_ROOTS: NodeId = 1 << 63;

/// The root of sequences with these factors of adapters.
pub(super) fn root_of(adapters: &AdapterScales) -> NodeId {
    if adapters.is_base() {
        return ROOT;
    }
    let mut hasher = FxHasher::default();
    adapters
        .0
        .iter()
        .for_each(|scale| scale.to_bits().hash(&mut hasher));
    hasher.finish() | OTHER_ROOTS
}

/// Returns true for the parent of first pages.
pub(super) fn is_root(node: NodeId) -> bool {
    node == ROOT || node >= OTHER_ROOTS
}

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
