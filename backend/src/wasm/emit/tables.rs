//! Constant tables of kernels.

use std::cell::RefCell;

/// Constant tables of kernels in the engine's memory.
pub(in super::super) struct Tables<'a> {
    /// Writes words to memory that stays, and returns their address.
    place: &'a dyn Fn(&[u32]) -> u32,
    placed: RefCell<Vec<(Vec<u32>, u32)>>,
}

impl<'a> Tables<'a> {
    pub fn new(place: &'a dyn Fn(&[u32]) -> u32) -> Tables<'a> {
        Tables {
            place,
            placed: RefCell::default(),
        }
    }
    /// Returns the address of a table, which is placed once.
    pub fn place(&self, words: &[u32]) -> u32 {
        if let Some(known) = self.placed.borrow().iter().find(|t| t.0 == words) {
            return known.1;
        }
        let address = (self.place)(words);
        self.placed.borrow_mut().push((words.to_vec(), address));
        address
    }
}
