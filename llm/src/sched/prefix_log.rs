//! Changes of the prefix cache in whole pages, for the choice of a replica or server by prefix.

use super::prefix_node::{NodeId, ROOT, is_root, root_of};
use crate::arch::{AdapterScales, Options};
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A whole page of the prefix cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredPage {
    /// Hash of all tokens up to its end, the same in every process.
    pub hash: u64,
    /// Hash of the page before it. `None` for the first page without adapters; with adapters, it is
    /// the hash of no page.
    pub parent: Option<u64>,
    /// Its tokens, as many as a page has positions.
    pub tokens: Arc<[u32]>,
}

/// A change of the prefix cache: a whole page, by the hash of all tokens up to its end.
///
/// Equal pages may be stored more than once, and are then removed as often.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PrefixEvent {
    /// A page was added.
    Stored(StoredPage),
    /// A page was removed. Pages after it cannot be found any more.
    Removed(u64),
    /// All pages were removed.
    Cleared,
}

/// Hash of the tokens up to the end of a page, from that of the page before it.
fn page_hash(before: u64, tokens: &[u32]) -> u64 {
    let mut hasher = FxHasher::default();
    before.hash(&mut hasher);
    tokens.hash(&mut hasher);
    hasher.finish()
}

/// Returns the hash of each whole page of a prompt, as [`PrefixEvent`]s have it.
pub fn prefix_hashes(tokens: &[u32], adapters: &AdapterScales) -> Vec<u64> {
    let pages = tokens.chunks_exact(Options::PAGE);
    let next = |hash: &mut u64, page| {
        *hash = page_hash(*hash, page);
        Some(*hash)
    };
    pages.scan(root_of(adapters), next).collect()
}

/// The events of a prefix tree since they were last taken.
#[derive(Debug, Default)]
pub(super) struct PrefixLog {
    hashes: FxHashMap<NodeId, u64>,
    events: Vec<PrefixEvent>,
}

impl PrefixLog {
    /// Creates the log of an empty tree that replaces another.
    pub fn after_reset() -> PrefixLog {
        PrefixLog {
            events: vec![PrefixEvent::Cleared],
            ..PrefixLog::default()
        }
    }
    /// Records a whole page at `node`, after the page of `parent`.
    pub fn store(&mut self, parent: NodeId, node: NodeId, tokens: &[u32]) {
        let root = Some(parent).filter(|&parent| is_root(parent));
        let Some(before) = root.or_else(|| self.hashes.get(&parent).copied()) else {
            return;
        };
        let hash = page_hash(before, tokens);
        self.hashes.insert(node, hash);
        self.events.push(PrefixEvent::Stored(StoredPage {
            hash,
            parent: Some(before).filter(|&before| before != ROOT),
            tokens: tokens.into(),
        }));
    }
    /// Records that the page at `node` left the tree, if it was whole.
    pub fn remove(&mut self, node: NodeId) {
        let removed = self.hashes.remove(&node).map(PrefixEvent::Removed);
        self.events.extend(removed);
    }
    /// Takes the events since the last call.
    pub fn take(&mut self) -> Vec<PrefixEvent> {
        std::mem::take(&mut self.events)
    }
    /// Checks that the log has these nodes.
    #[cfg(test)]
    pub fn check(&self, nodes: impl Iterator<Item = NodeId>) {
        let all: std::collections::BTreeSet<NodeId> = nodes.collect();
        assert_eq!(all, self.hashes.keys().copied().collect());
    }
}
