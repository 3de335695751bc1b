//! Devices: cpu, cuda, wgpu, interp, null. Each is a folder, with one row in [`DEVICES`].

mod cost_store;
pub mod cpu;
pub mod cuda;
pub mod interp;
mod names;
pub mod null;
pub mod parallel;
mod render;
mod simt;
mod text;
pub mod tuning;
mod variables;
pub mod wgpu;

/// For devices that tests make.
pub use libloading;

use gristmill_compiler::Dialect;
use gristmill_runtime::{Device, Error};
use gristmill_uop::machine::NAMED;
use gristmill_uop::target::{FLAGS, Target};
use std::sync::Arc;
pub use text::KernelText;

/// What the user may say about a device.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which of several GPUs: N of `cuda:N`.
    pub number: usize,
    /// Which of several adapters, by a part of its name: NAME of `wgpu:NAME`.
    pub adapter: Option<String>,
    /// Which machine the null device stands for: NAME of `null:NAME`.
    pub machine: Option<&'static str>,
    /// Threads of a CPU; all there are unless said.
    pub threads: Option<usize>,
    /// Instruction set of a CPU: `auto` or a name of [`cpu::ISAS`].
    pub isa: String,
    /// Kernels of a CPU compiled in a third of the time, and slower ([`cpu::QUICK_FLAG`]).
    pub quick: bool,
    /// Float arithmetic throughout: activations are not encoded in eight bits.
    pub exact: bool,
    /// Names of optimisations that are switched off ([`FLAGS`](gristmill_uop::target::FLAGS)).
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
            exact: false,
            without: Vec::new(),
        }
    }
}

/// A row of the table of devices.
pub struct DeviceInfo {
    /// Name after `--device`.
    pub name: &'static str,
    /// Is there more than one, called `name:N`?
    pub several: bool,
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
        several: false,
        doc: "the processor: C kernels compiled by this machine's compiler",
        dialect: Some(&cpu::dialect::C),
        open: |options| Ok(Arc::new(cpu::CpuDevice::new(options.threads, &options.isa, options.quick)?)),
    },
    DeviceInfo {
        name: "cuda",
        several: true,
        doc: "an NVIDIA GPU, or `cuda:N` for one of several: CUDA C kernels compiled by NVRTC",
        dialect: Some(&cuda::dialect::Cuda),
        open: |options| Ok(Arc::new(cuda::CudaDevice::new(options.number)?)),
    },
    #[cfg(feature = "wgpu")]
    DeviceInfo {
        name: "wgpu",
        several: true,
        doc: "any GPU, by Vulkan, Metal or Direct3D 12, or `wgpu:N`, `wgpu:NAME` for one of several: kernels in WGSL",
        dialect: Some(&wgpu::dialect::Wgsl),
        open: |options| Ok(Arc::new(wgpu::WgpuDevice::new(options.number, options.adapter.as_deref())?)),
    },
    DeviceInfo {
        name: "interp",
        several: false,
        doc: "the oracle: kernels run in plain Rust, slowly; needs no compiler",
        dialect: None,
        open: |_| Ok(Arc::new(interp::InterpDevice::new())),
    },
    DeviceInfo {
        name: "null",
        several: false,
        doc: "runs nothing; scheduled as for this processor",
        dialect: Some(&cpu::dialect::C),
        open: |options| Ok(Arc::new(null::NullDevice::new("null", cpu::Isa::named(&options.isa)?.target()))),
    },
    DeviceInfo {
        name: "null:gpu",
        several: false,
        doc: "runs nothing; scheduled as for an H200, or `null:NAME` for another GPU",
        dialect: Some(&cuda::dialect::Cuda),
        open: |options| Ok(Arc::new(null::NullDevice::of_gpu(options.machine))),
    },
    DeviceInfo {
        name: "null:wgpu",
        several: false,
        doc: "runs nothing; scheduled as for an H200 through Vulkan, or `null:NAME` for a GPU of another vendor's",
        dialect: Some(&wgpu::dialect::Wgsl),
        open: |options| Ok(Arc::new(null::NullDevice::of_adapter(options.machine))),
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
    /// With the optimisations of these names switched off.
    ///
    /// # Errors
    /// [`Error::Invalid`] when there is none of such a name.
    pub fn without(mut self, names: &[String]) -> Result<Opened, Error> {
        for name in names {
            let Some(flag) = FLAGS.iter().find(|flag| flag.name == name) else {
                let all: Vec<&str> = FLAGS.iter().map(|flag| flag.name).collect();
                return Err(Error::invalid(name, format!("is no optimisation; there are {}", all.join(", "))));
            };
            (flag.off)(&mut self.target);
        }
        Ok(self)
    }
}

