//! Beam search over changes of a state, by measured speed.
//!
//! Each question offers alternative changes. Every change is tried on every state of the beam, and
//! the best states form the next beam. At width 1 this is greedy coordinate descent.

use crate::failure::Result;
use std::time::Duration;

/// Alternative changes, at most one of which is kept.
pub type Question<C> = Vec<C>;

/// States, changes and their measurement.
pub trait SearchSpace {
    type State: Clone + PartialEq;
    type Change;

    /// Returns the questions of a stage in order, given the leader; `None` after the last stage.
    fn questions(
        &mut self,
        stage: usize,
        leader: &Self::State,
    ) -> Result<Option<Vec<Question<Self::Change>>>>;
    /// Applies a change to a state.
    fn changed(&self, state: &Self::State, change: &Self::Change) -> Self::State;
    /// Returns the speedup of a rival over the leader; `None` if it cannot be measured.
    ///
    /// A speedup above [`least`](SearchSpace::least) must be confirmed by a second measurement.
    fn measure(
        &mut self,
        leader: &Self::State,
        rival: &Self::State,
        change: &Self::Change,
    ) -> Result<Option<f64>>;
    /// Minimum speedup with which a rival replaces the leader.
    fn least(&self) -> f64;
    /// Whether the budget allows another measurement.
    fn has_time(&self) -> bool;
}

/// Reason for the end of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The last round left the leader in place.
    Settled,
    /// The time budget is used up.
    Late,
}

/// Result of a search.
#[derive(Debug)]
pub struct Found<S> {
    pub best: S,
    /// Measured states, without the first.
    pub measured: usize,
    /// Rounds, including an unfinished one.
    pub rounds: usize,
    pub ended: Ended,
}

/// A state of the beam.
#[derive(Clone)]
struct Member<S> {
    state: S,
    /// Speedup over the start.
    worth: f64,
}

/// Searches from `start` with a beam of `width` states until a round changes no leader or time is
/// up.
///
/// One change is always measured: on a busy machine, loading may have used the whole budget.
pub fn search<C: SearchSpace>(
    space: &mut C,
    start: C::State,
    width: usize,
) -> Result<Found<C::State>> {
    let mut beam = Beam {
        width: width.max(1),
        members: vec![Member {
            state: start.clone(),
            worth: 1.0,
        }],
        seen: vec![start],
    };
    let mut rounds = 0;
    loop {
        rounds += 1;
        let before = beam.leader().state.clone();
        let in_time = beam.round(space)?;
        let ended = match (in_time, beam.leader().state == before) {
            (false, _) => Ended::Late,
            (true, true) => Ended::Settled,
            (true, false) => continue,
        };
        return Ok(Found {
            best: beam.leader().state.clone(),
            measured: beam.seen.len() - 1,
            rounds,
            ended,
        });
    }
}

/// The best states so far, fastest first.
struct Beam<S> {
    width: usize,
    members: Vec<Member<S>>,
    /// Measured states, which are not measured again.
    seen: Vec<S>,
}

