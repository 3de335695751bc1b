//! Devices that run kernels: cpu, cuda, wgpu, interp and null, with a row each in [`DEVICES`].

pub mod cost_store;
#[cfg(not(target_family = "wasm"))]
pub mod cpu;
#[cfg(not(target_family = "wasm"))]
pub mod cuda;
mod device_info;
#[cfg(not(target_family = "wasm"))]
mod devices;
// In a browser's tab: no C compiler and no driver.
#[cfg(target_family = "wasm")]
#[path = "devices_of_page.rs"]
mod devices;
#[cfg(not(target_family = "wasm"))]
pub mod installation;
pub mod interp;
#[cfg_attr(
    target_family = "wasm",
    expect(dead_code, reason = "names of C and CUDA C")
)]
mod names;
#[cfg(not(target_family = "wasm"))]
pub mod null;
pub mod parallel;
#[cfg(not(target_family = "wasm"))]
mod render;
mod simt;
mod text;
pub mod tuning;
#[cfg_attr(
    target_family = "wasm",
    expect(dead_code, reason = "bounds of CUDA's grids")
)]
mod variables;
#[cfg(feature = "wasm")]
pub mod wasm;
pub mod wgpu;

pub use device_info::{DeviceInfo, Options, Precision};
pub use devices::DEVICES;
use devices::{GPUS, HOST};
/// Loads the driver's shared library; re-exported for tests that fake one.
#[cfg(not(target_family = "wasm"))]
pub use libloading;

use gristmill_compiler::Dialect;
use gristmill_runtime::{Device, Error};
use gristmill_uop::machine::NAMED;
use gristmill_uop::rows::FINE_GROUP;
use gristmill_uop::target::{FLAGS, Target};
use std::sync::Arc;
pub use text::KernelText;

/// An open device and the dialect of its kernels.
#[derive(Clone)]
pub struct Opened {
    /// Device to load and run kernels on.
    pub device: Arc<dyn Device>,
    /// Dialect of its kernels; None if it interprets kernel-level graphs itself.
    pub dialect: Option<&'static dyn Dialect>,
    /// Target that kernels are compiled for; it may differ from the device's own by options.
    pub target: Target,
}

impl Opened {
    /// Pairs a device with a dialect; the target is the device's own.
    pub fn new(device: Arc<dyn Device>, dialect: Option<&'static dyn Dialect>) -> Opened {
        let target = device.target().clone();
        Opened {
            device,
            dialect,
            target,
        }
    }
    /// Sets how activations are rounded.
    #[must_use]
    pub fn with_precision(mut self, precision: Precision) -> Opened {
        match precision {
            Precision::Fast => (),
            Precision::Balanced => self.target.activation_group = FINE_GROUP,
            Precision::Half => self.target.activation_group = 1,
            Precision::Exact => self.target.int8 = false,
        }
        self
    }
    /// Disables the named optimisations.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a name is unknown.
    pub fn without(mut self, names: &[String]) -> Result<Opened, Error> {
        for name in names {
            let Some(flag) = FLAGS.iter().find(|flag| flag.name == name) else {
                let all: Vec<&str> = FLAGS.iter().map(|flag| flag.name).collect();
                return Err(Error::invalid(
                    name,
                    format!("is no optimisation; there are {}", all.join(", ")),
                ));
            };
            (flag.off)(&mut self.target);
        }
        Ok(self)
    }
}

/// Parsed name of a device.
pub struct DeviceSelector {
    /// Row of the table of devices.
    pub row: &'static DeviceInfo,
    /// Index in the name: 1 of `cuda:1`; 0 if there is none.
    pub number: usize,
    /// Adapter in the name: `radeon` of `wgpu:radeon`.
    pub adapter: Option<String>,
    /// Machine in the name: `l4` of `null:l4`.
    pub machine: Option<&'static str>,
}

