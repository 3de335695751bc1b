//! Record of a model's compilation, from functions to kernels, as strings and numbers.

use crate::recording::StageText;
use serde::ser::{Serialize, SerializeTuple, Serializer};

/// Compilation of one model for one machine.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Compilation {
    /// Name of the model.
    pub model: String,
    /// Target machine, described in one line.
    pub machine: String,
    /// Ops that occur in nodes: name, class, and a line of documentation.
    pub ops: Vec<[&'static str; 3]>,
    /// Passes after which graphs were recorded: name and description.
    pub passes: Vec<[&'static str; 2]>,
    /// Compiled functions, one per kind of layer.
    pub functions: Vec<Function>,
}

/// A compiled function: its graphs, decisions and kernels.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Function {
    /// Name of the function, unique in the compilation.
    pub name: String,
    /// Number of calls per step.
    pub calls: usize,
    /// Modelled seconds of a call, with the launches of one level running in parallel.
    pub seconds: f64,
    /// Size of the intermediates, bytes.
    pub arena: usize,
    /// Slots of the function: name, kind, dims and storage.
    pub slots: Vec<String>,
    /// Nodes of all passes, without duplicates.
    pub nodes: Vec<NodeRecord>,
    /// Graph after each pass; the first is the captured graph.
    pub passes: Vec<Pass>,
    /// Decisions made while compiling it.
    pub decisions: Vec<DecisionRecord>,
    /// Kernels in launch order.
    pub kernels: Vec<KernelRecord>,
    /// Text of the function at each stage.
    pub stages: Vec<StageText>,
}

/// A node of a function's graph. Serialised as a tuple, because there are thousands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeRecord {
    /// Number of the node, the same in all passes.
    pub number: u32,
    /// Index into [`Compilation::ops`].
    pub op: usize,
    /// Data type of the node.
    pub dtype: String,
    /// Dims of a tensor; empty otherwise.
    pub shape: String,
    /// Argument of the op, other than its sources.
    pub argument: String,
    /// Numbers of its sources.
    pub sources: Vec<u32>,
}

impl Serialize for NodeRecord {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut row = serializer.serialize_tuple(6)?;
        row.serialize_element(&self.number)?;
        row.serialize_element(&self.op)?;
        row.serialize_element(&self.dtype)?;
        row.serialize_element(&self.shape)?;
        row.serialize_element(&self.argument)?;
        row.serialize_element(&self.sources)?;
        row.end()
    }
}

/// Graph of a function after a pass.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Pass {
    /// Index into [`Compilation::passes`].
    pub pass: usize,
    /// Numbers of the root nodes; the others are reachable from them.
    pub roots: Vec<u32>,
    /// Rules that fired in the pass.
    pub rules: Vec<RuleRecord>,
}

/// A rewrite rule that fired in a pass.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct RuleRecord {
    /// Name of the rule: its mathematics, as in `x + 0 -> x`.
    pub name: &'static str,
    /// Number of times that it fired.
    pub times: u32,
    /// Some applications of the rule: expression before and after.
    pub examples: Vec<[String; 2]>,
}

/// A decision with the costs of its candidates.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct DecisionRecord {
    /// Kind of the decision.
    pub kind: &'static str,
    /// Site in the function that it concerns.
    pub site: String,
    /// Fraction of the first option's cost that another option must save to be chosen.
    pub margin: f64,
    /// Index of the chosen option.
    pub chosen: usize,
    /// Whether a policy was consulted; false if the choice follows from others.
    pub asked: bool,
    /// Candidates of the decision.
    pub options: Vec<AlternativeRecord>,
}

/// A candidate of a decision.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct AlternativeRecord {
    /// Name of the candidate.
    pub name: &'static str,
    /// Plan of the candidate; empty if the name is sufficient.
    pub plan: String,
    /// Modelled cost in seconds; 0 if unknown.
    pub seconds: f64,
}

/// A kernel launch of a function.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct KernelRecord {
    /// Symbol of the kernel.
    pub name: String,
    /// Launch level; launches of one level are independent.
    pub level: usize,
    /// Short description of the computation.
    pub about: String,
    /// Modelled seconds of the launch.
    pub seconds: f64,
    /// Bytes of weights read by the launch.
    pub weight_bytes: f64,
    /// Other bytes read and written by the launch.
    pub other_bytes: f64,
    /// Multiplications and additions of the launch.
    pub operations: f64,
    /// One plan per body of the kernel, and its launch configuration.
    pub plans: Vec<String>,
    /// Text of the kernel at each stage, in compilation order.
    pub stages: Vec<StageText>,
}
