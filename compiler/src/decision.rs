//! Compile-time choices with a modelled cost.
//!
//! A choice with several legal answers is a [`Decision`], whichever pass makes it, and a [`Policy`]
//! answers it. The heuristic, the perturbing policy of the tests (every legal choice must give
//! correct results) and the tuner therefore share one mechanism, and `gristmill kernels` prints
//! each choice with its costs. The kinds are `rows`, `alternatives`, `scatter`, `attention`,
//! `factor`, `layout`, `product`, `place`, `exchange`, `kept`, `reuse`, `merge`, `shapes`,
//! `workgroup`, `stages`, `nest` and `launch`.
//!
//! Other choices are not decisions but follow from facts and measured constants: whether the tokens
//! of a prompt share rows (`tokens_share`), whether its keys are rounded (`rounded_keys`), whether
//! weights that are read across their rows are copied (`dequantise_transposed.rs`), the chunk size
//! of a recurrence, and everything that a flag switches off (`uop/src/target.rs`).

use gristmill_uop::facts::values;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// One candidate of a decision.
#[derive(Clone, PartialEq, Debug)]
pub struct Alternative {
    /// Name, unique among the alternatives of this kind of decision.
    pub name: &'static str,
    /// Plan as text; empty if the name identifies the alternative.
    pub plan: String,
    /// Modelled cost in seconds.
    pub seconds: f64,
}

impl Alternative {
    /// An alternative without a plan text.
    pub fn named(name: &'static str, seconds: f64) -> Alternative {
        Alternative {
            name,
            plan: String::new(),
            seconds,
        }
    }
}

/// Kind of decision between two named alternatives, the heuristic's first.
///
/// The text of an alternative is `kind: name`, such as `place: fuse`.
pub struct Pair {
    /// Kind of the decision, the first word of its key.
    pub kind: &'static str,
    /// Names of both alternatives, the default first.
    pub names: [&'static str; 2],
}

/// Whether an intermediate is materialised in a buffer or fused into the kernels that read it.
pub const PLACE: Pair = Pair {
    kind: "place",
    names: ["buffer", "fuse"],
};
/// Which of two fused nodes is materialised: the kernel's result (`outer`) or its producer
/// (`inner`), from which readers then compute the result.
pub const SWAP_MATERIALISED: Pair = Pair {
    kind: "exchange",
    names: ["outer", "inner"],
};
/// Whether dependent kernels recompute a fused value each, or read it from a buffer that
/// the first one stores.
pub const RECOMPUTE_OR_STORE: Pair = Pair {
    kind: "reuse",
    names: ["fuse", "reuse"],
};
/// Whether kernels without a dependency between them run in separate launches or
/// in one (horizontal fusion).
pub const LAUNCH_FUSION: Pair = Pair {
    kind: "merge",
    names: ["apart", "together"],
};
/// Whether a factor common to all terms of a sum, such as a norm's scale, multiplies the sum
/// (`behind`) or the terms (`before`).
pub const DEFER_NORM_SCALE: Pair = Pair {
    kind: "factor",
    names: ["behind", "before"],
};
/// Whether the attention of a prefill reads a quantised KV cache as it is stored, or rows that are
/// first dequantised to f16.
pub const CACHE_ROWS: Pair = Pair {
    kind: "rows",
    names: ["stored", "f16"],
};
/// Whether a launch with too few workgroups gets smaller ones than proposed.
pub const SHAPES: Pair = Pair {
    kind: "shapes",
    names: ["proposed", "smaller"],
};

impl Pair {
    /// Every pair of named alternatives.
    pub const ALL: [Pair; 7] = [
        CACHE_ROWS,
        DEFER_NORM_SCALE,
        PLACE,
        SWAP_MATERIALISED,
        RECOMPUTE_OR_STORE,
        LAUNCH_FUSION,
        SHAPES,
    ];

