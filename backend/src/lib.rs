//! Devices: cpu, cuda, interp, null. Each is a folder, with one row in [`DEVICES`].

pub mod cpu;
pub mod cuda;
pub mod interp;
pub mod null;
pub mod text;

use gristmill_compiler::Dialect;
use gristmill_runtime::{Device, Error};
use gristmill_uop::target::Target;
use std::sync::Arc;

/// What the user may say about a device.
#[derive(Clone, Debug)]
pub struct Options {
    /// Threads of a CPU; all there are unless said.
    pub threads: Option<usize>,
    /// Instruction set of a CPU: `auto` or a name of [`cpu::ISAS`].
    pub isa: String,
    /// Float arithmetic throughout: activations are not encoded in eight bits.
    pub exact: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { threads: None, isa: "auto".into(), exact: false }
    }
}

/// A row of the table of devices.
pub struct DeviceInfo {
    /// Name after `--device`.
    pub name: &'static str,
    /// What it is.
    pub doc: &'static str,
    /// How kernels are written for it; none if it runs kernel-level graphs itself.
    pub dialect: Option<&'static dyn Dialect>,
    /// Makes it ready, or says what is missing.
    pub open: fn(&Options) -> Result<Arc<dyn Device>, Error>,
}

/// The devices.
pub const DEVICES: &[DeviceInfo] = &[
    DeviceInfo {
        name: "cpu",
        doc: "the processor: C kernels compiled by this machine's compiler",
        dialect: Some(&cpu::dialect::C),
        open: |options| Ok(Arc::new(cpu::CpuDevice::new(options.threads, &options.isa)?)),
    },
    DeviceInfo {
        name: "interp",
        doc: "the oracle: kernels run in plain Rust, slowly; needs no compiler",
        dialect: None,
        open: |_| Ok(Arc::new(interp::InterpDevice::new())),
    },
    DeviceInfo {
        name: "null",
        doc: "runs nothing; scheduled as for this processor",
        dialect: Some(&cpu::dialect::C),
        open: |options| Ok(Arc::new(null::NullDevice::new("null", cpu::Isa::parse(&options.isa)?.target()))),
    },
    DeviceInfo {
        name: "null:gpu",
        doc: "runs nothing; scheduled as for an H200",
        dialect: None,
        open: |_| Ok(Arc::new(null::NullDevice::new("null:gpu", Target::gpu_h200()))),
    },
];

/// A device, ready, and the dialect that kernels for it are written in.
#[derive(Clone)]
pub struct Opened {
    /// The device.
    pub device: Arc<dyn Device>,
    /// Its dialect, if it has one.
    pub dialect: Option<&'static dyn Dialect>,
    /// The device as kernels are written for it.
    pub target: Target,
}

impl Opened {
    /// That device, with kernels written as its own numbers ask for.
    pub fn new(device: Arc<dyn Device>, dialect: Option<&'static dyn Dialect>) -> Opened {
        let target = device.target().clone();
        Opened { device, dialect, target }
    }
    /// With float arithmetic throughout.
    pub fn exact(mut self) -> Opened {
        self.target.int8 = false;
        self
    }
}

/// The device of that name.
pub fn open(name: &str, options: &Options) -> Result<Opened, Error> {
    match DEVICES.iter().find(|row| row.name == name) {
        Some(row) => {
            let opened = Opened::new((row.open)(options)?, row.dialect);
            Ok(if options.exact { opened.exact() } else { opened })
        }
        None => {
            let names: Vec<&str> = DEVICES.iter().map(|row| row.name).collect();
            Err(Error::NoDevice(name.into(), format!("there is no such device, only {}", names.join(", "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_open_and_unknown_ones_list_the_table() {
        for name in ["null", "null:gpu"] {
            assert_eq!(open(name, &Options::default()).unwrap().device.name(), name);
        }
        let error = open("tpu", &Options::default()).err().unwrap();
        assert!(error.to_string().contains("cpu, interp, null, null:gpu") && error.hint().is_some(), "{error}");
    }
}
