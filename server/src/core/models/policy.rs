//! Model eviction: LRU and keep-alive. Pure functions, without access to the pool's state.

use std::time::Duration;

/// How long an idle model stays loaded.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum KeepAlive {
    /// Until another model needs its memory.
    #[default]
    UntilNeeded,
    /// At most this long after its last answer.
    For(Duration),
}

impl KeepAlive {
    /// Returns the time left after an idle time of `idle`; `None` without a limit.
    pub fn remaining(self, idle: Duration) -> Option<Duration> {
        match self {
            KeepAlive::UntilNeeded => None,
            KeepAlive::For(time) => Some(time.saturating_sub(idle)),
        }
    }
}

/// Activity of a loaded model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Activity {
    /// It has neither running nor queued requests.
    Idle,
    /// It has running or queued requests.
    Busy,
    /// It is being evicted, and finishes the requests that were queued before.
    Evicting,
}

/// A model that holds memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Resident {
    /// Bytes that its eviction frees.
    pub bytes: u64,
    /// Logical time of its last use; a larger number is later.
    pub last_used: u64,
    /// Current activity of the model.
    pub activity: Activity,
}

/// Decision about a model that is to be loaded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EvictionDecision {
    /// There is room for the model.
    Load,
    /// There will be room once the models with these indices have been evicted.
    Evict(Vec<usize>),
    /// There will be room once the evictions in progress have finished.
    Wait,
    /// There is no room even with all others evicted, which would make this number of bytes
    /// available.
    TooLarge(u64),
}