    fn plan(&self, name: &str) -> String {
        format!("{}: {name}", self.kind)
    }
    /// The decision at `site`, with the costs of both alternatives in seconds.
    pub fn at(&self, site: String, seconds: [f64; 2]) -> Decision {
        let options = self.names.into_iter().zip(seconds);
        let options = options
            .map(|(name, seconds)| Alternative {
                name,
                plan: self.plan(name),
                seconds,
            })
            .collect();
        Decision::new(self.kind, site, options)
    }
    /// Whether `plan` is the text of one of the two alternatives.
    pub fn has(&self, plan: &str) -> bool {
        self.names.iter().any(|name| self.plan(name) == plan.trim())
    }
}

/// Makes the site names of one function unique by a counter: `site`, `site #2`.
#[derive(Default)]
pub struct Alike(BTreeMap<String, usize>);

impl Alike {
    /// Returns `name`, with a number appended if it was returned before.
    pub fn name(&mut self, name: String) -> String {
        let number = self.0.entry(name.clone()).or_default();
        *number += 1;
        if *number == 1 {
            name
        } else {
            format!("{name} #{number}")
        }
    }
}

/// The margin of each kind of decision, with what it was measured with.
const MARGINS: &str = include_str!("margins.txt");

static MARGIN_OF: LazyLock<BTreeMap<&str, f64>> = LazyLock::new(|| values(MARGINS));

/// Fraction of the first option's cost that another option must save in decisions of this kind
/// (`margins.txt`).
pub fn margin(kind: &str) -> f64 {
    MARGIN_OF.get(kind).copied().unwrap_or(0.0)
}

/// Kind of the decision on a weight's layout; its key names no function, since
/// all functions share it.
pub const LAYOUT: &str = "layout";

/// A choice between alternatives, each with a cost in seconds.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Kind of the decision, such as `place`, `product` or `workgroup`.
    pub kind: &'static str,
    /// The kernel or node it is about, such as `%12 Reduce [16, 64]`.
    pub site: String,
    /// Legal alternatives, the heuristic's choice first.
    pub options: Vec<Alternative>,
    /// Fraction of the first option's cost that another option must save,
    /// since costs are estimates.
    pub margin: f64,
    /// Index of the chosen option.
    pub chosen: usize,
    /// Whether the policy was asked. Choices that follow from others are only logged.
    pub asked: bool,
    /// Whether other functions make the same decision and must get the same answer. The answer then
    /// depends only on the key and the options.
    pub everywhere: bool,
}

impl Decision {
    /// An unanswered decision with the margin of its kind; `chosen` is the first option.
    pub fn new(kind: &'static str, site: String, options: Vec<Alternative>) -> Decision {
        Decision {
            kind,
            site,
            options,
            margin: margin(kind),
            chosen: 0,
            asked: false,
            everywhere: false,
        }
    }
    /// Key of this decision in a table of plans: kind and site.
    pub fn key(&self) -> String {
        format!("{} {}", self.kind, self.site)
    }
    /// Whether the function with that [full
    /// name](gristmill_uop::function::Function::full_name) may make the decision `key`. Sites
    /// begin with the function's name, except those of weight layouts.
    pub fn is_of(key: &str, function: &str) -> bool {
        let (kind, site) = key.split_once(' ').unwrap_or((key, ""));
        kind == LAYOUT
            || site
                .strip_prefix(function)
                .is_some_and(|rest| rest.starts_with(' ') || rest.is_empty())
    }
    /// Formats the decision as one line: key, options with costs, `*` at the chosen one.
    pub fn explain(&self) -> String {
        let says_more = |of: &Alternative| {
            !of.plan.is_empty()
                && of
                    .plan
                    .split_once(": ")
                    .is_none_or(|plan| plan.1 != of.name)
        };
        let option = |(i, of): (usize, &Alternative)| {
            let (star, us) = (if i == self.chosen { "*" } else { "" }, of.seconds * 1e6);
            match says_more(of) {
                false => format!("{star}{} {us:.2} us", of.name),
                true => format!("{star}{} ({}) {us:.2} us", of.name, of.plan),
            }
        };
        let options: Vec<String> = self.options.iter().enumerate().map(option).collect();
        format!("{}: {}", self.key(), options.join(", "))
    }
}

/// How often an alternative of a kind of decision was offered and taken.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Count {
    /// Decisions that offered it.
    pub offered: usize,
    /// Decisions that chose it.
    pub taken: usize,
}

/// Counts, by kind and name, how often each alternative was offered and taken. Ignores decisions
/// that were only logged.
pub fn counts<'a>(
    decisions: impl IntoIterator<Item = &'a Decision>,
) -> BTreeMap<(&'static str, &'static str), Count> {
    let mut all: BTreeMap<_, Count> = BTreeMap::new();
    for decision in decisions.into_iter().filter(|d| d.asked) {
        for (i, option) in decision.options.iter().enumerate() {
            let count = all.entry((decision.kind, option.name)).or_default();
            count.offered += 1;
            count.taken += usize::from(i == decision.chosen);
        }
    }
    all
}

/// Chooses among the options of decisions.
pub trait Policy {
    /// Returns the index of the chosen option; a decision has at least one.
    fn choose(&mut self, decision: &Decision) -> usize;
    /// Whether callers should also list alternatives that no cost could make the cheapest. Listing
    /// them takes compile time.
    fn explores(&self) -> bool {
        true
    }
}

/// Takes the first option, unless another saves more than the decision's margin: then the cheapest,
/// the first among equals.
pub struct Cheapest;

impl Policy for Cheapest {
    fn choose(&mut self, decision: &Decision) -> usize {
        let cost = |i: usize| decision.options[i].seconds;
        let best = (0..decision.options.len())
            .min_by(|&a, &b| cost(a).total_cmp(&cost(b)))
            .unwrap_or(0);
        if cost(best) < cost(0) * (1.0 - decision.margin) {
            best
        } else {
            0
        }
    }
    fn explores(&self) -> bool {
        false
    }
}

/// Chooses as [`Cheapest`] does, but has all alternatives listed, for reports.
pub struct Listed;