/// Parses a device's name.
pub fn find(name: &str) -> Result<DeviceSelector, Error> {
    let row = |name: &str| DEVICES.iter().find(|row| row.name == name);
    let found = |row| DeviceSelector {
        row,
        number: 0,
        adapter: None,
        machine: None,
    };
    let plain = || row(name).map(found);
    let numbered = || {
        let (name, number) = name.split_once(':')?;
        Some(DeviceSelector {
            number: number.parse().ok()?,
            ..found(row(name).filter(|row| row.several)?)
        })
    };
    let adapter = || {
        let name = name
            .strip_prefix("wgpu:")
            .filter(|name| name.starts_with(char::is_alphabetic))?;
        Some(DeviceSelector {
            adapter: Some(name.into()),
            ..found(row("wgpu")?)
        })
    };
    let machine = || {
        let machine = NAMED
            .iter()
            .find(|machine| name.strip_prefix("null:") == Some(machine.name))?;
        let device = if machine.is_nvidia() {
            "null:gpu"
        } else {
            "null:wgpu"
        };
        Some(DeviceSelector {
            machine: Some(machine.name),
            ..found(row(device)?)
        })
    };
    plain()
        .or_else(numbered)
        .or_else(adapter)
        .or_else(machine)
        .ok_or_else(|| {
            let names = DEVICES.iter().map(|row| row.name.to_owned());
            let names: Vec<String> = names
                .chain(NAMED.iter().map(|machine| format!("null:{}", machine.name)))
                .collect();
            Error::NoDevice(
                name.into(),
                format!("there is no such device, only {}", names.join(", ")),
            )
        })
}

/// Opens the device named `name`, with these options.
pub fn open(name: &str, options: &Options) -> Result<Opened, Error> {
    let DeviceSelector {
        row,
        number,
        adapter,
        machine,
    } = find(name)?;
    let options = Options {
        number,
        adapter,
        machine,
        ..options.clone()
    };
    let opened = Opened::new((row.open)(&options)?, row.dialect);
    let opened = opened.with_precision(options.precision);
    opened.without(&options.without)
}

/// Opens the best available device, if the user names none.
///
/// The order is the first NVIDIA GPU, the first wgpu adapter that is not a software rasteriser,
/// then the CPU. Also returns the error of a GPU that is present but cannot be used.
pub fn best(options: &Options) -> Result<(Opened, Option<Error>), Error> {
    let written = |name| find(name).is_ok_and(|found| found.row.dialect.is_some());
    let mut lacking = None;
    for &(name, present) in GPUS {
        if written(name) && present() {
            match open(name, options) {
                Ok(opened) => return Ok((opened, lacking)),
                Err(error) => lacking = lacking.or(Some(error)),
            }
        }
    }
    Ok((open(HOST, options)?, lacking))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_open_and_unknown_ones_list_the_table() {
        for name in ["null", "null:gpu", "null:m3-max"] {
            assert_eq!(open(name, &Options::default()).unwrap().device.name(), name);
        }
        let found = |name| find(name).map(|found| (found.row.name, found.number)).ok();
        assert_eq!(found("cuda:12"), Some(("cuda", 12)));
        assert!(
            [
                "cuda:", "cuda:x", "cuda:-1", "cpu:1", "null:0", "null:", "null:rtx", ":1"
            ]
            .iter()
            .all(|name| found(name).is_none())
        );
        let without = |name: &str| {
            open(
                "null",
                &Options {
                    without: vec![name.into()],
                    ..Options::default()
                },
            )
        };
        assert!(!without("alternatives").unwrap().target.alternatives);
        let error = without("magic").err().unwrap();
        assert!(
            error.to_string().contains("magic") && error.to_string().contains("alternatives"),
            "{error}"
        );
        let error = open("tpu", &Options::default()).err().unwrap();
        let listed = ["cpu, cuda, ", "interp, ", "null, null:gpu"]
            .iter()
            .all(|names| error.to_string().contains(names));
        assert!(listed && error.hint().is_some(), "{error}");
    }
}
