//! A beam search over what can be changed of something that is measured. Questions come one after the other; each is put to all of the best few, and the best few of these and of what they
//! become go on to the next one. With one of them that is: each answer is tried on the best so far, and the best answer stays.

use crate::failure::Result;
use std::time::Duration;

/// The changes of one thing that are worth a measurement: at most one of them stays.
pub type Question<C> = Vec<C>;

/// What is searched.
pub trait SearchSpace {
    /// What is measured.
    type State: Clone + PartialEq;
    /// A step from one state to another.
    type Change;

    /// Questions in the order in which they are put; those of a later stage may depend on what became of the stages before. None behind the last stage.
    fn questions(&mut self, stage: usize, leader: &Self::State) -> Result<Option<Vec<Question<Self::Change>>>>;
    /// The state behind a change.
    fn changed(&self, state: &Self::State, change: &Self::Change) -> Self::State;
    /// How many times as good the rival is as the leader; none where it cannot be had. A number above [`least`](SearchSpace::least) is no accident of one measurement.
    fn measure(&mut self, leader: &Self::State, rival: &Self::State, change: &Self::Change) -> Result<Option<f64>>;
    /// What a rival must be worth beside the leader to take its place.
    fn least(&self) -> f64;
    /// Is there time to measure once more?
    fn has_time(&self) -> bool;
}

/// Why a search ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// In the last round nothing took the leader's place.
    Settled,
    /// The time was over.
    Late,
}

/// What a search has found.
#[derive(Debug)]
pub struct Found<S> {
    /// The best state.
    pub best: S,
    /// How many states were measured, the first not among them.
    pub measured: usize,
    /// Rounds that were begun.
    pub rounds: usize,
    /// Why there was no more.
    pub ended: Ended,
}

/// A state that may lead to better ones.
#[derive(Clone)]
struct Member<S> {
    state: S,
    /// What it is worth beside the first leader.
    worth: f64,
}

/// Searches from `start` with so many states at a time, round by round, until a round leaves the leader where it is or the time is over: not before one change is measured, as on a busy machine all of the
/// time may have gone before the search.
pub fn search<C: SearchSpace>(space: &mut C, start: C::State, width: usize) -> Result<Found<C::State>> {
    let mut beam =
        Beam { width: width.max(1), members: vec![Member { state: start.clone(), worth: 1.0 }], seen: vec![start] };
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
        return Ok(Found { best: beam.leader().state.clone(), measured: beam.seen.len() - 1, rounds, ended });
    }
}

/// The best states so far, the leader first.
struct Beam<S> {
    width: usize,
    members: Vec<Member<S>>,
    /// All that were measured: none is measured again.
    seen: Vec<S>,
}

impl<S: Clone + PartialEq> Beam<S> {
    fn leader(&self) -> &Member<S> {
        &self.members[0]
    }
    /// Puts every question of every stage; false where the time was over before.
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
    /// Puts one question to all members; false where the time was over before all answers were measured.
    fn put<C: SearchSpace<State = S>>(&mut self, question: &Question<C::Change>, space: &mut C) -> Result<bool> {
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
    /// Gives a rival its place by what it is worth beside the leader, which it replaces if it gains: what has not gained is not above the leader, whatever was measured.
    fn enter(&mut self, state: S, ratio: f64, least: f64) {
        let leads = ratio > least;
        let worth = self.leader().worth * if leads { ratio } else { ratio.min(1.0) };
        let behind = |m: &Member<S>| m.worth < worth;
        let place = if leads { 0 } else { self.members.iter().position(behind).unwrap_or(self.members.len()) };
        self.members.insert(place, Member { state, worth });
        self.members.truncate(self.width);
    }
}

/// The time that a search may take, by the longest of what it does in turn.
pub struct Budget {
    most: Duration,
    /// What the longest question of this stage took, or may take.
    longest: Duration,
    /// What the longest took of those that led: the result has their changes, and is measured once more.
    check: Duration,
}

impl Budget {
    /// So much in all.
    pub fn new(most: Duration) -> Budget {
        Budget { most, longest: Duration::ZERO, check: Duration::ZERO }
    }
    /// A stage begins whose questions may take that long.
    pub fn begin(&mut self, expected: Duration) {
        self.longest = expected;
    }
    /// Something took that long, and may again in this stage; whether it leads now, so that the result has it.
    pub fn took(&mut self, time: Duration, leads: bool) {
        self.longest = self.longest.max(time);
        if leads {
            self.check = self.check.max(time);
        }
    }
    /// Is there room, so long after the beginning, for one more that takes as long as the longest of its stage, and one to check by what that, or what was found, takes?
    pub fn has_room(&self, elapsed: Duration) -> bool {
        elapsed + self.longest + self.longest.max(self.check) <= self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Digits whose sum of scores counts; a pair of digits may be worth more together. A measurement takes a second of a clock that does nothing else.
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
            Digits { questions, worth, clock: Duration::ZERO, budget, order: vec![] }
        }
        fn search(&mut self, width: usize) -> Found<Vec<u8>> {
            let start = vec![0; self.questions.len()];
            search(self, start, width).expect("nothing fails")
        }
    }

