//! Rows of states: who has which, and of what the others are copies. Numbers only; the least recently used copy leaves first.

use super::prefix_node::NodeId;
use super::reuse::Reuse;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// What a row that is nobody's own holds: the states behind a place of the tree and tokens of the page that follows.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub tail: Vec<u32>,
    /// Do they depend on the tokens alone: see [`Reuse`].
    pub exact: bool,
    pub row: u32,
}

/// A row.
#[derive(Clone, Copy, Default, Debug)]
struct StateRow {
    /// Sequences and copies under way that need it as it is.
    holders: u32,
    /// When it was last used, of one that holds a copy.
    used: u64,
    /// The place of its copy in the tree, if it holds one.
    snapshot_of: Option<NodeId>,
}

/// The rows.
#[derive(Debug)]
pub(super) struct StatePool {
    rows: Vec<StateRow>,
    free: BTreeSet<u32>,
    /// Copies that nobody needs now.
    evictable: BTreeMap<u64, u32>,
    snapshots: FxHashMap<NodeId, Vec<Snapshot>>,
    clock: u64,
}

impl StatePool {
    /// So many rows, all free.
    pub fn new(rows: usize) -> StatePool {
        let free = (0..rows as u32).collect();
        StatePool {
            rows: vec![StateRow::default(); rows],
            free,
            evictable: BTreeMap::new(),
            snapshots: FxHashMap::default(),
            clock: 0,
        }
    }
    /// How many hold copies that nobody needs now.
    pub fn cached(&self) -> usize {
        self.evictable.len()
    }
    /// How many somebody has.
    pub fn held(&self) -> usize {
        self.rows.len() - self.free.len() - self.evictable.len()
    }
    /// A row for somebody; none where all are held.
    pub fn take(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            let (_, row) = self.evictable.pop_first()?;
            self.drop_snapshot(row);
        }
        // The lowest, as captured steps of one sequence are bound to a row.
        let row = self.free.pop_first()?;
        self.rows[row as usize].holders = 1;
        Some(row)
    }
    /// Somebody else needs it as it is.
    pub fn retain(&mut self, row: u32) {
        let it = &mut self.rows[row as usize];
        it.holders += 1;
        if it.holders == 1 {
            self.evictable.remove(&it.used);
        }
    }
    /// One holder less. A copy that nobody needs is kept, anything else is free.
    pub fn release(&mut self, row: u32) {
        let it = &mut self.rows[row as usize];
        assert!(it.holders > 0, "row {row} of states is let go by somebody who has it");
        it.holders -= 1;
        if it.holders > 0 {
            return;
        }
        if it.snapshot_of.is_some() {
            self.clock += 1;
            it.used = self.clock;
            self.evictable.insert(self.clock, row);
        } else {
            self.free.insert(row);
        }
    }
    /// A row's only holder leaves it as a copy, unless there is one of the same.
    pub fn release_as_snapshot(&mut self, row: u32, behind: NodeId, tail: &[u32], exact: bool) {
        let alone = self.rows[row as usize].holders == 1;
        let all = self.snapshots.entry(behind).or_default();
        if alone && !all.iter().any(|copy| copy.tail == tail && copy.exact >= exact) {
            all.push(Snapshot { tail: tail.to_vec(), exact, row });
            self.rows[row as usize].snapshot_of = Some(behind);
        }
        self.release(row);
    }
    /// A row holds no copy any more; it is free if nobody needs it.
    fn drop_snapshot(&mut self, row: u32) {
        let it = &mut self.rows[row as usize];
        if let Some(behind) = it.snapshot_of.take() {
            let left = self.snapshots.get_mut(&behind).map(|all| {
                all.retain(|copy| copy.row != row);
                all.len()
            });
            if left == Some(0) {
                self.snapshots.remove(&behind);
            }
        }
        if it.holders == 0 {
            self.evictable.remove(&it.used);
            self.free.insert(row);
        }
    }
    /// The tree does not have that place any more.
    pub fn forget(&mut self, node: NodeId) {
        let rows: Vec<u32> = self.snapshots.get(&node).into_iter().flatten().map(|copy| copy.row).collect();
        rows.into_iter().for_each(|row| self.drop_snapshot(row));
    }
    /// Copies behind that place whose tail these tokens begin with, the longest first.
    pub fn snapshots_at(&self, node: NodeId, tokens: &[u32], reuse: Reuse) -> Vec<Snapshot> {
        let usable = |copy: &&Snapshot| tokens.starts_with(&copy.tail) && (copy.exact || reuse == Reuse::Any);
        let mut all: Vec<Snapshot> = self.snapshots.get(&node).into_iter().flatten().filter(usable).cloned().collect();
        all.sort_by_key(|copy| std::cmp::Reverse((copy.tail.len(), copy.exact)));
        all
    }
    /// Is every row held, kept or free, and none two of them, and is every copy in its row?
    #[cfg(test)]
    pub fn check(&self) {
        let mut seen = vec![0; self.rows.len()];
        self.free.iter().chain(self.evictable.values()).for_each(|&row| seen[row as usize] += 1);
        for (it, times) in self.rows.iter().zip(&seen) {
            assert_eq!(*times, u32::from(it.holders == 0), "{it:?}");
        }
        assert!(self.free.iter().all(|&row| self.rows[row as usize].snapshot_of.is_none()));
        assert!(self.evictable.iter().all(|(used, &row)| self.rows[row as usize].used == *used));
        let copies: Vec<_> =
            self.snapshots.iter().flat_map(|(&node, all)| all.iter().map(move |of| (node, of))).collect();
        assert!(copies.iter().all(|&(node, copy)| self.rows[copy.row as usize].snapshot_of == Some(node)));
        assert_eq!(copies.len(), self.rows.iter().filter(|row| row.snapshot_of.is_some()).count());
    }
}