/// What a name means.
pub struct DeviceSelector {
    /// The device's row.
    pub row: &'static DeviceInfo,
    /// The number after it: 1 of `cuda:1`.
    pub number: usize,
    /// The adapter after it: `radeon` of `wgpu:radeon`.
    pub adapter: Option<String>,
    /// The machine after it: `l4` of `null:l4`.
    pub machine: Option<&'static str>,
}

/// The row of a name, and what the name says besides.
pub fn find(name: &str) -> Result<DeviceSelector, Error> {
    let row = |name: &str| DEVICES.iter().find(|row| row.name == name);
    let found = |row| DeviceSelector { row, number: 0, adapter: None, machine: None };
    let plain = || row(name).map(found);
    let numbered = || {
        let (name, number) = name.split_once(':')?;
        Some(DeviceSelector { number: number.parse().ok()?, ..found(row(name).filter(|row| row.several)?) })
    };
    let adapter = || {
        let name = name.strip_prefix("wgpu:").filter(|name| name.starts_with(char::is_alphabetic))?;
        Some(DeviceSelector { adapter: Some(name.into()), ..found(row("wgpu")?) })
    };
    let machine = || {
        let machine = NAMED.iter().find(|machine| name.strip_prefix("null:") == Some(machine.name))?;
        let device = if machine.is_nvidia() { "null:gpu" } else { "null:wgpu" };
        Some(DeviceSelector { machine: Some(machine.name), ..found(row(device)?) })
    };
    plain().or_else(numbered).or_else(adapter).or_else(machine).ok_or_else(|| {
        let names = DEVICES.iter().map(|row| row.name.to_owned());
        let names: Vec<String> = names.chain(NAMED.iter().map(|machine| format!("null:{}", machine.name))).collect();
        Error::NoDevice(name.into(), format!("there is no such device, only {}", names.join(", ")))
    })
}

/// The device of that name.
pub fn open(name: &str, options: &Options) -> Result<Opened, Error> {
    let DeviceSelector { row, number, adapter, machine } = find(name)?;
    let options = Options { number, adapter, machine, ..options.clone() };
    let opened = Opened::new((row.open)(&options)?, row.dialect);
    let opened = if options.exact { opened.exact() } else { opened };
    opened.without(&options.without)
}

/// The best device there is for whoever names none: NVIDIA's first GPU if it can be used, else the first adapter that is no program, else the processor.
/// With what an unused GPU lacks.
pub fn best(options: &Options) -> Result<(Opened, Option<Error>), Error> {
    let written = |name| find(name).is_ok_and(|found| found.row.dialect.is_some());
    let mut lacking = None;
    for (name, present) in [("cuda", cuda::present as fn() -> bool), ("wgpu", wgpu::present)] {
        if written(name) && present() {
            match open(name, options) {
                Ok(opened) => return Ok((opened, lacking)),
                Err(error) => lacking = lacking.or(Some(error)),
            }
        }
    }
    Ok((open("cpu", options)?, lacking))
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
            ["cuda:", "cuda:x", "cuda:-1", "cpu:1", "null:0", "null:", "null:rtx", ":1"]
                .iter()
                .all(|name| found(name).is_none())
        );
        let without = |name: &str| open("null", &Options { without: vec![name.into()], ..Options::default() });
        assert!(!without("alternatives").unwrap().target.alternatives);
        let error = without("magic").err().unwrap();
        assert!(error.to_string().contains("magic") && error.to_string().contains("alternatives"), "{error}");
        let error = open("tpu", &Options::default()).err().unwrap();
        let listed =
            ["cpu, cuda, ", "interp, ", "null, null:gpu"].iter().all(|names| error.to_string().contains(names));
        assert!(listed && error.hint().is_some(), "{error}");
    }
}
