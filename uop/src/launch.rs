//! How a GPU runs a launch, as a value: what its workgroups leave of a unit to one another, what a thread has under way at once, and from where on the
//! kernels behind it may start.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

/// From where on kernels behind may start. They then wait for their turn, and ask for their weights meanwhile.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Dependents {
    /// At once.
    Entry,
    /// No sooner than it is the kernel's own turn.
    Turn,
    /// When the kernel has ended.
    #[default]
    End,
}

/// Each with its name.
const DEPENDENTS: [(Dependents, &str); 3] =
    [(Dependents::Entry, "entry"), (Dependents::Turn, "turn"), (Dependents::End, "end")];

/// How a launch is run. Every plan is legal for every launch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct LaunchPlan {
    /// Workgroups that a unit shall have room for at once, at least. It bounds the registers of a thread: without a number the device's compiler takes so
    /// few that loads wait for one another.
    pub resident: i64,
    /// Registers, of 32 bits, in which words of several iterations of a loop wait; of a workgroup that has a unit to itself twice as many.
    pub words: i64,
    /// Most iterations of a loop over a sum that are all written out.
    pub iterations: i64,
    /// Words that a thread may load before the workgroup's first nest begins, for those behind it.
    pub hoisted: i64,
    /// Does what goes from memory to a stage as it is go there without registers, while the thread goes on?
    pub asynchronous: bool,
    /// Iterations of a loop that adds up matrix products which are copied to shared memory before they are multiplied, at most as many as there are; where none
    /// are said, what a loop reads it asks for itself.
    pub ahead: i64,
    /// From where on kernels behind may start.
    pub dependents: Dependents,
    /// Percent of a unit's memory that shall be shared, the rest being its first-level cache; where none are said the driver decides.
    pub shared: Option<i64>,
}

impl Display for LaunchPlan {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "launch: resident {}, words {}, iterations {}", self.resident, self.words, self.iterations)?;
        if self.hoisted > 0 {
            write!(f, ", hoisted {}", self.hoisted)?;
        }
        f.write_str(if self.asynchronous { ", asynchronous" } else { "" })?;
        if self.ahead > 0 {
            write!(f, ", ahead {}", self.ahead)?;
        }
        let dependents = DEPENDENTS.iter().find(|d| d.0 == self.dependents).map_or("", |d| d.1);
        write!(f, ", dependents at {dependents}")?;
        self.shared.map_or(Ok(()), |percent| write!(f, ", shared {percent}"))
    }
}

impl FromStr for LaunchPlan {
    /// The words that no plan has there.
    type Err = String;
    fn from_str(text: &str) -> Result<LaunchPlan, String> {
        let bad = |words: &str| words.trim().to_string();
        let rest = text.trim().strip_prefix("launch:").ok_or_else(|| bad(text))?;
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
        // What a text does not say is nothing that a launch could do without.
        if plan.resident * plan.words * plan.iterations == 0 { Err(bad(text)) } else { Ok(plan) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_prints_as_a_text_that_parses() {
        let plan = LaunchPlan { resident: 2, words: 32, iterations: 8, ..LaunchPlan::default() };
        let others = [
            LaunchPlan { asynchronous: true, ahead: 3, dependents: Dependents::Entry, ..plan },
            LaunchPlan { resident: 1, hoisted: 45, dependents: Dependents::Turn, shared: Some(50), ..plan },
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
