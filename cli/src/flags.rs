//! The flags that all commands share, and what they come to.

use crate::failure::{Failure, Result};
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use gristmill_backend::{DEVICES, Opened, cpu};
use gristmill_llm::engine::Settings;
use gristmill_runtime::Device;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::target::FLAGS;

/// A device that is built in on demand, and has a message of its own where it is not.
const ON_DEMAND: &str = "wgpu";

/// Does a name mean a device that this build lacks?
fn is_lacking(name: &str) -> bool {
    name.split(':').next() == Some(ON_DEMAND) && DEVICES.iter().all(|row| row.name != ON_DEMAND)
}

/// A name of the table, with what may follow it, or that of a device that is built in on demand.
fn device(name: &str) -> std::result::Result<String, String> {
    let names = || DEVICES.iter().map(|row| row.name).collect::<Vec<_>>().join(", ");
    match is_lacking(name) || gristmill_backend::find(name).is_ok() {
        true => Ok(name.into()),
        false => Err(format!(
            "there are {}, cuda:N, wgpu:N or wgpu:NAME where wgpu is built in, and null:NAME with a name that `gristmill devices` lists",
            names()
        )),
    }
}

fn isas() -> PossibleValuesParser {
    PossibleValuesParser::new(std::iter::once("auto").chain(cpu::ISAS.iter().map(|row| row.name)))
}

pub fn optimisations() -> PossibleValuesParser {
    PossibleValuesParser::new(FLAGS.iter().map(|flag| flag.name))
}

/// How cached rows are stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Cache {
    /// Half precision, the default.
    F16,
    /// Single precision.
    F32,
    /// Eight bits, with one scale for 32 elements: half of f16.
    #[value(name = "q8_0")]
    Q8_0,
}

/// Where and how a model is run.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Where to run; `gristmill devices` lists what there is [default: cuda if it can be used, then wgpu where it is built in, else cpu]
    #[arg(long, value_parser = device, value_name = "NAME", help_heading = "Device")]
    pub device: Option<String>,
    /// Threads of the cpu device [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), help_heading = "Device")]
    pub threads: Option<u16>,
    /// Instruction set of the cpu device
    #[arg(long, default_value = "auto", value_parser = isas(), value_name = "SET", help_heading = "Device")]
    pub isa: String,
    /// Tokens of context [default: what the model allows within a quarter of the free memory, at most 32768]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Device")]
    pub ctx: Option<u32>,
    /// Type of the cache [default: f16]
    #[arg(long, value_name = "TYPE", help_heading = "Device")]
    pub kv: Option<Cache>,
    /// Float arithmetic throughout, and an f32 cache unless --kv says otherwise
    #[arg(long, help_heading = "Device")]
    pub exact: bool,
    /// An optimisation to do without, for comparison (`bench --ablate` measures each); may be given more than once
    #[arg(long = "no", value_name = "NAME", value_parser = optimisations(), help_heading = "Device", hide_possible_values = true)]
    pub without: Vec<String>,
    /// Most tokens of one step
    #[arg(long, value_name = "N", hide = true, value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub chunk: Option<u16>,
}

/// Cores that this process may use.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Says on standard error what a device has to say.
pub fn warn_of(device: &dyn Device) {
    for warning in device.warnings() {
        say!("warning: {}", Failure::from(warning).text());
    }
}

impl Common {
    /// The device, ready: the one named, else the best there is.
    pub fn open(&self) -> Result<Opened> {
        if let Some(device) = &self.device {
            return self.open_as(device);
        }
        // These say which device is meant.
        if self.threads.is_some() || self.isa != "auto" {
            return self.open_as("cpu");
        }
        let (opened, lacking) = gristmill_backend::best(&self.device_options())?;
        if let Some(error) = lacking {
            let text = Failure::from(error).text();
            say!("note: the GPU is not used: {text}");
        }
        warn_of(opened.device.as_ref());
        Ok(opened)
    }
    /// Refuses a device that computes nothing.
    pub fn check_computes(&self) -> Result {
        if self.device.as_deref().is_none_or(|device| device.split(':').next() != Some("null")) {
            return Ok(());
        }
        let hint = "it is for `bench`, `kernels` and `tune`; --device cpu and --device interp compute";
        Err(Failure::usage("the device null computes nothing: its answers would mean nothing", hint))
    }
    /// The device of that name, with these flags.
    pub fn open_as(&self, device: &str) -> Result<Opened> {
        if is_lacking(device) {
            return Err(Failure::new(
                format_args!("device {device} is not in this build"),
                "build with `--features wgpu`; `gristmill devices` lists what there is",
            ));
        }
        let opened = gristmill_backend::open(device, &self.device_options())?;
        let cores = cores();
        if device == "cpu" && self.team() > cores {
            let threads = self.team();
            say!("warning: {threads} threads on {cores} cores wait for one another: --threads {cores} is faster");
        }
        warn_of(opened.device.as_ref());
        Ok(opened)
    }
    fn device_options(&self) -> gristmill_backend::Options {
        gristmill_backend::Options {
            threads: self.threads.map(usize::from),
            isa: self.isa.clone(),
            exact: self.exact,
            without: self.without.clone(),
            ..Default::default()
        }
    }
    /// Threads of the cpu device's team.
    pub fn team(&self) -> usize {
        self.threads.map_or_else(cores, usize::from)
    }
    /// How a model is run. `context` stands in for --ctx.
    pub fn settings(&self, context: Option<usize>) -> Settings {
        let cache = match self.kv {
            None if self.exact => Scalar::F32,
            None | Some(Cache::F16) => Scalar::F16,
            Some(Cache::F32) => Scalar::F32,
            Some(Cache::Q8_0) => Scalar::I8,
        };
        let usual = Settings::default();
        let (chunk, long) = match self.chunk.map(usize::from) {
            None => (usual.chunk, usual.long),
            Some(n) => (n.min(usual.chunk), Some(n)),
        };
        Settings { context: self.ctx.map(|n| n as usize).or(context), cache, chunk, long, ..usual }
    }
}
