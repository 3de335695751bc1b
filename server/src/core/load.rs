//! How busy a model is, for routers and whoever else watches.

/// What a model does at a moment, and what it has room for.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Load {
    /// Requests that are being answered.
    pub running: usize,
    /// Requests that wait.
    pub waiting: usize,
    /// Most requests that are answered at a time.
    pub slots: usize,
    /// Tokens in the cache of requests that are not over. Prefixes that are kept for later make room and do not count.
    pub used: usize,
    /// Tokens that the cache has room for, or will have once the model is loaded.
    pub room: usize,
}

impl Load {
    /// Requests that are being answered or wait.
    pub fn requests(&self) -> usize {
        self.running + self.waiting
    }
    /// The part of the cache that is used, from 0 to 1.
    pub fn usage(&self) -> f64 {
        if self.room == 0 { 0.0 } else { (self.used as f64 / self.room as f64).min(1.0) }
    }
    /// Together with that of another model.
    pub fn plus(self, other: Load) -> Load {
        Load {
            running: self.running + other.running,
            waiting: self.waiting + other.waiting,
            slots: self.slots + other.slots,
            used: self.used + other.used,
            room: self.room + other.room,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_a_part_of_what_there_is() {
        let load = |used, room| Load { used, room, ..Load::default() };
        assert_eq!([load(0, 0), load(512, 2048), load(10, 5)].map(|load| load.usage()), [0.0, 0.25, 1.0]);
        let one = Load { running: 1, waiting: 2, slots: 1, used: 3, room: 4 };
        assert_eq!(one.plus(one), Load { running: 2, waiting: 4, slots: 2, used: 6, room: 8 });
    }
}
