//! The intermediate representation: dtypes, ops, the hash-consed graph, rules, text form, programs
//! and targets.

pub mod adapter;
mod bounds;
mod build;
pub mod clock;
pub mod concurrent;
pub mod costs;
pub mod custom;
mod decode;
pub mod dtype;
pub mod encoding;
pub mod expression;
pub mod facts;
pub mod features;
pub mod fold;
pub mod fragment;
pub mod function;
pub mod graph;
mod id;
mod interned;
pub mod launch;
pub mod linear;
pub mod link;
pub mod machine;
pub mod measured;
pub mod node;
pub mod op;
mod paged;
pub mod program;
mod rewrite;
pub mod rows;
pub mod rules;
pub mod shape;
pub mod spec;
pub mod target;
pub mod text;
mod visited;

pub use dtype::{DType, Scalar};
pub use encoding::{Encoding, EncodingRef};
pub use graph::Graph;
pub use id::Id;
pub use node::{Arg, Axes, Node, Sources};
pub use op::{Op, RangeKind, ReduceOp};
