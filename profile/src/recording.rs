//! Measurements of a step, and a description of the measured kernels.

use gristmill_runtime::Span;

/// Peak rates of a machine.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limits {
    /// Bytes per second of read-only memory traffic; `None` where that cannot be measured.
    pub bandwidth: Option<f64>,
    /// Operations per second assumed by the cost model.
    pub operations: f64,
    /// Number of worker threads or units.
    pub workers: usize,
}

/// Text of a kernel or function at one compilation stage.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct StageText {
    /// Name of the stage.
    pub name: &'static str,
    /// Text at that stage.
    pub text: String,
}

/// A kernel of a profiled step.
#[derive(Clone, PartialEq, Debug)]
pub struct ProfiledKernel {
    /// Symbol of the kernel.
    pub name: String,
    /// Function that contains it: the kind of layer.
    pub function: String,
    /// Index of the kernel in that function.
    pub place: usize,
    /// Short description of the computation.
    pub about: String,
    /// Bytes that a launch must read from memory: the weights in use and the KV cache.
    pub bytes: f64,
    /// Operations of a launch, as counted by the cost model.
    pub operations: f64,
    /// Seconds of a launch predicted by the cost model.
    pub modelled: f64,
    /// Text of the kernel at each stage, in compilation order.
    pub stages: Vec<StageText>,
}

/// A kernel launch of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelLaunch {
    /// Index into [`Recording::kernels`].
    pub kernel: usize,
    /// Index of the function call in the step, counted from 0.
    pub call: usize,
}

/// One timed run of the step.
#[derive(Clone, PartialEq, Debug)]
pub struct StepRun {
    /// Seconds from tokens to logits. For a device that runs asynchronously to the host: from its
    /// first kernel to its last.
    pub wall: f64,
    /// Time spans of workers in launches, in seconds since the device began.
    pub spans: Vec<Span>,
}

/// Several timed runs of one step.
#[derive(Clone, PartialEq, Debug)]
pub struct Recording {
    /// Name of the model.
    pub model: String,
    /// Name of the device.
    pub device: String,
    /// Description of the step: `one token after 128`.
    pub what: String,
    /// Number of tokens per step.
    pub tokens: usize,
    /// Peak rates of the machine.
    pub limits: Limits,
    /// Kernels of the step, without duplicates.
    pub kernels: Vec<ProfiledKernel>,
    /// Launches of a step, in order.
    pub launches: Vec<KernelLaunch>,
    /// Compilation decisions by function: its name, then one line per decision.
    pub decisions: Vec<(String, Vec<String>)>,
    /// Timed runs; at least one.
    pub steps: Vec<StepRun>,
    /// Wall seconds of runs without timers, interleaved with the timed ones. May be empty.
    pub plain: Vec<f64>,
}
