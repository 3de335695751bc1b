//! Priced choices. A choice that has several legal answers is a [`Decision`], by whatever pass it is made, answered by a [`Policy`]: the heuristic, the perturbing policy of the tests (any legal choice
//! must be correct) and the tuner are then one mechanism, and `gristmill kernels` prints what was decided and why. By kind: `alternatives`, `scatter`, `attention`, `factor`, `layout`, `product`, `place`, `exchange`, `kept`, `reuse`,
//! `merge`, `shapes`, `workgroup`, `stages`, `nest`, `launch`.
//!
//! What is no decision follows from facts and measured constants: whether the tokens of a prompt share rows (`tokens_share`), its keys are rounded (`rounded_keys`) and weights that are read across their
//! rows are copied (`dequantise_transposed.rs`), in which chunks a recurrence goes, and what flags switch off (`uop/src/target.rs`).

use std::collections::BTreeMap;

/// Something that can be chosen.
#[derive(Clone, PartialEq, Debug)]
pub struct Alternative {
    /// Its name among the alternatives of its kind of decision.
    pub name: &'static str,
    /// The plan that it is, as text; empty where the name says all.
    pub plan: String,
    /// Its price in seconds.
    pub seconds: f64,
}

impl Alternative {
    /// One whose name says all.
    pub fn named(name: &'static str, seconds: f64) -> Alternative {
        Alternative { name, plan: String::new(), seconds }
    }
}

/// A kind of decision between two alternatives that are told by their names, the heuristic's first: `place: fuse` is the text of one.
pub struct Pair {
    /// What is decided.
    pub kind: &'static str,
    /// The alternatives.
    pub names: [&'static str; 2],
}

/// Has an intermediate a buffer, or is it computed inside the kernels that read it?
pub const PLACE: Pair = Pair { kind: "place", names: ["buffer", "fuse"] };
/// Has what is computed in a kernel the buffer that the kernel's result has, which readers compute then?
pub const SWAP_MATERIALISED: Pair = Pair { kind: "exchange", names: ["outer", "inner"] };
/// Do several kernels in a row all compute what is fused into them, or read what the first of them stores?
pub const RECOMPUTE_OR_STORE: Pair = Pair { kind: "reuse", names: ["fuse", "reuse"] };
/// Have kernels without a path between them launches of their own?
pub const LAUNCH_FUSION: Pair = Pair { kind: "merge", names: ["apart", "together"] };
/// Does a factor of all terms of a sum, as a norm has it, multiply the sum or the terms?
pub const DEFER_NORM_SCALE: Pair = Pair { kind: "factor", names: ["behind", "before"] };
/// Are workgroups that are few as large as proposed?
pub const SHAPES: Pair = Pair { kind: "shapes", names: ["proposed", "smaller"] };

impl Pair {
    /// All of them.
    pub const ALL: [Pair; 6] = [DEFER_NORM_SCALE, PLACE, SWAP_MATERIALISED, RECOMPUTE_OR_STORE, LAUNCH_FUSION, SHAPES];

