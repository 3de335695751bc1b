//! Recording of rule applications for inspection: a few examples per rule.

use crate::graph::Graph;
use crate::id::Id;
use crate::node::Node;

/// Examples kept per rule.
const CASES: usize = 3;

/// Records an application of the rule with that number, if recording is enabled.
pub(super) fn keep(g: &mut Graph, number: usize, node: &Node, result: Id) {
    let Some(examples) = &mut g.examples else {
        return;
    };
    if examples.len() <= number {
        examples.resize(number + 1, Vec::new());
    }
    let cases = &mut examples[number];
    if cases.len() < CASES && cases.iter().all(|case| case.0 != *node) {
        cases.push((node.clone(), result));
    }
}

impl Graph {
    /// Starts recording rule applications and discards earlier ones.
    pub fn keep_examples(&mut self) {
        self.examples = Some(Box::default());
    }
}
