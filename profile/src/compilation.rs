//! How the functions of a model became kernels, as strings and numbers.

use crate::recording::Stage;
use serde::ser::{Serialize, SerializeTuple, Serializer};

/// Of a model.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Compilation {
    /// Which.
    pub model: String,
    /// For which machine, in a line.
    pub machine: String,
    /// The ops that nodes have, each with its class and a line of documentation.
    pub ops: Vec<[&'static str; 3]>,
    /// The passes that graphs were seen after, each with what it does.
    pub passes: Vec<[&'static str; 2]>,
    /// The functions.
    pub functions: Vec<Function>,
}

/// A function and what became of it.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Function {
    /// Its name, which no other has.
    pub name: String,
    /// Calls of a step.
    pub calls: usize,
    /// Modelled seconds of a call, launches of one level side by side.
    pub seconds: f64,
    /// Bytes of intermediates.
    pub arena: usize,
    /// What its slots are: name, kind, dims and storage.
    pub slots: Vec<String>,
    /// The nodes of all passes, each once.
    pub nodes: Vec<Node>,
    /// Its graph after each pass, the first as it was captured.
    pub passes: Vec<Pass>,
    /// What was decided.
    pub decisions: Vec<Decision>,
    /// Its kernels, by launch.
    pub kernels: Vec<Kernel>,
    /// What else there is to read of it.
    pub stages: Vec<Stage>,
}

/// A node of a function's graph: a tuple, as there are thousands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its number, one in all passes.
    pub number: u32,
    /// Which of the ops.
    pub op: usize,
    /// Its type.
    pub dtype: String,
    /// Its dims, where it is a tensor.
    pub shape: String,
    /// What it carries beside its sources.
    pub argument: String,
    /// Numbers of its sources.
    pub sources: Vec<u32>,
}

impl Serialize for Node {
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

/// The graph after a pass.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Pass {
    /// Which of the passes.
    pub pass: usize,
    /// Numbers of the nodes that are asked for; the others follow.
    pub roots: Vec<u32>,
    /// The rules that fired in it.
    pub rules: Vec<Rule>,
}

/// A rule that fired in a pass.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Rule {
    /// Its mathematics.
    pub name: &'static str,
    /// How often.
    pub times: u32,
    /// A few cases: what was asked for, and what there is instead.
    pub examples: Vec<[String; 2]>,
}

/// A priced choice.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Decision {
    /// What is decided.
    pub kind: &'static str,
    /// Of what.
    pub site: String,
    /// The part of the first option's price that another must save.
    pub margin: f64,
    /// Which was chosen.
    pub chosen: usize,
    /// Was anybody asked? Some choices follow from others.
    pub asked: bool,
    /// What could be chosen.
    pub options: Vec<Choice>,
}

/// What could be chosen.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Choice {
    /// Its name.
    pub name: &'static str,
    /// The plan that it is; empty where the name says all.
    pub plan: String,
    /// Its price; 0 where none is known.
    pub seconds: f64,
}

/// A launch of a function.
#[derive(Clone, PartialEq, Debug, serde::Serialize)]
pub struct Kernel {
    /// Its symbol.
    pub name: String,
    /// Launches of one level are independent.
    pub level: usize,
    /// What it computes, in a few words.
    pub about: String,
    /// Modelled seconds.
    pub seconds: f64,
    /// Bytes of weights that it reads.
    pub weight_bytes: f64,
    /// Other bytes that it reads and writes.
    pub other_bytes: f64,
    /// Multiplications and additions.
    pub operations: f64,
    /// How it is computed: a plan for each of its bodies, and how it is launched.
    pub plans: Vec<String>,
    /// From the first to the last.
    pub stages: Vec<Stage>,
}
