//! What rules have changed, for whoever looks on: a few cases of each.

use crate::graph::Graph;
use crate::id::Id;
use crate::node::Node;

/// Cases of each rule that are kept.
const CASES: usize = 3;

/// Keeps a case of the rule of that number, where cases are wanted.
pub(super) fn keep(g: &mut Graph, number: usize, node: &Node, result: Id) {
    let Some(examples) = &mut g.examples else { return };
    if examples.len() <= number {
        examples.resize(number + 1, Vec::new());
    }
    let cases = &mut examples[number];
    if cases.len() < CASES && cases.iter().all(|case| case.0 != *node) {
        cases.push((node.clone(), result));
    }
}

impl Graph {
    /// Keeps cases of the rules that fire from now on, and none of before.
    pub fn keep_examples(&mut self) {
        self.examples = Some(Box::default());
    }
}
