//! Rows of the table of devices, and the options that they are opened with.

use gristmill_compiler::Dialect;
use gristmill_runtime::{Device, Error};
use std::sync::Arc;

/// Options of a device that the user can set.
#[derive(Clone, Debug)]
pub struct Options {
    /// Index of the GPU: N of `cuda:N`.
    pub number: usize,
    /// Part of the adapter's name, in any case: NAME of `wgpu:NAME`.
    pub adapter: Option<String>,
    /// Machine that the null device simulates: NAME of `null:NAME`.
    pub machine: Option<&'static str>,
    /// Threads of the CPU device; None means all available cores.
    pub threads: Option<usize>,
    /// Instruction set of the CPU device: `auto` or a name of [`cpu::ISAS`].
    pub isa: String,
    /// Compile CPU kernels in a third of the time, with slower code ([`cpu::QUICK_FLAG`]).
    pub quick: bool,
    /// Rounding of activations in products with packed weights.
    pub precision: Precision,
    /// Names of optimisations to disable, of [`FLAGS`](gristmill_uop::target::FLAGS).
    pub without: Vec<String>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            number: 0,
            adapter: None,
            machine: None,
            threads: None,
            isa: "auto".into(),
            quick: false,
            precision: Precision::default(),
            without: Vec::new(),
        }
    }
}

/// Rounding of activations in products with packed weights; docs/models.md has what each costs on
/// published models.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Precision {
    /// int8 with a scale per 32 elements.
    #[default]
    Fast,
    /// int8 with a scale per 8 elements.
    Balanced,
    /// f16 or bf16 on matrix units, f32 elsewhere.
    Half,
    /// None: float arithmetic throughout.
    Exact,
}

/// A row of the table of devices.
pub struct DeviceInfo {
    /// Name for `--device`, without a number.
    pub name: &'static str,
    /// Whether an index or an adapter's name may follow, as in `name:N`.
    pub several: bool,
    /// Description for the user, one line.
    pub doc: &'static str,
    /// Dialect of its kernels; None if the device interprets kernel-level graphs itself.
    pub dialect: Option<&'static dyn Dialect>,
    /// Opens the device, or returns an error that names the missing part.
    pub open: fn(&Options) -> Result<Arc<dyn Device>, Error>,
}
