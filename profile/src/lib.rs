//! Profile of a step, kernel by kernel.
//!
//! [`Report`] aggregates a recording, [`text`] prints it, [`page`] renders it as one HTML file, and
//! [`trace`] as a Chrome trace. A [`compilation`](mod@compilation) records how functions became
//! kernels, and [`viewer`] renders that as one HTML file. [`training`](mod@training) renders a
//! training run.
//!
//! The crate knows only numbers and texts. A kernel's description, its provenance and the bytes
//! that it must read are passed in as strings and numbers.

pub mod compilation;
mod html;
pub mod page;
mod recording;
mod report;
pub mod text;
pub mod trace;
pub mod training;
pub mod viewer;

pub use recording::{
    KernelLaunch, Limits, ProfiledDevice, ProfiledKernel, Recording, StageText, StepRun,
};
pub use report::{FunctionCost, KernelCost, PlaceCost, Report, WHY_ABOVE};