impl Policy for Listed {
    fn choose(&mut self, decision: &Decision) -> usize {
        Cheapest.choose(decision)
    }
}

/// Takes any option by a seeded generator, for tests.
pub struct Perturb {
    seed: u64,
    state: u64,
}

impl Perturb {
    /// A generator with that seed, which must not be 0.
    pub fn new(seed: u64) -> Perturb {
        Perturb { seed, state: seed }
    }
    /// One step of xorshift64.
    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state
    }
}

impl Policy for Perturb {
    fn choose(&mut self, decision: &Decision) -> usize {
        let number = match decision.everywhere {
            // FNV-1a of the key, then two generator steps to spread it.
            true => {
                let mixed = decision.key().bytes().fold(self.seed, |h, b| {
                    (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
                });
                let mut own = Perturb::new(mixed | 1);
                own.next();
                own.next()
            }
            false => self.next(),
        };
        (number % decision.options.len() as u64) as usize
    }
}

/// A policy together with the log of its choices.
pub struct Decider<'a> {
    /// Answers decisions without a tuned plan.
    pub policy: &'a mut dyn Policy,
    /// Plans that a tuner found, by [`Decision::key`]. A plan that is among the
    /// options overrides the policy.
    pub plans: &'a BTreeMap<String, String>,
    /// Decisions made so far, in order.
    pub log: Vec<Decision>,
}

impl Decider<'_> {
    /// Whether to list alternatives there that no cost could make the cheapest.
    pub fn explores(&self, decision: &Decision) -> bool {
        self.policy.explores() || !self.plans.is_empty() && self.plans.contains_key(&decision.key())
    }
    /// Answers a decision, logs it and returns the index of the chosen option.
    pub fn choose(&mut self, mut decision: Decision) -> usize {
        let found = self.plans.get(&decision.key());
        let tuned = found.and_then(|plan| {
            decision
                .options
                .iter()
                .position(|o| !plan.is_empty() && o.plan == *plan)
        });
        decision.chosen = match tuned {
            Some(tuned) => tuned,
            None if decision.options.len() == 1 => 0,
            None => self
                .policy
                .choose(&decision)
                .min(decision.options.len() - 1),
        };
        decision.asked = true;
        let chosen = decision.chosen;
        self.log.push(decision);
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn margins_are_fractions_of_kinds_that_there_are() {
        let single = [
            "alternatives",
            LAYOUT,
            "product",
            "attention",
            "staged-attention",
            "workgroup",
            "stages",
            "nest",
            "launch",
        ];
        for (&kind, &part) in MARGIN_OF.iter() {
            let of_pair = Pair::ALL.iter().any(|pair| pair.kind == kind);
            assert!(of_pair || single.contains(&kind), "{kind}");
            assert!(part > 0.0 && part <= 1.0, "{kind} {part}");
        }
        assert_eq!(
            margin("launch"),
            Decision::new("launch", String::new(), vec![]).margin
        );
    }

    #[test]
    fn a_line_tells_a_plan_where_it_says_more_than_its_name() {
        let workgroup = Alternative {
            name: "rows",
            plan: "workgroup: a0 global".into(),
            seconds: 1e-6,
        };
        let decision = Decision::new("workgroup", "f sum [8]".into(), vec![workgroup]);
        assert_eq!(
            decision.explain(),
            "workgroup f sum [8]: *rows (workgroup: a0 global) 1.00 us"
        );
        let place = PLACE.at("f Reduce [8]".into(), [2e-6, 1e-6]);
        assert_eq!(
            place.explain(),
            "place f Reduce [8]: *buffer 2.00 us, fuse 1.00 us"
        );
    }

    #[test]
    fn a_tuned_decision_overrides_the_cost() {
        let plans = BTreeMap::from([("place f Reduce [8]".to_owned(), "place: buffer".to_owned())]);
        let mut decider = Decider {
            policy: &mut Cheapest,
            plans: &plans,
            log: vec![],
        };
        assert_eq!(
            decider.choose(PLACE.at("f Reduce [8]".into(), [2e-6, 1e-6])),
            0
        );
        assert_eq!(
            decider.choose(PLACE.at("f Reduce [9]".into(), [2e-6, 1e-6])),
            1
        );
        assert_eq!(
            decider.choose(RECOMPUTE_OR_STORE.at("f Reduce [8]".into(), [2e-6, 1e-6])),
            1
        );
    }

    #[test]
    fn a_decision_is_of_the_function_that_its_site_begins_with() {
        for (key, function, is_its) in [
            ("place f.one Reduce [8]", "f.one", true),
            ("place f.one Reduce [8]", "f", false),
            ("place f.one Reduce [8]", "f.one Reduce", true),
            ("shapes f.one of 8 KiB", "f.one", true),
            ("workgroup f", "f", true),
            ("layout q4_0 [8, 32]", "f", true),
            ("", "f", false),
        ] {
            assert_eq!(
                Decision::is_of(key, function),
                is_its,
                "{key} of {function}"
            );
        }
    }
}
