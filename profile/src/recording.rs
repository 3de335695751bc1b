//! What was measured, and of what.

use gristmill_runtime::Span;

/// What a machine can do at most.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limits {
    /// Bytes a second that its memory delivers when it is only read; none where that cannot be measured.
    pub bandwidth: Option<f64>,
    /// Operations a second, as the cost model has it.
    pub operations: f64,
    /// Workers.
    pub workers: usize,
}

/// A kernel, or a function, on its way to text.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Stage {
    /// What it is called.
    pub name: &'static str,
    /// It as it was then.
    pub text: String,
}

/// A kernel of a step.
#[derive(Clone, PartialEq, Debug)]
pub struct Kernel {
    /// Its symbol.
    pub name: String,
    /// The function that it is part of: the kind of layer.
    pub function: String,
    /// Its place in that function.
    pub place: usize,
    /// What it computes, in a few words.
    pub about: String,
    /// Bytes that a launch must read from memory: of weights those in use, and the cache.
    pub bytes: f64,
    /// Operations of a launch, as the cost model counts them.
    pub operations: f64,
    /// Seconds that the cost model expects of a launch.
    pub modelled: f64,
    /// From the first to the last.
    pub stages: Vec<Stage>,
}

/// A launch of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Launch {
    /// Which of the kernels.
    pub kernel: usize,
    /// In which call: calls are counted from 0 in the order of the step.
    pub call: usize,
}

/// One run of the step.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    /// Seconds from its tokens to its logits; of a device that runs beside the host, from its first kernel to its last.
    pub wall: f64,
    /// When each worker was at each launch, in seconds since the device began.
    pub spans: Vec<Span>,
}

/// A step, run several times.
#[derive(Clone, PartialEq, Debug)]
pub struct Recording {
    /// Of which model.
    pub model: String,
    /// On which device.
    pub device: String,
    /// What a step is: `one token after 128`.
    pub what: String,
    /// Tokens of a step.
    pub tokens: usize,
    /// What the machine can do.
    pub limits: Limits,
    /// Kernels.
    pub kernels: Vec<Kernel>,
    /// Launches of a step, in order.
    pub launches: Vec<Launch>,
    /// For each function: what was decided when it was compiled.
    pub decisions: Vec<(String, Vec<String>)>,
    /// The runs; at least one.
    pub steps: Vec<Step>,
    /// Seconds of whole steps that nothing timed within, run in turns with these.
    pub plain: Vec<f64>,
}
