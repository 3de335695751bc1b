//! Learning rate by step.

use std::f64::consts::PI;

/// Part of the learning rate that the cosine ends at.
const LAST_PART: f64 = 0.1;

/// Course of the learning rate after the warm-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Course {
    /// Half a cosine, down to a tenth.
    Cosine,
    /// The same rate until the end.
    Constant,
}

/// Learning rate of every step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Schedule {
    /// Rate after the warm-up.
    pub rate: f64,
    /// Steps of linear growth from `rate / warmup`.
    pub warmup: u64,
    /// Steps of the run, warm-up included.
    pub steps: u64,
    /// What follows the warm-up.
    pub course: Course,
}

impl Schedule {
    /// Learning rate of a step, counted from 0.
    pub fn rate(&self, step: u64) -> f64 {
        if step < self.warmup {
            return self.rate * (step + 1) as f64 / self.warmup as f64;
        }
        match self.course {
            Course::Constant => self.rate,
            Course::Cosine => {
                let rest = self.steps.saturating_sub(self.warmup).max(1);
                let part = ((step - self.warmup) as f64 / rest as f64).min(1.0);
                self.rate * (LAST_PART + (1.0 - LAST_PART) * (1.0 + (PI * part).cos()) / 2.0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_grows_then_falls_to_a_tenth() {
        let of = Schedule {
            rate: 1e-3,
            warmup: 5,
            steps: 60,
            course: Course::Cosine,
        };
        let near = |step, expected: f64| assert!((of.rate(step) - expected).abs() < 1e-12);
        near(0, 2e-4);
        near(4, 1e-3);
        near(5, 1e-3);
        near(60, 1e-4);
        assert!(of.rate(30) < of.rate(20));
        let constant = Schedule {
            course: Course::Constant,
            warmup: 0,
            ..of
        };
        assert_eq!([0, 59].map(|s| constant.rate(s)), [1e-3; 2]);
    }
}
