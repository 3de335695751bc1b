//! Recurrent states of a page pool. A running sequence has one row; other rows are snapshots of the
//! state after a prefix in the prefix tree, so that later sequences can continue there.
//!
//! A state cannot be truncated: a prefix hit ends at the last position with a snapshot.

use super::pages::{PagePool, PartialPage, PrefixHit};
use super::prefix_node::{NodeId, PrefixNode, is_root};
use super::reuse::Reuse;
use super::state_pool::StatePool;

/// Recurrent states of a page pool. If the model has none, these methods do nothing.
impl PagePool {
    /// Truncates a prefix hit to the last position with a state snapshot and pages on the device.
    pub(super) fn truncate_to_snapshot(
        &self,
        (root, tokens): (NodeId, &[u32]),
        reuse: Reuse,
        found: &mut PrefixHit,
        parts: bool,
    ) {
        let Some(states) = &self.states else { return };
        for blocks in (0..=found.pages.len()).rev() {
            let node = blocks
                .checked_sub(1)
                .map_or(root, |last| self.entry(found.pages[last]).node);
            let rest = &tokens[blocks * self.page_size..];
            for copy in states.snapshots_at(node, rest, reuse) {
                let part = self
                    .partial_page(node, rest, copy.tail.len(), reuse)
                    .filter(|_| parts);
                if part.is_none() != copy.tail.is_empty()
                    || !self.covers_window(&found.pages[..blocks], part.as_ref())
                {
                    continue;
                }
                let positions = blocks * self.page_size + copy.tail.len();
                found.exact = found.exact.min(if copy.exact {
                    positions
                } else {
                    positions.saturating_sub(1)
                });
                found.pages.truncate(blocks);
                (found.node, found.partial) = (PrefixNode::new(blocks, node), part);
                found.state = Some(copy.row);
                return;
            }
        }
        *found = PrefixHit {
            matched: found.matched,
            node: PrefixNode::new(0, root),
            ..PrefixHit::default()
        };
    }
    /// Returns a page after a node that begins with the first `positions` of `tokens`, if
    /// `positions` is not 0.
    fn partial_page(
        &self,
        node: NodeId,
        tokens: &[u32],
        positions: usize,
        reuse: Reuse,
    ) -> Option<PartialPage> {
        let wanted = tokens
            .get(..positions)
            .filter(|wanted| !wanted.is_empty())?;
        let here = self
            .children
            .get(&node)?
            .iter()
            .copied()
            .filter(|&page| self.is_on_device(page));
        let begins = here.filter(|&page| self.entry(page).tokens.starts_with(wanted));
        let page = begins.max_by_key(|&page| self.entry(page).exact)?;
        let exact = self.entry(page).exact >= positions || reuse == Reuse::Any;
        exact.then_some(PartialPage {
            page,
            window: self.pages[page as usize].window,
            positions,
        })
    }
    /// Takes a row of recurrent states. `None` if all are held, or there are none.
    pub(super) fn take_state(&mut self) -> Option<u32> {
        self.states.as_mut()?.take()
    }
    /// Adds a reference to a row.
    pub(super) fn retain_state(&mut self, row: u32) {
        if let Some(states) = &mut self.states {
            states.retain(row);
        }
    }
    /// Drops a reference to a row.
    pub(super) fn release_state(&mut self, row: u32) {
        if let Some(states) = &mut self.states {
            states.release(row);
        }
    }
    /// Releases a state row as the snapshot after `tokens`; `node` is the prefix-tree node of
    /// their last whole page.
    ///
    /// The row is only released if there are no tokens or the tree has lost that node.
    pub(super) fn release_as_snapshot(
        &mut self,
        row: u32,
        node: &PrefixNode,
        tokens: &[u32],
        exact: bool,
    ) {
        let known = !node.lost && (is_root(node.id) || self.children.contains_key(&node.id));
        let tail = tokens
            .get(node.blocks * self.page_size..)
            .filter(|tail| !tokens.is_empty() && tail.len() < self.page_size);
        let Some(states) = &mut self.states else {
            return;
        };
        match tail.filter(|_| known) {
            Some(tail) => states.release_as_snapshot(row, node.id, tail, exact),
            None => states.release(row),
        }
    }
    /// Returns the number of unreferenced snapshots.
    pub fn cached_states(&self) -> usize {
        self.states.as_ref().map_or(0, StatePool::cached)
    }
    /// Returns the number of referenced state rows.
    pub(super) fn held_states(&self) -> usize {
        self.states.as_ref().map_or(0, StatePool::held)
    }
}
