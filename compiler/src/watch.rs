//! Looking on while a function is compiled.

use gristmill_uop::{Graph, Id};

/// Somebody who sees a function between its passes.
pub trait Watch {
    /// The graph after that pass: what the function computes is `roots`, and after the schedule the nests of its kernels. A graph only grows, so a node has
    /// one number in all passes. It may have the graph keep cases of rules (`Graph::keep_examples`).
    fn pass(&mut self, name: &'static str, graph: &mut Graph, roots: &[Id]);
}

/// Nobody.
impl Watch for () {
    fn pass(&mut self, _: &'static str, _: &mut Graph, _: &[Id]) {}
}

/// Every pass that is seen, in order, and what it does. The first is the function as it was captured.
pub const PASSES: &[(&str, &str)] = &[
    ("captured", "the function as the model wrote it"),
    ("alternatives", "the form whose price is least, of those that rules lead to"),
    ("scan", "recurrences become one step of their state, or products by chunks of tokens"),
    ("scatter", "rows are added by comparison, one after the other, or by additions that exclude one another"),
    ("attention", "attention becomes chunked softmax in ordinary ops"),
    ("factors", "a norm's factor goes behind the products that read its row"),
    ("int8", "products with packed weights take their integer form"),
    ("outputs", "every output has a node of its own"),
    ("schedule", "kernels are cut: what has a buffer, what is fused, in which shape"),
    ("map", "ranges become workgroups, lanes, registers and loops"),
];
