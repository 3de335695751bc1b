//! Programs, the interface between `compiler` and `runtime`: a kernel's text, signature, launch
//! dimensions and cost estimates.

use crate::features::Features;
use crate::graph::Graph;
use crate::id::Id;
use crate::launch::LaunchPlan;
use std::sync::Arc;

/// Access of a kernel to one of its buffers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Only reads the buffer.
    Read,
    /// Only writes the buffer.
    Write,
    /// Reads and writes the buffer (a state).
    ReadWrite,
}

/// Bytes of a buffer that a kernel may access, from its start. A device checks
/// bound buffers against it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Extent {
    /// Independent of variables: a symbolic dim counts as its largest value.
    Fixed(usize),
    /// Proportional to a variable: the bound buffer limits the variable's value.
    Per {
        /// Name of the variable.
        variable: Arc<str>,
        /// Bytes per unit of the variable.
        bytes: usize,
    },
}

/// A buffer argument of a kernel.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Param {
    /// Slot: the number in `Arg::Param` or `Arg::Packed` of the program's graph.
    pub slot: u32,
    /// Access of the kernel to the buffer.
    pub access: Access,
    /// Bytes that may be accessed.
    pub extent: Extent,
}

impl Param {
    /// Number of bindings for this argument on a machine with bindings of at most `largest` bytes.
    /// A longer read-only buffer is split into consecutive pieces.
    pub fn pieces(&self, largest: usize) -> usize {
        match self.extent {
            Extent::Fixed(bytes) if self.access == Access::Read => bytes.div_ceil(largest).max(1),
            _ => 1,
        }
    }
}

/// Memory traffic and operations of one launch, with every variable at its largest value.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Estimate {
    /// Bytes of packed weights read, each counted once.
    pub weight_bytes: f64,
    /// Other bytes read and written, each counted once.
    pub other_bytes: f64,
    /// Number of multiplications and additions.
    pub operations: f64,
}

/// Conditions on workgroups: nodes of the kernel's graph over variables and workgroup indices.
#[derive(Clone, Copy, Default, Debug)]
pub struct When {
    /// If true, the workgroup's results are not read, and it exits early.
    pub skip: Option<Id>,
    /// Set if nest 0 is a prologue before the wait for predecessor kernels. If true, everything
    /// that it reads predates this step; if false, nest 1 reloads the rows written by this
    /// step, after the wait.
    pub prologue: Option<Id>,
    /// Each workgroup requests more than half of a processor unit's shared memory, so that two
    /// never share a unit. Two on one unit, with other units idle, take twice the time: GLM at
    /// context depth 4,096 did 384 tokens per second with two, 477 with one (docs/experiments/043).
    pub exclusive: bool,
}

/// Inputs of lowering in addition to the kernel's graph and the machine.
#[derive(Clone, Debug, Default)]
pub struct KernelContext {
    /// Conditions on the workgroups of each body.
    pub when: Vec<When>,
    /// Launch plan for a GPU.
    pub plan: LaunchPlan,
    /// Slots with interleaved rows, which are read as one stream.
    pub streams: Vec<u32>,
}

/// A kernel, ready to be compiled by a device.
///
/// A device runs `body` for every workgroup `0..groups`. On a CPU, a worker runs contiguous
/// intervals of them. The kernel's text is then a function `void NAME(void *const *buffers, const
/// int64_t *vars, int64_t first, int64_t end, void *scratch, bool staged)` where `buffers` is in
/// the order of `params` and `vars` in the order of `vars`. `scratch` points to `scratch` bytes,
/// 64-byte aligned, that belong to the calling worker and need no initialisation. `staged` is true
/// if the worker's previous call was of the same launch and ended with this call's body: stages
/// that do not depend on the workgroup are then still in `scratch`.
#[derive(Clone, Debug)]
pub struct Program {
    /// Symbol of the kernel, unique within its schedule: `e_` or `r_`, a description, and a number.
    pub name: String,
    /// Text in the device's dialect; empty for devices that interpret `graph`.
    pub source: String,
    /// Graph of the kernel level.
    pub graph: Arc<Graph>,
    /// Root in `graph`: an `Op::Kernel`.
    pub root: Id,
    /// Buffer arguments, in binding order.
    pub params: Vec<Param>,
    /// Variables that it reads, in the order of its `vars` argument.
    pub vars: Vec<Arc<str>>,
    /// Conditions and plan used by lowering.
    pub context: KernelContext,
    /// Number of workgroups: an index expression of `graph` over its variables.
    pub groups: Id,
    /// Workgroups of each body, in order; empty if there is only one body.
    pub bodies: Vec<BodySize>,
    /// Threads per workgroup; 1 if a workgroup is part of one thread's work.
    pub threads: usize,
    /// Scratch per CPU worker, or shared memory per GPU workgroup, bytes.
    pub scratch: usize,
    /// Memory traffic and operations per launch.
    pub estimate: Estimate,
    /// Seconds per launch, by the cost model.
    pub seconds: f64,
    /// What these seconds consist of.
    pub features: Features,
    /// Short description for display: the weights that it reads, and a summary of its operations.
    pub title: String,
    /// Nodes of its function that it computes, with their shapes.
    pub notes: Vec<String>,
}

impl Program {
    /// Builds a single-threaded program without arguments, text or estimate; callers fill these in.
    pub fn new(name: &str, graph: Arc<Graph>, root: Id, groups: Id) -> Program {
        Program {
            name: name.into(),
            source: String::new(),
            graph,
            root,
            params: Vec::new(),
            vars: Vec::new(),
            context: KernelContext::default(),
            groups,
            bodies: Vec::new(),
            threads: 1,
            scratch: 0,
            estimate: Estimate::default(),
            seconds: 0.0,
            features: Features::default(),
            title: String::new(),
            notes: Vec::new(),
        }
    }
}

/// Workgroups of one body of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct BodySize {
    /// Number of workgroups: an index expression of the program's graph over its variables.
    pub groups: Id,
    /// Seconds of one workgroup on a core or multiprocessor, by the cost model.
    pub seconds: f64,
}

impl Graph {
    /// Evaluates an index expression (constants, variables, integer arithmetic)
    /// for the given variables.
    pub fn evaluate_index(&self, id: Id, vars: &dyn Fn(&str) -> Option<i64>) -> Option<i64> {
        use crate::fold::{self, Value};
        use crate::node::Arg;
        use crate::op::Op;
        let node = &self[id];
        match (&node.op, &node.arg) {
            (Op::Const, Arg::Int(v)) => Some(*v),
            (Op::Var, Arg::Var(name, ..)) => vars(name),
            _ => {
                let x: Option<Vec<Value>> = node
                    .src
                    .iter()
                    .map(|&s| self.evaluate_index(s, vars).map(Value::Int))
                    .collect();
                fold::apply(node.op, &x?, node.dtype.scalar).map(Value::int)
            }
        }
    }
}
