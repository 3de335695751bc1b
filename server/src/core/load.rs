//! Load of a model, for routers and monitoring.

/// Snapshot of a model's load and capacity.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Load {
    /// Requests that are running.
    pub running: usize,
    /// Requests in the queue.
    pub waiting: usize,
    /// Maximum requests that run concurrently.
    pub slots: usize,
    /// KV cache tokens of running requests. Cached prefixes do not count, as they can be evicted.
    pub used: usize,
    /// KV cache capacity in tokens, estimated while the model is not loaded.
    pub room: usize,
}

impl Load {
    /// Returns the number of running and queued requests.
    pub fn requests(&self) -> usize {
        self.running + self.waiting
    }
    /// Returns the used share of the KV cache, from 0 to 1.
    pub fn usage(&self) -> f64 {
        if self.room == 0 {
            0.0
        } else {
            (self.used as f64 / self.room as f64).min(1.0)
        }
    }
    /// Returns the sum with another model's load.
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
        let load = |used, room| Load {
            used,
            room,
            ..Load::default()
        };
        assert_eq!(
            [load(0, 0), load(512, 2048), load(10, 5)].map(|load| load.usage()),
            [0.0, 0.25, 1.0]
        );
        let one = Load {
            running: 1,
            waiting: 2,
            slots: 1,
            used: 3,
            room: 4,
        };
        assert_eq!(
            one.plus(one),
            Load {
                running: 2,
                waiting: 4,
                slots: 2,
                used: 6,
                room: 8
            }
        );
    }
}
