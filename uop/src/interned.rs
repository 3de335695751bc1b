//! Hash table of a graph's nodes: maps a hash to node ids.
//!
//! The nodes themselves live only in the graph's arena, so the table is copied, grown and
//! dropped as plain numbers.

use crate::id::Id;
use crate::node::Node;
use rustc_hash::FxBuildHasher;
use std::hash::BuildHasher;

/// A slot of the hash table.
#[derive(Clone, Copy, Debug)]
struct Place {
    hash: u32,
    id: Id,
}

/// An empty slot: no graph has that many nodes.
const VACANT: Place = Place {
    hash: 0,
    id: Id(u32::MAX),
};
/// Initial number of slots.
const INITIAL_CAPACITY: usize = 64;

/// An open-addressing hash table with a load factor of at most one half.
#[derive(Clone, Default, Debug)]
pub(crate) struct Interned {
    places: Vec<Place>,
    taken: usize,
}

/// Hashes a node for lookup in [`Interned`].
pub(crate) fn hash(node: &Node) -> u32 {
    // FxHasher rotates its best-mixed bits to the low end.
    FxBuildHasher.hash_one(node) as u32
}

impl Interned {
    /// Finds the node with that hash for which `is` holds.
    pub fn find(&self, hash: u32, is: impl Fn(Id) -> bool) -> Option<Id> {
        let mask = self.places.len().checked_sub(1)?;
        let mut at = hash as usize & mask;
        loop {
            let place = self.places[at];
            if place.id == VACANT.id {
                return None;
            }
            if place.hash == hash && is(place.id) {
                return Some(place.id);
            }
            at = (at + 1) & mask;
        }
    }
    /// Inserts a node that is not in the table.
    pub fn insert(&mut self, hash: u32, id: Id) {
        if 2 * (self.taken + 1) > self.places.len() {
            let larger = vec![VACANT; (2 * self.places.len()).max(INITIAL_CAPACITY)];
            for place in std::mem::replace(&mut self.places, larger) {
                if place.id != VACANT.id {
                    self.put(place);
                }
            }
        }
        self.put(Place { hash, id });
        self.taken += 1;
    }
    fn put(&mut self, place: Place) {
        let mask = self.places.len() - 1;
        let mut at = place.hash as usize & mask;
        while self.places[at].id != VACANT.id {
            at = (at + 1) & mask;
        }
        self.places[at] = place;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colliding_hashes_are_distinguished_and_found_after_growth() {
        let mut table = Interned::default();
        assert_eq!(table.find(7, |_| true), None);
        let hash = |n: u32| n % 3;
        for n in 0..1000 {
            assert_eq!(table.find(hash(n), |id| id == Id(n)), None);
            table.insert(hash(n), Id(n));
        }
        for n in 0..1000 {
            assert_eq!(table.find(hash(n), |id| id == Id(n)), Some(Id(n)));
            assert_eq!(table.find(3, |id| id == Id(n)), None);
        }
    }
}
