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
    ("captured", "the captured function, before any pass"),
    ("alternatives", "the cheapest form that rewrite rules reach"),
    (
        "scan",
        "recurrences become one state update, or matrix products per chunk of tokens",
    ),
    (
        "scatter",
        "scatter_add becomes comparisons, a sequential loop or atomic additions",
    ),
    (
        "attention",
        "attention becomes chunked softmax in ordinary ops",
    ),
    (
        "factors",
        "a norm's scale is deferred past the matrix products that read its rows",
    ),
    (
        "int8",
        "products with quantised weights use quantised activations (int8)",
    ),
    ("outputs", "every output becomes a separate node"),
    (
        "schedule",
        "kernels are formed: buffers, fusion and tiling are chosen",
    ),
    (
        "map",
        "ranges become workgroups, lanes, registers and loops",
    ),
];
