//! Points in time of a walk through linear code.

use gristmill_uop::features::{Amounts, Coefficients, Feature};

/// A point in time: seconds since the walk began, and the features that they consist of.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moment {
    pub seconds: f64,
    pub amounts: Amounts,
}

impl Moment {
    /// The later of both; this one if they are equal.
    #[must_use]
    pub fn later(self, other: Moment) -> Moment {
        if other.seconds > self.seconds {
            other
        } else {
            self
        }
    }
    /// That amount of a feature later.
    #[must_use]
    pub fn plus(mut self, feature: Feature, amount: f64, by: &Coefficients) -> Moment {
        self.seconds += amount * by.get(feature);
        self.amounts.0[feature as usize] += amount;
        self
    }
    /// After `times` further spans as long as that from `begin` to this one. Transfers of one span
    /// overlap with everything else of another, since warps do not run in step.
    #[must_use]
    pub fn again(self, begin: Moment, times: f64, by: &Coefficients) -> Moment {
        let span = self.amounts + begin.amounts * -1.0;
        let (mut moved, mut rest) = (Amounts::default(), span);
        for feature in [Feature::Memory, Feature::Cache] {
            moved.0[feature as usize] = span.get(feature);
            rest.0[feature as usize] = 0.0;
        }
        let amounts = self.amounts + rest.longer(moved, by) * times;
        Moment {
            seconds: amounts.seconds(by),
            amounts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gristmill_uop::machine::Machine;

    #[test]
    fn transfers_of_later_spans_overlap_with_their_waits() {
        let by = Machine::named("h200").unwrap().code_coefficients();
        let wait = by.get(Feature::Wait);
        let span = |bytes: f64| {
            Moment::default()
                .plus(Feature::Wait, 1.0, &by)
                .plus(Feature::Memory, bytes, &by)
        };
        let few = span(0.1 * wait / by.get(Feature::Memory));
        let after = few.again(Moment::default(), 2.0, &by);
        assert!((after.seconds / wait - 3.1).abs() < 1e-9, "{after:?}");
        let many = span(4.0 * wait / by.get(Feature::Memory));
        let after = many.again(Moment::default(), 2.0, &by);
        assert!((after.seconds / wait - 13.0).abs() < 1e-9, "{after:?}");
    }
}
