//! Measurements of a step, and a description of the measured kernels.

use gristmill_runtime::{CopySpan, Span};

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

/// A device of a profiled step.
#[derive(Clone, PartialEq, Debug)]
pub struct ProfiledDevice {
    /// Name for people, such as `cpu (avx2)`.
    pub name: String,
    /// Peak rates of the machine.
    pub limits: Limits,
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
    /// Index into [`Recording::devices`].
    pub device: usize,
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
    /// Time spans of workers in launches, in seconds since the step began.
    pub spans: Vec<Span>,
    /// Copies between devices, which are indices into [`Recording::devices`].
    pub copies: Vec<CopySpan>,
}

/// Several timed runs of one step.
#[derive(Clone, PartialEq, Debug)]
pub struct Recording {
    /// Name of the model.
    pub model: String,
    /// Devices of the step, the main one first; at least one.
    pub devices: Vec<ProfiledDevice>,
    /// Description of the step: `one token after 128`.
    pub what: String,
    /// Number of tokens per step.
    pub tokens: usize,
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

impl Recording {
    /// Returns the main device.
    ///
    /// # Panics
    /// If there is no device.
    pub fn main(&self) -> &ProfiledDevice {
        &self.devices[0]
    }
    /// Returns the device of a launch.
    pub fn device_of(&self, launch: usize) -> usize {
        self.kernels[self.launches[launch].kernel].device
    }
    /// Returns the names of all devices in a line.
    pub fn device_names(&self) -> String {
        let names: Vec<&str> = self.devices.iter().map(|of| of.name.as_str()).collect();
        names.join(" + ")
    }
    /// Returns whether the step is on several devices.
    pub fn is_placed(&self) -> bool {
        self.devices.len() > 1
    }
    /// Returns the pairs of devices that copies of the runs join, in order of first use.
    pub fn routes(&self) -> Vec<(Option<usize>, usize)> {
        let mut routes = Vec::new();
        for copy in self.steps.iter().flat_map(|step| &step.copies) {
            let route = (copy.from, copy.to);
            if !routes.contains(&route) {
                routes.push(route);
            }
        }
        routes
    }
    /// Returns the name of a pair of devices, such as `cuda to cpu`.
    pub fn route_name(&self, (from, to): (Option<usize>, usize)) -> String {
        let short = |device: usize| {
            let name = self.devices[device].name.as_str();
            name.split_once(' ').map_or(name, |of| of.0)
        };
        format!("{} to {}", from.map_or("host memory", short), short(to))
    }
}