impl<S: Clone + PartialEq> Beam<S> {
    fn leader(&self) -> &Member<S> {
        &self.members[0]
    }
    /// Tries every question of every stage; false if time is up before the end.
    fn round<C: SearchSpace<State = S>>(&mut self, space: &mut C) -> Result<bool> {
        let mut stage = 0;
        while let Some(questions) = space.questions(stage, &self.leader().state)? {
            stage += 1;
            for question in &questions {
                if !self.put(question, space)? {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
    /// Tries the changes of one question on all members; false if time is up before the end.
    fn put<C: SearchSpace<State = S>>(
        &mut self,
        question: &Question<C::Change>,
        space: &mut C,
    ) -> Result<bool> {
        for member in self.members.clone() {
            for change in question {
                let rival = space.changed(&member.state, change);
                if self.seen.contains(&rival) {
                    continue;
                }
                if self.seen.len() > 1 && !space.has_time() {
                    return Ok(false);
                }
                self.seen.push(rival.clone());
                if let Some(ratio) = space.measure(&self.leader().state, &rival, change)? {
                    self.enter(rival, ratio, space.least());
                }
            }
        }
        Ok(true)
    }
    /// Inserts a rival by its speedup; without the minimum gain it ranks below the leader.
    fn enter(&mut self, state: S, ratio: f64, least: f64) {
        let leads = ratio > least;
        let worth = self.leader().worth * if leads { ratio } else { ratio.min(1.0) };
        let slower = |m: &Member<S>| m.worth < worth;
        let place = if leads {
            0
        } else {
            self.members
                .iter()
                .position(slower)
                .unwrap_or(self.members.len())
        };
        self.members.insert(place, Member { state, worth });
        self.members.truncate(self.width);
    }
}

/// Time budget of a search.
pub struct Budget {
    most: Duration,
    /// Longest measurement of this stage, or its estimate.
    longest: Duration,
    /// Longest measurement of a leader, an estimate for the final check of the result.
    check: Duration,
}

impl Budget {
    /// A budget of `most` in total.
    pub fn new(most: Duration) -> Budget {
        Budget {
            most,
            longest: Duration::ZERO,
            check: Duration::ZERO,
        }
    }
    /// Begins a stage with measurements of an expected duration.
    pub fn begin(&mut self, expected: Duration) {
        self.longest = expected;
    }
    /// Records the time of a measurement; `leads` if the measured state is the new leader.
    pub fn took(&mut self, time: Duration, leads: bool) {
        self.longest = self.longest.max(time);
        if leads {
            self.check = self.check.max(time);
        }
    }
    /// Whether, after `elapsed`, the longest measurement of the stage and the final check still
    /// fit.
    pub fn has_room(&self, elapsed: Duration) -> bool {
        elapsed + self.longest + self.longest.max(self.check) <= self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// States are digits with a score; a measurement takes one second of a simulated clock.
    struct Digits {
        questions: Vec<Vec<u8>>,
        worth: fn(&[u8]) -> f64,
        clock: Duration,
        budget: Budget,
        order: Vec<String>,
    }

    impl Digits {
        fn new(digits: usize, values: u8, worth: fn(&[u8]) -> f64) -> Digits {
            let questions = vec![(0..values).collect(); digits];
            let budget = Budget::new(Duration::from_secs(1000));
            Digits {
                questions,
                worth,
                clock: Duration::ZERO,
                budget,
                order: vec![],
            }
        }
        fn search(&mut self, width: usize) -> Found<Vec<u8>> {
            let start = vec![0; self.questions.len()];
            search(self, start, width).expect("nothing fails")
        }
    }

    impl SearchSpace for Digits {
        type State = Vec<u8>;
        type Change = (usize, u8);

        fn questions(
            &mut self,
            stage: usize,
            _: &Vec<u8>,
        ) -> Result<Option<Vec<Question<(usize, u8)>>>> {
            Ok(self
                .questions
                .get(stage)
                .map(|values| vec![values.iter().map(|&v| (stage, v)).collect()]))
        }
        fn changed(&self, state: &Vec<u8>, &(at, value): &(usize, u8)) -> Vec<u8> {
            let mut state = state.clone();
            state[at] = value;
            state
        }
        fn measure(
            &mut self,
            leader: &Vec<u8>,
            rival: &Vec<u8>,
            _: &(usize, u8),
        ) -> Result<Option<f64>> {
            self.clock += Duration::from_secs(1);
            self.budget.took(Duration::from_secs(1), true);
            self.order.push(rival.iter().map(u8::to_string).collect());
            let ratio = (self.worth)(rival) / (self.worth)(leader);
            Ok(ratio.is_finite().then_some(ratio))
        }
        fn least(&self) -> f64 {
            1.02
        }
        fn has_time(&self) -> bool {
            self.budget.has_room(self.clock)
        }
    }

    #[test]
    fn one_at_a_time_takes_the_best_answer_to_each_question() {
        let mut digits = Digits::new(3, 3, |d| 1.0 + d.iter().map(|&v| f64::from(v)).sum::<f64>());
        let found = digits.search(1);
        assert_eq!((found.best, found.ended), (vec![2, 2, 2], Ended::Settled));
        // The second round repeats the questions on the new leader and measures nothing twice.
        let mut distinct = digits.order.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), digits.order.len(), "{:?}", digits.order);
        assert_eq!((found.rounds, found.measured), (2, digits.order.len()));
        assert_eq!(
            digits.order[..6],
            ["100", "200", "210", "220", "221", "222"]
        );
    }

    /// Both digits together double the speed; either alone loses a tenth.
    fn a_pair(d: &[u8]) -> f64 {
        match (d[0], d[1]) {
            (1, 1) => 2.0,
            (0, 0) => 1.0,
            _ => 0.9,
        }
    }

    #[test]
    fn a_wider_beam_finds_what_gains_in_two_steps() {
        let narrow = Digits::new(2, 2, a_pair).search(1);
        assert_eq!(
            (narrow.best, narrow.measured, narrow.ended),
            (vec![0, 0], 2, Ended::Settled)
        );
        let wide = Digits::new(2, 2, a_pair).search(2);
        assert_eq!((wide.best, wide.ended), (vec![1, 1], Ended::Settled));
        // The slowest members leave a beam that exceeds its width.
        let mut digits = Digits::new(3, 2, |d| {
            if *d == [1, 1, 1] {
                2.0
            } else {
                1.0 - 0.1 * f64::from(d.iter().sum::<u8>())
            }
        });
        assert_eq!(digits.search(2).best, [0, 0, 0]);
        assert_eq!(digits.search(4).best, [1, 1, 1]);
    }

    #[test]
    fn what_hardly_gains_does_not_lead() {
        let found = Digits::new(1, 2, |d| 1.0 + 0.019 * f64::from(d[0])).search(3);
        assert_eq!((found.best, found.measured, found.rounds), (vec![0], 1, 1));
        // Nor do small gains accumulate: noise must not add up.
        let mut digits = Digits::new(4, 2, |d| {
            1.015f64.powi(d.iter().map(|&v| i32::from(v)).sum())
        });
        let found = digits.search(1);
        assert_eq!(found.best, [0, 0, 0, 0]);
    }

    #[test]
    fn what_cannot_be_measured_is_passed_over() {
        let found = Digits::new(2, 3, |d| {
            if d[0] == 1 {
                f64::NAN
            } else {
                1.0 + f64::from(d[0] + d[1])
            }
        })
        .search(2);
        assert_eq!((found.best, found.ended), (vec![2, 2], Ended::Settled));
    }

    #[test]
    fn a_search_ends_in_time_with_what_it_has() {
        let mut digits = Digits::new(5, 9, |d| 1.0 + d.iter().map(|&v| f64::from(v)).sum::<f64>());
        digits.budget = Budget::new(Duration::from_secs(12));
        let found = digits.search(3);
        assert_eq!((found.ended, found.rounds), (Ended::Late, 1));
        // Eleven measurements, with one second left for the final check.
        assert_eq!(
            (found.measured, digits.clock),
            (11, Duration::from_secs(11))
        );
        assert_eq!(found.best[0], 8);
        // One change is measured even without time.
        let mut late = Digits::new(5, 9, |d| 1.0 + d.iter().map(|&v| f64::from(v)).sum::<f64>());
        late.clock = Duration::from_secs(2000);
        let found = late.search(3);
        assert_eq!(
            (found.ended, found.measured, &late.order[..]),
            (Ended::Late, 1, &["10000".to_owned()][..])
        );
        assert!(Budget::new(Duration::ZERO).has_room(Duration::ZERO));
    }

    #[test]
    fn what_takes_long_in_one_stage_leaves_room_for_the_next() {
        let seconds = Duration::from_secs;
        let mut budget = Budget::new(seconds(60));
        budget.begin(seconds(25));
        assert!(budget.has_room(seconds(10)) && !budget.has_room(seconds(11)));
        budget.took(seconds(25), false);
        budget.begin(Duration::ZERO);
        budget.took(seconds(1), true);
        assert!(budget.has_room(seconds(58)) && !budget.has_room(seconds(59)));
        // The final check counts in every stage.
        budget.took(seconds(20), true);
        budget.begin(Duration::ZERO);
        assert!(budget.has_room(seconds(40)) && !budget.has_room(seconds(41)));
    }
}
