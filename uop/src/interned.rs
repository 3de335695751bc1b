//! Which nodes there are: by hash, the ids of those that have it. The nodes themselves lie in the graph's arena alone, so that a table is copied, grown and dropped as plain
//! numbers.

use crate::id::Id;
use crate::node::Node;
use rustc_hash::FxBuildHasher;
use std::hash::BuildHasher;

/// A place of the table.
#[derive(Clone, Copy, Debug)]
struct Place {
    hash: u32,
    id: Id,
}

/// Where no node is: no graph has as many.
const VACANT: Place = Place { hash: 0, id: Id(u32::MAX) };
/// Places of the first table.
const FIRST: usize = 64;

/// Open addressing in a table of which at least half is vacant.
#[derive(Clone, Default, Debug)]
pub(crate) struct Interned {
    places: Vec<Place>,
    taken: usize,
}

/// The hash of a node.
pub(crate) fn hash(node: &Node) -> u32 {
    // FxHasher moves the bits that depend on most of the input to the lowest place.
    FxBuildHasher.hash_one(node) as u32
}

impl Interned {
    /// The node of that hash for which `is` holds.
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
    /// Adds a node that is not among them.
    pub fn insert(&mut self, hash: u32, id: Id) {
        if 2 * (self.taken + 1) > self.places.len() {
            let larger = vec![VACANT; (2 * self.places.len()).max(FIRST)];
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
    fn what_has_one_hash_is_told_apart_and_found_after_growth() {
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
