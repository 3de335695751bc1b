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