    /// The text of an alternative.
    fn plan(&self, name: &str) -> String {
        format!("{}: {name}", self.kind)
    }
    /// The decision at a site between alternatives of these prices.
    pub fn at(&self, site: String, seconds: [f64; 2]) -> Decision {
        let options = self.names.into_iter().zip(seconds);
        let options = options.map(|(name, seconds)| Alternative { name, plan: self.plan(name), seconds }).collect();
        Decision::new(self.kind, site, options)
    }
    /// Is that the text of one of its alternatives?
    pub fn has(&self, plan: &str) -> bool {
        self.names.iter().any(|name| self.plan(name) == plan.trim())
    }
}

/// Sites of one function that would have one name, told apart by their order: `site`, `site #2`.
#[derive(Default)]
pub struct Alike(BTreeMap<String, usize>);

impl Alike {
    /// That name, or with its number behind it if it was given before.
    pub fn name(&mut self, name: String) -> String {
        let number = self.0.entry(name.clone()).or_default();
        *number += 1;
        if *number == 1 { name } else { format!("{name} #{number}") }
    }
}

/// The kind of decision on how a weight lies, which serves all functions.
pub const LAYOUT: &str = "layout";

/// A choice between alternatives, each with a price in seconds.
#[derive(Clone, Debug)]
pub struct Decision {
    /// What is decided: `place`, `product`, `workgroup`.
    pub kind: &'static str,
    /// Where: the kernel or the node, `%12 Reduce [16, 64]`.
    pub site: String,
    /// What could be chosen, the heuristic's choice first; illegal options are not listed.
    pub options: Vec<Alternative>,
    /// The part of the first option's price that another must save: prices are estimates.
    pub margin: f64,
    /// What was chosen.
    pub chosen: usize,
    /// Was anybody asked? Some choices follow from others, and are only told.
    pub asked: bool,
    /// Is it made again in other functions, which must come to the same answer? Then that follows from its key and its options.
    pub everywhere: bool,
}

impl Decision {
    /// That has not been answered yet: the first option.
    pub fn new(kind: &'static str, site: String, options: Vec<Alternative>) -> Decision {
        Decision { kind, site, options, margin: 0.0, chosen: 0, asked: false, everywhere: false }
    }
    /// The decision's name in a table of plans.
    pub fn key(&self) -> String {
        format!("{} {}", self.kind, self.site)
    }
    /// May a decision of that name be made in the function of that [full name](gristmill_uop::function::Function::full_name)? Sites begin with it, but for those of how weights lie.
    pub fn is_of(key: &str, function: &str) -> bool {
        let (kind, site) = key.split_once(' ').unwrap_or((key, ""));
        kind == LAYOUT || site.strip_prefix(function).is_some_and(|rest| rest.starts_with(' ') || rest.is_empty())
    }
    /// One line: the site, the choice, the prices.
    pub fn explain(&self) -> String {
        let says_more =
            |of: &Alternative| !of.plan.is_empty() && of.plan.split_once(": ").is_none_or(|plan| plan.1 != of.name);
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

/// How often each alternative of each kind of decision could be chosen, and was.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Count {
    /// Decisions that offered it.
    pub offered: usize,
    /// Decisions that took it.
    pub taken: usize,
}

/// The alternatives of these decisions by kind and name: which were ever taken.
pub fn counts<'a>(decisions: impl IntoIterator<Item = &'a Decision>) -> BTreeMap<(&'static str, &'static str), Count> {
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

/// Answers decisions.
pub trait Policy {
    /// The index of the chosen option; there is one at least.
    fn choose(&mut self, decision: &Decision) -> usize;
    /// Is it asked about alternatives, too, that no price could make the cheapest? To list them takes time.
    fn explores(&self) -> bool {
        true
    }
}

/// The first option, unless another is cheaper by more than the decision's margin: then the cheapest, the first of equals.
pub struct Cheapest;

impl Policy for Cheapest {
    fn choose(&mut self, decision: &Decision) -> usize {
        let cost = |i: usize| decision.options[i].seconds;
        let best = (0..decision.options.len()).min_by(|&a, &b| cost(a).total_cmp(&cost(b))).unwrap_or(0);
        if cost(best) < cost(0) * (1.0 - decision.margin) { best } else { 0 }
    }
    fn explores(&self) -> bool {
        false
    }
}

/// Chooses as [`Cheapest`] does, and has all alternatives listed: for whoever reads them.
pub struct Listed;

impl Policy for Listed {
    fn choose(&mut self, decision: &Decision) -> usize {
        Cheapest.choose(decision)
    }
}

/// Any option, by a seeded generator: for tests.
pub struct Perturb {
    seed: u64,
    state: u64,
}

impl Perturb {
    /// With any seed but 0.
    pub fn new(seed: u64) -> Perturb {
        Perturb { seed, state: seed }
    }
    /// xorshift64
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
            // FNV-1a of the key, and a few steps that spread it.
            true => {
                let mixed =
                    decision.key().bytes().fold(self.seed, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
                let mut own = Perturb::new(mixed | 1);
                own.next();
                own.next()
            }
            false => self.next(),
        };
        (number % decision.options.len() as u64) as usize
    }
}

/// A policy together with the record of what it chose.
pub struct Decider<'a> {
    /// Who answers.
    pub policy: &'a mut dyn Policy,
    /// Plans that a tuner found, by [`Decision::key`]: taken where they are among the options.
    pub plans: &'a BTreeMap<String, String>,
    /// What was decided so far.
    pub log: Vec<Decision>,
}

impl Decider<'_> {
    /// Are alternatives wanted there that no price could make the cheapest?
    pub fn explores(&self, decision: &Decision) -> bool {
        self.policy.explores() || !self.plans.is_empty() && self.plans.contains_key(&decision.key())
    }
    /// Asks, and remembers the answer.
    pub fn choose(&mut self, mut decision: Decision) -> usize {
        let found = self.plans.get(&decision.key());
        let tuned = found.and_then(|plan| decision.options.iter().position(|o| !plan.is_empty() && o.plan == *plan));
        decision.chosen = match tuned {
            Some(tuned) => tuned,
            None if decision.options.len() == 1 => 0,
            None => self.policy.choose(&decision).min(decision.options.len() - 1),
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
    fn a_line_tells_a_plan_where_it_says_more_than_its_name() {
        let workgroup = Alternative { name: "rows", plan: "workgroup: a0 global".into(), seconds: 1e-6 };
        let decision = Decision::new("workgroup", "f sum [8]".into(), vec![workgroup]);
        assert_eq!(decision.explain(), "workgroup f sum [8]: *rows (workgroup: a0 global) 1.00 us");
        let place = PLACE.at("f Reduce [8]".into(), [2e-6, 1e-6]);
        assert_eq!(place.explain(), "place f Reduce [8]: *buffer 2.00 us, fuse 1.00 us");
    }

    #[test]
    fn what_a_tuner_left_is_chosen_against_the_price() {
        let plans = BTreeMap::from([("place f Reduce [8]".to_owned(), "place: buffer".to_owned())]);
        let mut decider = Decider { policy: &mut Cheapest, plans: &plans, log: vec![] };
        assert_eq!(decider.choose(PLACE.at("f Reduce [8]".into(), [2e-6, 1e-6])), 0);
        assert_eq!(decider.choose(PLACE.at("f Reduce [9]".into(), [2e-6, 1e-6])), 1);
        assert_eq!(decider.choose(RECOMPUTE_OR_STORE.at("f Reduce [8]".into(), [2e-6, 1e-6])), 1);
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
            assert_eq!(Decision::is_of(key, function), is_its, "{key} of {function}");
        }
    }
}
