//! What `compiler` makes and `runtime` runs: a kernel's text, its signature, launch dimensions and estimates.

use crate::graph::Graph;
use crate::id::Id;
use crate::launch::LaunchPlan;
use std::sync::Arc;

/// What a kernel does with one of its buffers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Access {
    /// Reads only.
    Read,
    /// Writes only.
    Write,
    /// Reads and writes (a state).
    ReadWrite,
}

/// Bytes that a kernel may touch of a buffer, from its first: what a device compares with the buffer it is given.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Extent {
    /// So many, whatever the variables are: a symbolic dim counts as its largest value.
    Fixed(usize),
    /// So many for each unit of a variable: a buffer bounds how large the variable may be.
    Per {
        /// The variable.
        variable: Arc<str>,
        /// Bytes for each unit of it.
        bytes: usize,
    },
}

/// A buffer argument of a kernel.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Param {
    /// The slot: the number of `Arg::Param` or `Arg::Packed` in the program's graph.
    pub slot: u32,
    /// What is done with it.
    pub access: Access,
    /// How much of it.
    pub extent: Extent,
}

impl Param {
    /// Buffers that a kernel is given it as, on a machine whose largest is so long: one that is only read and is longer is several, one behind the other.
    pub fn pieces(&self, largest: usize) -> usize {
        match self.extent {
            Extent::Fixed(bytes) if self.access == Access::Read => bytes.div_ceil(largest).max(1),
            _ => 1,
        }
    }
}

/// What a kernel moves and computes, for one launch with every variable at its largest value.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Estimate {
    /// Bytes of packed weights read, each once.
    pub weight_bytes: f64,
    /// Other bytes read and written, each once.
    pub other_bytes: f64,
    /// Multiplications and additions.
    pub operations: f64,
}

/// What holds for a workgroup, and when: conditions are nodes of the kernel's graph, on variables and workgroup indices.
#[derive(Clone, Copy, Default, Debug)]
pub struct When {
    /// Where it holds nobody reads what the workgroup computes, so it computes nothing.
    pub skip: Option<Id>,
    /// Nest 0 is a prologue, which runs before the kernels before have ended. Where the condition holds, all that it read is older than this step; where it does not,
    /// nest 1 loads the rows that this step has written again, after the wait.
    pub prologue: Option<Id>,
    /// A unit has room for one such workgroup, as each asks for more than half of its shared memory: two on one unit, with other units idle, take twice the time (experiments, 43: GLM behind
    /// 4,096 positions 384 tokens a second with two, 477 with one).
    pub exclusive: bool,
}

/// What a kernel's statements depend on beside its graph and its machine.
#[derive(Clone, Debug, Default)]
pub struct KernelContext {
    /// What holds for the workgroups of each body.
    pub when: Vec<When>,
    /// How a GPU runs it.
    pub plan: LaunchPlan,
    /// Slots whose rows are interleaved: they are read as one stream.
    pub streams: Vec<u32>,
}

/// One kernel, ready to be compiled by a device.
///
/// A device runs `body` for every workgroup `0..groups`. On a CPU, a worker runs contiguous intervals of them; the
/// kernel's text is a function `void NAME(void *const *buffers, const int64_t *vars, int64_t first, int64_t end, void *scratch, bool staged)`
/// where `buffers` is in the order of `params` and `vars` in the order of `vars`, and `scratch` points to `scratch` bytes, 64-byte aligned,
/// that belong to the calling worker and need no initialisation. Where `staged` holds the worker's last call was of the same launch and ended with the body that this one is of:
/// stages that depend on no workgroup are still in `scratch`.
#[derive(Clone, Debug)]
pub struct Program {
    /// Symbol of the kernel, unique within its schedule: `e_` or `r_`, what it computes, and a number.
    pub name: String,
    /// Text in the device's dialect; empty for devices that run `graph` itself.
    pub source: String,
    /// The kernel-level graph.
    pub graph: Arc<Graph>,
    /// Its root in `graph`: an `Op::Kernel`.
    pub root: Id,
    /// The buffer arguments, in their order.
    pub params: Vec<Param>,
    /// Names of the variables it reads, in the order of its `vars` argument.
    pub vars: Vec<Arc<str>>,
    /// What its statements depend on beside them.
    pub context: KernelContext,
    /// Number of workgroups: an index expression of `graph` over its variables.
    pub groups: Id,
    /// Whose workgroups these are, one body's after the other's; empty where all are of one.
    pub bodies: Vec<BodySize>,
    /// Threads of a workgroup; 1 where a workgroup is part of one thread's work.
    pub threads: usize,
    /// Bytes of scratch one worker needs; of a workgroup of threads, what they share.
    pub scratch: usize,
    /// What it moves and computes.
    pub estimate: Estimate,
    /// Seconds of one launch, by the cost model.
    pub seconds: f64,
    /// What it computes, for people: the weights that it reads, and what its operations add up to.
    pub title: String,
    /// The nodes of its function that it computes, with their shapes.
    pub notes: Vec<String>,
}

impl Program {
    /// One without arguments, text or estimate, of one thread: what these are is said on top of it.
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
            title: String::new(),
            notes: Vec::new(),
        }
    }
}

/// The workgroups of one body of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct BodySize {
    /// Their number: an index expression of the program's graph over its variables.
    pub groups: Id,
    /// Seconds of a core, or a multiprocessor, for one of them, by the cost model.
    pub seconds: f64,
}

impl Graph {
    /// Value of an index expression (constants, variables, integer arithmetic) for the given variables.
    pub fn evaluate_index(&self, id: Id, vars: &dyn Fn(&str) -> Option<i64>) -> Option<i64> {
        use crate::fold::{self, Value};
        use crate::node::Arg;
        use crate::op::Op;
        let node = &self[id];
        match (&node.op, &node.arg) {
            (Op::Const, Arg::Int(v)) => Some(*v),
            (Op::Var, Arg::Var(name, ..)) => vars(name),
            _ => {
                let x: Option<Vec<Value>> =
                    node.src.iter().map(|&s| self.evaluate_index(s, vars).map(Value::Int)).collect();
                fold::apply(node.op, &x?, node.dtype.scalar).map(Value::int)
            }
        }
    }
}
