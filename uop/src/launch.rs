//! Launch plan of a GPU kernel: occupancy, loads in flight per thread, and the trigger point
//! for programmatic dependent launch.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// Point at which dependent kernels may start. They prefetch weights, then
/// wait for their predecessors.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Dependents {
    /// Triggers dependents when the kernel starts.
    Entry,
    /// Triggers dependents after the kernel's own wait for its predecessors.
    Turn,
    /// Dependents start when the kernel has ended.
    #[default]
    End,
}

/// Each variant with its name.
const DEPENDENTS: [(Dependents, &str); 3] = [
    (Dependents::Entry, "entry"),
    (Dependents::Turn, "turn"),
    (Dependents::End, "end"),
];

/// How a launch is run. Every plan is legal for every launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct LaunchPlan {
    /// Minimum number of resident workgroups per processor unit. It bounds the registers per
    /// thread; without a bound, the device's compiler allocates too few to overlap loads.
    pub resident: i64,
    /// 32-bit registers per thread for words in flight from several loop iterations. Doubled for a
    /// workgroup that has a unit to itself.
    pub words: i64,
    /// Largest trip count of a reduction loop that is fully unrolled.
    pub iterations: i64,
    /// Words per thread that may be loaded early, before the workgroup's first
    /// nest, for later nests.
    pub hoisted: i64,
    /// Whether copies from memory to a stage bypass registers (asynchronous copies).
    pub asynchronous: bool,
    /// Depth of the software pipeline of matrix products: iterations copied to shared memory before
    /// they are multiplied, at most the trip count. 0: each iteration loads its own operands.
    pub ahead: i64,
    /// Point at which dependent kernels may start.
    pub dependents: Dependents,
    /// Percentage of a processor unit's memory to reserve as shared memory, the rest being L1
    /// cache; `None` leaves it to the driver.
    pub shared: Option<i64>,
}

impl Display for LaunchPlan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "launch: resident {}, words {}, iterations {}",
            self.resident, self.words, self.iterations
        )?;
        if self.hoisted > 0 {
            write!(f, ", hoisted {}", self.hoisted)?;
        }
        f.write_str(if self.asynchronous {
            ", asynchronous"
        } else {
            ""
        })?;
        if self.ahead > 0 {
            write!(f, ", ahead {}", self.ahead)?;
        }
        let dependents = DEPENDENTS
            .iter()
            .find(|d| d.0 == self.dependents)
            .map_or("", |d| d.1);
        write!(f, ", dependents at {dependents}")?;
        self.shared
            .map_or(Ok(()), |percent| write!(f, ", shared {percent}"))
    }
}

impl FromStr for LaunchPlan {
    /// The words that could not be parsed.
    type Err = String;
    fn from_str(text: &str) -> Result<LaunchPlan, String> {
        let bad = |words: &str| words.trim().to_string();
        let rest = text
            .trim()
            .strip_prefix("launch:")
            .ok_or_else(|| bad(text))?;
        let mut plan = LaunchPlan::default();
        for item in rest.split(',') {
            let count = |word: &str, most: i64| match word.parse() {
                Ok(n) if (1..=most).contains(&n) => Ok(n),
                _ => Err(bad(item)),
            };
            match item.split_whitespace().collect::<Vec<_>>()[..] {
                ["resident", n] => plan.resident = count(n, 64)?,
                ["words", n] => plan.words = count(n, 1024)?,
                ["iterations", n] => plan.iterations = count(n, 1024)?,
                ["hoisted", n] => plan.hoisted = count(n, 1024)?,
                ["asynchronous"] => plan.asynchronous = true,
                ["ahead", n] => plan.ahead = count(n, 64)?,
                ["dependents", "at", name] => {
                    let found = DEPENDENTS.iter().find(|d| d.1 == name);
                    plan.dependents = found.ok_or_else(|| bad(item))?.0;
                }
                ["shared", n] => plan.shared = Some(count(n, 100)?),
                _ => return Err(bad(item)),
            }
        }
        // A launch needs these three values, so a text without them is rejected.
        if plan.resident * plan.words * plan.iterations == 0 {
            Err(bad(text))
        } else {
            Ok(plan)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_prints_as_a_text_that_parses() {
        let plan = LaunchPlan {
            resident: 2,
            words: 32,
            iterations: 8,
            ..LaunchPlan::default()
        };
        let others = [
            LaunchPlan {
                asynchronous: true,
                ahead: 3,
                dependents: Dependents::Entry,
                ..plan
            },
            LaunchPlan {
                resident: 1,
                hoisted: 45,
                dependents: Dependents::Turn,
                shared: Some(50),
                ..plan
            },
        ];
        for plan in others.into_iter().chain([plan]) {
            assert_eq!(plan.to_string().parse(), Ok(plan));
        }
        for text in [
            "launch: resident 2",
            "launch: resident 0, words 32, iterations 8",
            "launch: resident 2, words 32, iterations 8, shared 101",
            "launch: resident 2, words 32, iterations 8, dependents at noon",
            "resident 2, words 32, iterations 8",
        ] {
            assert!(text.parse::<LaunchPlan>().is_err(), "{text}");
        }
    }
}
