//! Observation of the graph between compiler passes.

use gristmill_uop::{Graph, Id};

/// An observer that receives the graph after each pass.
pub trait Watch {
    /// Receives the graph after the pass `name`. `roots` are the function's outputs, and after
    /// scheduling the nests of its kernels.
    ///
    /// A graph only grows, so a node keeps its number in all passes. The observer may make the
    /// graph record examples of rules (`Graph::keep_examples`).
    fn pass(&mut self, name: &'static str, graph: &mut Graph, roots: &[Id]);
}

impl Watch for () {
    fn pass(&mut self, _: &'static str, _: &mut Graph, _: &[Id]) {}
}

/// Name and description of every observed pass, in order. The first is the captured function.
pub const PASSES: &[(&str, &str)] = &[
    ("captured", "the function as the model wrote it"),
    (
        "alternatives",
        "the form whose price is least, of those that rules lead to",
    ),
    (
        "scan",
        "recurrences become one step of their state, or products by chunks of tokens",
    ),
    (
        "scatter",
        "rows are added by comparison, one after the other, or by additions that exclude one another",
    ),
    (
        "attention",
        "attention becomes chunked softmax in ordinary ops",
    ),
    (
        "factors",
        "a norm's factor goes behind the products that read its row",
    ),
    (
        "int8",
        "products with packed weights take their integer form",
    ),
    ("outputs", "every output has a node of its own"),
    (
        "schedule",
        "kernels are cut: what has a buffer, what is fused, in which shape",
    ),
    (
        "map",
        "ranges become workgroups, lanes, registers and loops",
    ),
];
