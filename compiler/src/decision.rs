//! Priced choices. Every choice of the compiler, wherever it is made, is a [`Decision`] answered by a [`Policy`]: the
//! heuristic, the perturbing policy of the tests (any legal choice must be correct), the tuner and the ablation flags are
//! then one mechanism, and `gristmill kernels` prints what was decided and why.

/// A choice between options, each with a price in seconds.
#[derive(Clone, Debug)]
pub struct Decision {
    /// Where: the pass and the node, `place %12 Reduce [16, 64]`.
    pub site: String,
    /// What could be chosen, with its price in seconds; illegal options are not listed.
    pub options: Vec<(String, f64)>,
    /// What was chosen.
    pub chosen: usize,
}

impl Decision {
    /// One line: the site, the choice, the prices.
    pub fn explain(&self) -> String {
        let options: Vec<String> = self
            .options
            .iter()
            .enumerate()
            .map(|(i, (name, price))| {
                format!("{}{name} {:.2} us", if i == self.chosen { "*" } else { "" }, price * 1e6)
            })
            .collect();
        format!("{}: {}", self.site, options.join(", "))
    }
}

/// Answers decisions.
pub trait Policy {
    /// The index of the chosen option; `options` is not empty.
    fn choose(&mut self, site: &str, options: &[(String, f64)]) -> usize;
}

/// The cheapest option, the first of equals.
pub struct Cheapest;

impl Policy for Cheapest {
    fn choose(&mut self, _: &str, options: &[(String, f64)]) -> usize {
        (0..options.len()).min_by(|&a, &b| options[a].1.total_cmp(&options[b].1)).unwrap_or(0)
    }
}

/// Any option, by a seeded generator: for tests.
pub struct Perturb(
    /// The state; any seed but 0.
    pub u64,
);

impl Policy for Perturb {
    fn choose(&mut self, _: &str, options: &[(String, f64)]) -> usize {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % options.len() as u64) as usize
    }
}

/// A policy together with the record of what it chose.
pub struct Decider<'a> {
    /// Who answers.
    pub policy: &'a mut dyn Policy,
    /// What was decided so far.
    pub log: Vec<Decision>,
}

impl Decider<'_> {
    /// Asks, and remembers the answer.
    pub fn choose(&mut self, site: String, options: Vec<(String, f64)>) -> usize {
        let chosen = self.policy.choose(&site, &options).min(options.len() - 1);
        self.log.push(Decision { site, options, chosen });
        chosen
    }
}
