//! Times of steps by their rows, measured while they run.

use std::collections::BTreeMap;

/// Weight of the newest step in the time of steps of as many rows.
const TIME_WEIGHT: f64 = 0.2;
/// Factor of the known times of steps with other numbers of rows, for each step: a time that was
/// measured beside other work is tried again after some hundred steps.
const FORGETTING: f64 = 0.998;
/// Growth of the time of a step with twice the rows, until it is measured.
const ASSUMED_GROWTH: f64 = 1.15;

/// Times of steps by their rows.
#[derive(Debug, Default)]
pub(super) struct StepTimes {
    /// Most rows of a step.
    most: usize,
    /// Seconds by rows, rounded up to a power of two.
    seconds: BTreeMap<usize, f64>,
}

impl StepTimes {
    pub fn new(most: usize) -> StepTimes {
        StepTimes {
            most,
            seconds: BTreeMap::new(),
        }
    }
    /// Records the time of a step.
    pub fn record(&mut self, rows: usize, seconds: f64) {
        let bucket = self.bucket(rows);
        self.forget_but(Some(bucket));
        let known = self.seconds.entry(bucket).or_insert(seconds);
        *known += TIME_WEIGHT * (seconds - *known);
    }
    /// Lets known times count less, except those of steps with so many rows.
    pub fn forget_but(&mut self, bucket: Option<usize>) {
        let others = self.seconds.iter_mut().filter(|of| Some(*of.0) != bucket);
        others.for_each(|of| *of.1 *= FORGETTING);
    }
    /// Returns the known times, to be kept for the next start.
    pub fn known(&self) -> BTreeMap<usize, f64> {
        self.seconds.clone()
    }
    /// Takes times that were measured before, where none has been measured since.
    pub fn restore(&mut self, known: BTreeMap<usize, f64>) {
        let (most, is_time) = (self.most.max(1), |seconds: f64| {
            seconds > 0.0 && seconds.is_finite()
        });
        for (rows, seconds) in known.into_iter().filter(|of| is_time(of.1)) {
            self.seconds.entry(rows.clamp(1, most)).or_insert(seconds);
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
        let known = self
            .seconds
            .iter()
            .rev()
            .map(|(&rows, &seconds)| (rows, seconds));
        let known: Vec<(usize, f64)> = known.collect();
        // The nearest with fewer rows, else with more.
        let below = known.iter().find(|of| of.0 <= bucket);
        let &(of, seconds) = below.or(known.last())?;
        Some(seconds * ASSUMED_GROWTH.powf((bucket as f64 / of as f64).log2()))
    }
}
