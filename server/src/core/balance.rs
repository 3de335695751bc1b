//! Choice of a model's replica for a request, by prefix hit and load.
//!
//! A request's cost on a replica is the number of tokens that are computed before it ends there:
//! the prompt tokens that the replica's prefix cache lacks, and what its running requests have yet
//! to compute. The replica of the lowest cost takes the request, among those with room for another
//! sequence. So a prefix hit decides until its replica has more work than the hit spares, and a
//! replica that is full is not waited for while another one has room.

use gristmill_llm::sched::PrefixEvent;
use rustc_hash::FxHashMap;

/// Maximum tokens by which an answer counts as work: most answers are shorter than their limits.
pub const ANSWER_TOKENS: usize = 256;

/// What a request asks of a replica.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Demand<'r> {
    /// Hash of each whole page of the prompt.
    pub prefix: &'r [u64],
    /// Tokens of a page.
    pub page: usize,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Tokens that the answers are expected to have.
    pub answer: usize,
    /// Whether the worker takes no other request until it has finished this one.
    pub is_exclusive: bool,
}

/// Whole pages in a replica's prefix cache.
#[derive(Debug, Default)]
pub struct PrefixIndex(FxHashMap<u64, usize>);

impl PrefixIndex {
    /// Applies a change of the prefix cache.
    pub fn apply(&mut self, event: &PrefixEvent) {
        match event {
            PrefixEvent::Stored(page) => *self.0.entry(page.hash).or_default() += 1,
            PrefixEvent::Removed(hash) => {
                if let Some(times) = self.0.get_mut(hash) {
                    *times -= 1;
                    if *times == 0 {
                        self.0.remove(hash);
                    }
                }
            }
            PrefixEvent::Cleared => self.0.clear(),
        }
    }
    /// Returns how many leading pages of a prompt are cached.
    fn matched(&self, prefix: &[u64]) -> usize {
        let known = |hash: &&u64| self.0.contains_key(hash);
        prefix.iter().take_while(known).count()
    }
}

/// State of a replica, as its worker last reported it.
#[derive(Debug, Default)]
pub struct ReplicaState {
    /// Whether its worker takes requests.
    pub serves: bool,
    /// Whether it has a request that it took.
    pub is_busy: bool,
    /// Sequences that it could start.
    pub room: usize,
    /// Tokens that its running requests have yet to compute, by estimate.
    pub pending: usize,
    /// Whole pages in its prefix cache.
    pub prefixes: PrefixIndex,
}

impl ReplicaState {
    /// Returns the prompt tokens that the prefix cache lacks, at least one.
    fn uncached(&self, demand: &Demand) -> usize {
        let hit = self.prefixes.matched(demand.prefix) * demand.page;
        demand.prompt.saturating_sub(hit).max(1)
    }
    /// Counts a request that the replica takes, until its worker reports again.
    pub fn take(&mut self, demand: &Demand) {
        self.is_busy = true;
        self.pending += self.uncached(demand) + demand.answer;
        self.room = match demand.is_exclusive {
            true => 0,
            false => self.room.saturating_sub(1),
        };
    }
}

/// Returns the replica that is to take a request; `None` if none has room. A single replica takes
/// every request.
pub fn choose(demand: &Demand, replicas: &[ReplicaState]) -> Option<usize> {
    if replicas.len() == 1 {
        return Some(0);
    }
    let with_room = replicas
        .iter()
        .enumerate()
        .filter(|(_, replica)| replica.serves && replica.room > 0);
    with_room
        .min_by_key(|(_, replica)| replica.pending + replica.uncached(demand))
        .map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_llm::sched::StoredPage;

    fn stored(hash: u64) -> PrefixEvent {
        PrefixEvent::Stored(StoredPage {
            hash,
            parent: None,
            tokens: [].into(),
        })
    }

    fn idle() -> ReplicaState {
        ReplicaState {
            serves: true,
            room: 2,
            ..ReplicaState::default()
        }
    }

    /// A prompt of 100 tokens in pages of 32.
    const DEMAND: Demand = Demand {
        prefix: &[1, 2, 3],
        page: 32,
        prompt: 100,
        answer: 10,
        is_exclusive: false,
    };

    #[test]
    fn a_hit_decides_until_it_costs_more_than_it_spares() {
        let mut all = [idle(), idle(), idle()];
        assert_eq!(choose(&DEMAND, &all), Some(0), "the first of equals");
        for hash in [1, 2, 9] {
            all[1].prefixes.apply(&stored(hash));
        }
        // Without the page before it, a page is no hit.
        all[2].prefixes.apply(&stored(2));
        assert_eq!(choose(&DEMAND, &all), Some(1));
        all[1].pending = 63;
        assert_eq!(choose(&DEMAND, &all), Some(1));
        all[1].pending = 65;
        assert_eq!(choose(&DEMAND, &all), Some(0));
        (all[1].pending, all[1].room) = (0, 0);
        assert_eq!(
            choose(&DEMAND, &all),
            Some(0),
            "a full one is not waited for"
        );
        (all[0].room, all[2].serves) = (0, false);
        assert_eq!(choose(&DEMAND, &all), None);
    }

    #[test]
    fn requests_that_arrive_together_are_spread() {
        let mut all = [idle(), idle()];
        let taken: Vec<_> = (0..5)
            .map(|_| {
                let chosen = choose(&DEMAND, &all);
                chosen.into_iter().for_each(|at| all[at].take(&DEMAND));
                chosen
            })
            .collect();
        assert_eq!(taken, [Some(0), Some(1), Some(0), Some(1), None]);
        assert_eq!(all[0].pending, 220);
        all[1].room = 2;
        all[1].take(&Demand {
            is_exclusive: true,
            ..DEMAND
        });
        assert_eq!(all[1].room, 0);
    }

    #[test]
    fn pages_leave_the_index_as_often_as_they_came() {
        let mut index = PrefixIndex::default();
        let apply = |index: &mut PrefixIndex, events: &[PrefixEvent]| {
            events.iter().for_each(|event| index.apply(event));
            index.matched(&[1, 2])
        };
        use PrefixEvent::{Cleared, Removed};
        assert_eq!(apply(&mut index, &[stored(1), stored(1), stored(2)]), 2);
        assert_eq!(apply(&mut index, &[Removed(1), Removed(7)]), 2);
        assert_eq!(apply(&mut index, &[Removed(1)]), 0);
        assert_eq!(apply(&mut index, &[stored(1)]), 2);
        assert_eq!(apply(&mut index, &[Cleared]), 0);
    }
}
