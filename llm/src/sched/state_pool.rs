//! Rows of recurrent states: reference counts, snapshots, and LRU eviction of snapshots. It manages
//! row numbers only; the states are on a device.

use super::prefix_node::NodeId;
use super::reuse::Reuse;
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};

/// A state snapshot: the state after a node of the prefix tree and the tokens `tail`
/// of its next page.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub tail: Vec<u32>,
    /// Whether the state depends on the tokens alone: see [`Reuse`].
    pub exact: bool,
    pub row: u32,
}

/// Bookkeeping of one row.
#[derive(Clone, Copy, Default, Debug)]
struct StateRow {
    /// Number of sequences and pending copies that use it.
    holders: u32,
    /// Time of last use, for a snapshot.
    used: u64,
    /// The node of its snapshot, if it holds one.
    snapshot_of: Option<NodeId>,
}

/// Rows of recurrent states and their snapshots.
#[derive(Debug)]
pub(super) struct StatePool {
    rows: Vec<StateRow>,
    free: BTreeSet<u32>,
    /// Unreferenced snapshots, in order of last use.
    evictable: BTreeMap<u64, u32>,
    snapshots: FxHashMap<NodeId, Vec<Snapshot>>,
    clock: u64,
}

impl StatePool {
    /// Creates `rows` free rows.
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
    /// Returns the number of unreferenced snapshots.
    pub fn cached(&self) -> usize {
        self.evictable.len()
    }
    /// Returns the number of referenced rows.
    pub fn held(&self) -> usize {
        self.rows.len() - self.free.len() - self.evictable.len()
    }
    /// Takes a row, if necessary by evicting a snapshot. `None` if all are held.
    pub fn take(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            let (_, row) = self.evictable.pop_first()?;
            self.drop_snapshot(row);
        }
        // Take the lowest, as captured steps of one sequence are bound to a row.
        let row = self.free.pop_first()?;
        self.rows[row as usize].holders = 1;
        Some(row)
    }
    /// Adds a reference to a row.
    pub fn retain(&mut self, row: u32) {
        let it = &mut self.rows[row as usize];
        it.holders += 1;
        if it.holders == 1 {
            self.evictable.remove(&it.used);
        }
    }
    /// Drops a reference. An unreferenced snapshot stays cached; any other row becomes free.
    pub fn release(&mut self, row: u32) {
        let it = &mut self.rows[row as usize];
        assert!(
            it.holders > 0,
            "state row {row} is released without a reference"
        );
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
    /// Releases a row as a snapshot if the caller is its only holder and no equal snapshot exists.
    pub fn release_as_snapshot(&mut self, row: u32, behind: NodeId, tail: &[u32], exact: bool) {
        let alone = self.rows[row as usize].holders == 1;
        let all = self.snapshots.entry(behind).or_default();
        if alone
            && !all
                .iter()
                .any(|copy| copy.tail == tail && copy.exact >= exact)
        {
            all.push(Snapshot {
                tail: tail.to_vec(),
                exact,
                row,
            });
            self.rows[row as usize].snapshot_of = Some(behind);
        }
        self.release(row);
    }
    /// Removes a row's snapshot and frees the row if it is unreferenced.
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
    /// Removes all snapshots of a node that left the tree.
    pub fn forget(&mut self, node: NodeId) {
        let rows: Vec<u32> = self
            .snapshots
            .get(&node)
            .into_iter()
            .flatten()
            .map(|copy| copy.row)
            .collect();
        rows.into_iter().for_each(|row| self.drop_snapshot(row));
    }
    /// Returns the snapshots at a node with a tail that `tokens` begins with, longest first.
    pub fn snapshots_at(&self, node: NodeId, tokens: &[u32], reuse: Reuse) -> Vec<Snapshot> {
        let usable = |copy: &&Snapshot| {
            tokens.starts_with(&copy.tail) && (copy.exact || reuse == Reuse::Any)
        };
        let mut all: Vec<Snapshot> = self
            .snapshots
            .get(&node)
            .into_iter()
            .flatten()
            .filter(usable)
            .cloned()
            .collect();
        all.sort_by_key(|copy| std::cmp::Reverse((copy.tail.len(), copy.exact)));
        all
    }
    /// Checks that every row is exactly one of held, cached or free, and that every
    /// snapshot matches its row.
    #[cfg(test)]
    pub fn check(&self) {
        let mut seen = vec![0; self.rows.len()];
        self.free
            .iter()
            .chain(self.evictable.values())
            .for_each(|&row| seen[row as usize] += 1);
        for (it, times) in self.rows.iter().zip(&seen) {
            assert_eq!(*times, u32::from(it.holders == 0), "{it:?}");
        }
        assert!(
            self.free
                .iter()
                .all(|&row| self.rows[row as usize].snapshot_of.is_none())
        );
        assert!(
            self.evictable
                .iter()
                .all(|(used, &row)| self.rows[row as usize].used == *used)
        );
        let copies: Vec<_> = self
            .snapshots
            .iter()
            .flat_map(|(&node, all)| all.iter().map(move |of| (node, of)))
            .collect();
        assert!(
            copies
                .iter()
                .all(|&(node, copy)| self.rows[copy.row as usize].snapshot_of == Some(node))
        );
        assert_eq!(
            copies.len(),
            self.rows
                .iter()
                .filter(|row| row.snapshot_of.is_some())
                .count()
        );
    }
}