    impl SearchSpace for Digits {
        type State = Vec<u8>;
        type Change = (usize, u8);

        fn questions(&mut self, stage: usize, _: &Vec<u8>) -> Result<Option<Vec<Question<(usize, u8)>>>> {
            Ok(self.questions.get(stage).map(|values| vec![values.iter().map(|&v| (stage, v)).collect()]))
        }
        fn changed(&self, state: &Vec<u8>, &(at, value): &(usize, u8)) -> Vec<u8> {
            let mut state = state.clone();
            state[at] = value;
            state
        }
        fn measure(&mut self, leader: &Vec<u8>, rival: &Vec<u8>, _: &(usize, u8)) -> Result<Option<f64>> {
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
        // The second round asks anew, on the new leader, and measures nothing twice.
        let mut distinct = digits.order.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), digits.order.len(), "{:?}", digits.order);
        assert_eq!((found.rounds, found.measured), (2, digits.order.len()));
        assert_eq!(digits.order[..6], ["100", "200", "210", "220", "221", "222"]);
    }

    /// Both digits together double the speed, either alone costs a tenth.
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
        assert_eq!((narrow.best, narrow.measured, narrow.ended), (vec![0, 0], 2, Ended::Settled));
        let wide = Digits::new(2, 2, a_pair).search(2);
        assert_eq!((wide.best, wide.ended), (vec![1, 1], Ended::Settled));
        // No beam has more members than its width: those that are worth least go first.
        let mut digits =
            Digits::new(3, 2, |d| if *d == [1, 1, 1] { 2.0 } else { 1.0 - 0.1 * f64::from(d.iter().sum::<u8>()) });
        assert_eq!(digits.search(2).best, [0, 0, 0]);
        assert_eq!(digits.search(4).best, [1, 1, 1]);
    }

    #[test]
    fn what_hardly_gains_does_not_lead() {
        let found = Digits::new(1, 2, |d| 1.0 + 0.019 * f64::from(d[0])).search(3);
        assert_eq!((found.best, found.measured, found.rounds), (vec![0], 1, 1));
        // Nor does it pass for more than the leader is worth: a sum of small accidents is no gain.
        let mut digits = Digits::new(4, 2, |d| 1.015f64.powi(d.iter().map(|&v| i32::from(v)).sum()));
        let found = digits.search(1);
        assert_eq!(found.best, [0, 0, 0, 0]);
    }

    #[test]
    fn what_cannot_be_measured_is_passed_over() {
        let found = Digits::new(2, 3, |d| if d[0] == 1 { f64::NAN } else { 1.0 + f64::from(d[0] + d[1]) }).search(2);
        assert_eq!((found.best, found.ended), (vec![2, 2], Ended::Settled));
    }

    #[test]
    fn a_search_ends_in_time_with_what_it_has() {
        let mut digits = Digits::new(5, 9, |d| 1.0 + d.iter().map(|&v| f64::from(v)).sum::<f64>());
        digits.budget = Budget::new(Duration::from_secs(12));
        let found = digits.search(3);
        assert_eq!((found.ended, found.rounds), (Ended::Late, 1));
        // Eleven measurements, and one second is left for who checks the result.
        assert_eq!((found.measured, digits.clock), (11, Duration::from_secs(11)));
        assert_eq!(found.best[0], 8);
        // One change is measured, whatever time there is.
        let mut late = Digits::new(5, 9, |d| 1.0 + d.iter().map(|&v| f64::from(v)).sum::<f64>());
        late.clock = Duration::from_secs(2000);
        let found = late.search(3);
        assert_eq!((found.ended, found.measured, &late.order[..]), (Ended::Late, 1, &["10000".to_owned()][..]));
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
        // What was found has to be checked whatever stage it is of.
        budget.took(seconds(20), true);
        budget.begin(Duration::ZERO);
        assert!(budget.has_room(seconds(40)) && !budget.has_room(seconds(41)));
    }
}
