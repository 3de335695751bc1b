//! The intermediate representation: dtypes, ops, the hash-consed graph, rules, text form, programs and targets.

mod bounds;
mod build;
pub mod dtype;
pub mod encoding;
pub mod fold;
pub mod function;
pub mod graph;
pub mod linear;
pub mod machine;
pub mod op;
pub mod program;
pub mod rows;
pub mod rules;
pub mod shape;
pub mod spec;
pub mod target;
pub mod text;
mod visited;

pub use dtype::{DType, Scalar};
pub use encoding::{Encoding, EncodingRef};
pub use graph::{Arg, Axes, Graph, Id, Node, Sources};
pub use op::{Op, RangeKind, ReduceOp};
