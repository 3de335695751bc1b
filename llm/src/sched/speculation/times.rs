//! Times of steps by their rows, measured while they run.

use std::collections::BTreeMap;

/// Weight of the newest step in the time of steps of as many rows.
const TIME_WEIGHT: f64 = 0.2;
/// Factor of the known times of steps with other numbers of rows, for each step: a time that was
/// measured beside other work is tried again after some hundred steps.
const FORGETTING: f64 = 0.998;
/// Growth of the time of a step with twice the rows, until it is measured: little, so that it is
/// tried.
const ASSUMED_GROWTH: f64 = 1.15;

/// Time of steps with a number of rows.
#[derive(Clone, Copy, Debug)]
struct StepTime {
    seconds: f64,
    /// Steps of other numbers of rows since the last one of this.
    age: u32,
}

impl StepTime {
    fn new(seconds: f64) -> StepTime {
        StepTime { seconds, age: 0 }
    }
    /// Returns the time by which steps are chosen: the less, the longer none has run.
    fn expected(&self) -> f64 {
        self.seconds * self.trust()
    }
    fn trust(&self) -> f64 {
        FORGETTING.powf(f64::from(self.age))
    }
    /// Counts a step: the more, the longer none has run.
    fn count(&mut self, seconds: f64) {
        let weight = TIME_WEIGHT.max(0.5 * (1.0 - self.trust()));
        *self = StepTime::new(self.seconds + weight * (seconds - self.seconds));
    }
}

/// Times of steps by their rows.
#[derive(Debug, Default)]
pub(super) struct StepTimes {
    /// Most rows of a step.
    most: usize,
    /// Times by rows, rounded up to a power of two.
    times: BTreeMap<usize, StepTime>,
}

impl StepTimes {
    pub fn new(most: usize) -> StepTimes {
        StepTimes {
            most,
            times: BTreeMap::new(),
        }
    }
    /// Records the time of a step.
    pub fn record(&mut self, rows: usize, seconds: f64) {
        let bucket = self.bucket(rows);
        self.age_but(Some(bucket));
        let first = StepTime::new(seconds);
        self.times.entry(bucket).or_insert(first).count(seconds);
    }
    /// Lets known times count less, except those of steps with so many rows.
    pub fn age_but(&mut self, bucket: Option<usize>) {
        let others = self.times.iter_mut().filter(|of| Some(*of.0) != bucket);
        others.for_each(|of| of.1.age = of.1.age.saturating_add(1));
    }
    /// Forgets the time of steps of so many rows.
    pub fn forget(&mut self, rows: usize) {
        let bucket = self.bucket(rows);
        self.times.remove(&bucket);
    }
    /// Returns the known times, to be kept for the next start.
    pub fn known(&self) -> BTreeMap<usize, f64> {
        let all = self.times.iter();
        all.map(|(&rows, time)| (rows, time.seconds)).collect()
    }
    /// Takes times that were measured before, where none has been measured since.
    pub fn restore(&mut self, known: BTreeMap<usize, f64>) {
        let (most, is_time) = (self.most.max(1), |seconds: f64| {
            seconds > 0.0 && seconds.is_finite()
        });
        for (rows, seconds) in known.into_iter().filter(|of| is_time(of.1)) {
            let time = StepTime::new(seconds);
            self.times.entry(rows.clamp(1, most)).or_insert(time);
        }
    }
    /// Returns the time of a step of so many rows, where that of one row is 1 and none is measured.
    pub fn assumed(rows: usize) -> f64 {
        ASSUMED_GROWTH.powf((rows as f64).log2())
    }
    fn bucket(&self, rows: usize) -> usize {
        rows.next_power_of_two().min(self.most.max(1))
    }
    /// Returns the time of a step of so many rows; `None` if none was measured.
    pub fn time(&self, rows: usize) -> Option<f64> {
        let bucket = self.bucket(rows);
        let known = self.times.iter().rev();
        let known = known.map(|(&rows, time)| (rows, time.expected()));
        let known: Vec<(usize, f64)> = known.collect();
        // The nearest with fewer rows, else with more.
        let below = known.iter().find(|of| of.0 <= bucket);
        let &(of, seconds) = below.or(known.last())?;
        Some(seconds * ASSUMED_GROWTH.powf((bucket as f64 / of as f64).log2()))
    }
}