/// Decides how to make room for a model of `need` bytes, with `free` bytes free and at most `most`
/// loaded models.
///
/// Idle models are evicted before busy ones, and the least recently used first. Models stay loaded
/// if the others free enough memory.
pub fn decide(
    need: u64,
    free: u64,
    most: Option<usize>,
    residents: &[Resident],
) -> EvictionDecision {
    let most = most.unwrap_or(usize::MAX).max(1);
    let fits = |left: &[usize]| {
        let bytes = left
            .iter()
            .fold(free, |sum, &at| sum.saturating_add(residents[at].bytes));
        need <= bytes && residents.len() - left.len() < most
    };
    if fits(&[]) {
        return EvictionDecision::Load;
    }
    let (leaving, mut staying): (Vec<usize>, Vec<usize>) =
        (0..residents.len()).partition(|&at| residents[at].activity == Activity::Evicting);
    if fits(&leaving) {
        return EvictionDecision::Wait;
    }
    staying.sort_by_key(|&at| {
        (
            residents[at].activity == Activity::Busy,
            residents[at].last_used,
        )
    });
    let mut told = Vec::new();
    let with = |told: &[usize]| [leaving.as_slice(), told].concat();
    for &at in &staying {
        told.push(at);
        if fits(&with(&told)) {
            break;
        }
    }
    if !fits(&with(&told)) {
        return EvictionDecision::TooLarge(
            residents
                .iter()
                .fold(free, |sum, resident| sum.saturating_add(resident.bytes)),
        );
    }
    // The last eviction may suffice without some of the earlier ones: those used most recently are
    // spared first.
    for at in told.clone().into_iter().rev() {
        let without: Vec<usize> = told.iter().copied().filter(|&other| other != at).collect();
        if fits(&with(&without)) {
            told = without;
        }
    }
    EvictionDecision::Evict(told)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Activity::{Busy, Evicting, Idle};
    use proptest::prelude::*;

    fn resident(bytes: u64, used: u64, activity: Activity) -> Resident {
        Resident {
            bytes,
            last_used: used,
            activity,
        }
    }

    #[test]
    fn there_is_room_or_it_is_made() {
        let (old, new) = (resident(40, 1, Idle), resident(40, 2, Idle));
        assert_eq!(decide(20, 20, None, &[old, new]), EvictionDecision::Load);
        assert_eq!(
            decide(21, 20, None, &[new, old]),
            EvictionDecision::Evict(vec![1]),
            "the least recently used"
        );
        assert_eq!(
            decide(61, 20, None, &[new, old]),
            EvictionDecision::Evict(vec![1, 0])
        );
        assert_eq!(
            decide(101, 20, None, &[new, old]),
            EvictionDecision::TooLarge(100)
        );
        assert_eq!(
            decide(1, 20, Some(2), &[new, old]),
            EvictionDecision::Evict(vec![1]),
            "no more than two"
        );
        assert_eq!(decide(1, 20, Some(3), &[new, old]), EvictionDecision::Load);
        assert_eq!(decide(1, 0, None, &[]), EvictionDecision::TooLarge(0));
        assert_eq!(
            decide(1, 1, Some(0), &[]),
            EvictionDecision::Load,
            "one is the least"
        );
    }

    #[test]
    fn who_is_asked_leaves_last_and_nobody_twice() {
        let (busy, idle) = (resident(40, 1, Busy), resident(40, 2, Idle));
        assert_eq!(
            decide(30, 0, None, &[busy, idle]),
            EvictionDecision::Evict(vec![1]),
            "though it was used later"
        );
        assert_eq!(
            decide(70, 0, None, &[busy, idle]),
            EvictionDecision::Evict(vec![1, 0]),
            "whoever asks is not kept waiting for ever"
        );
        let leaving = resident(40, 1, Evicting);
        assert_eq!(
            decide(30, 0, None, &[leaving, idle]),
            EvictionDecision::Wait
        );
        assert_eq!(
            decide(60, 0, None, &[leaving, idle]),
            EvictionDecision::Evict(vec![1])
        );
        assert_eq!(decide(1, 99, Some(1), &[leaving]), EvictionDecision::Wait);
    }

    #[test]
    fn nobody_leaves_for_nothing() {
        // The small model alone does not suffice, and with the large one its eviction is not
        // needed.
        let (small, large) = (resident(10, 1, Idle), resident(100, 2, Idle));
        assert_eq!(
            decide(50, 0, None, &[small, large]),
            EvictionDecision::Evict(vec![1])
        );
    }

    fn residents() -> impl Strategy<Value = Vec<Resident>> {
        let activity = prop_oneof![Just(Idle), Just(Busy), Just(Evicting)];
        let one = (0u64..100, 0u64..100, activity)
            .prop_map(|(bytes, used, activity)| resident(bytes, used, activity));
        proptest::collection::vec(one, 0..7)
    }

    proptest! {
        #[test]
        fn whatever_there_is(
            all in residents(), need in 0u64..400, free in 0u64..100, most in proptest::option::of(1usize..6),
        ) {
            let fits = |left: &[usize]| {
                let bytes: u64 = left.iter().map(|&at| all[at].bytes).sum();
                need <= free + bytes && all.len() - left.len() < most.unwrap_or(usize::MAX)
            };
            let leaving: Vec<usize> = (0..all.len()).filter(|&at| all[at].activity == Evicting).collect();
            let everybody: Vec<usize> = (0..all.len()).collect();
            match decide(need, free, most, &all) {
                EvictionDecision::Load => prop_assert!(fits(&[])),
                EvictionDecision::Wait => prop_assert!(!fits(&[]) && fits(&leaving)),
                EvictionDecision::TooLarge(room) => {
                    prop_assert!(!fits(&everybody) && room == free + all.iter().map(|one| one.bytes).sum::<u64>());
                }
                EvictionDecision::Evict(told) => {
                    let left = [leaving.as_slice(), &told].concat();
                    prop_assert!(!told.is_empty() && fits(&left) && !fits(&leaving));
                    prop_assert!(told.iter().all(|at| !leaving.contains(at)));
                    for at in &told {
                        let others: Vec<usize> = left.iter().copied().filter(|other| other != at).collect();
                        prop_assert!(!fits(&others), "{at} need not leave");
                    }
                    // No busy model is evicted where idle ones suffice.
                    let idle: Vec<usize> = (0..all.len()).filter(|&at| all[at].activity != Busy).collect();
                    prop_assert!(!fits(&idle) || told.iter().all(|&at| all[at].activity == Idle));
                }
            }
        }
    }
}
