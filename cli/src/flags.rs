//! Flags that the commands share, and the device and settings that follow from them.

use crate::failure::{Failure, Result};
use crate::llama_flags::IgnoredFlags;
use crate::placement_flags::PlacementFlags;
use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use gristmill_backend::{DEVICES, Opened, Precision, cpu};
use gristmill_llm::arch::CacheType;
use gristmill_llm::engine::Settings;
use gristmill_llm::placement::PlacementRequest;
use gristmill_runtime::Device;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::FLAGS;

/// Device of an optional feature, with a message of its own in builds without it.
const OPTIONAL: &str = "wgpu";

/// Whether the name means a device that this build lacks.
fn is_lacking(name: &str) -> bool {
    name.split(':').next() == Some(OPTIONAL) && DEVICES.iter().all(|row| row.name != OPTIONAL)
}

/// Parses device names, separated by commas.
fn devices(names: &str) -> std::result::Result<String, String> {
    let valid: std::result::Result<Vec<String>, String> = names.split(',').map(device).collect();
    valid.map(|_| names.into())
}

/// Parses a device name of the registry, or of the optional device.
fn device(name: &str) -> std::result::Result<String, String> {
    let names = || {
        DEVICES
            .iter()
            .map(|row| row.name)
            .collect::<Vec<_>>()
            .join(", ")
    };
    match is_lacking(name) || gristmill_backend::find(name).is_ok() {
        true => Ok(name.into()),
        false => Err(format!(
            "devices are {}, cuda:N, wgpu:N or wgpu:NAME in builds with wgpu, \
             and null:NAME with a machine that `gristmill devices` lists",
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

/// Element type of the KV cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum KvType {
    F16,
    F32,
    // 8 bits, with a scale per 32 elements.
    #[value(name = "q8_0")]
    Q8_0,
    // 4 bits, with a scale per 32 elements.
    #[value(name = "q4_0")]
    Q4_0,
    // e4m3 floats of 8 bits, without scales.
    #[value(name = "fp8", alias = "f8_e4m3", alias = "fp8_e4m3")]
    Fp8,
}

/// Value of `--precision`: how activations are rounded.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum PrecisionLevel {
    /// int8 activations, a scale per 32 elements
    #[default]
    Fast,
    /// int8 activations, a scale per 8 elements
    Balanced,
    /// f32 activations and KV cache
    Exact,
}

/// Value of --gpu-layers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GpuLayers {
    /// Whatever the default device is.
    Auto,
    /// Every layer on the GPU.
    All,
    /// That many layers on the GPU; 0 for the CPU.
    Count(u32),
}

impl GpuLayers {
    fn parse(text: &str) -> std::result::Result<GpuLayers, String> {
        match text {
            "auto" | "-1" => Ok(GpuLayers::Auto),
            "all" => Ok(GpuLayers::All),
            text => text
                .parse()
                .map(GpuLayers::Count)
                .map_err(|_| "a number of layers, 0 for the CPU, or all".into()),
        }
    }
}

/// An adapter of --lora and the factor of its effect.
#[derive(Clone, PartialEq, Debug)]
pub struct Lora {
    /// GGUF file in llama.cpp's layout, or folder or safetensors file of PEFT.
    pub path: std::path::PathBuf,
    /// 1 for the effect that was trained.
    pub scale: f32,
}

impl Lora {
    /// Name for clients of a server: that of the file, without its suffix.
    pub fn name(&self) -> String {
        let stem = self.path.file_stem().unwrap_or(self.path.as_os_str());
        stem.to_string_lossy().into_owned()
    }
    /// Parses `FILE` or `FILE=SCALE`.
    pub fn parse(text: &str) -> std::result::Result<Lora, String> {
        // A name may have an `=` of its own.
        let scaled = text.rsplit_once('=').and_then(|(path, scale)| {
            let scale = scale
                .parse::<f32>()
                .ok()
                .filter(|scale| scale.is_finite())?;
            Some((path, scale))
        });
        let (path, scale) = scaled.unwrap_or((text, 1.0));
        match path.is_empty() {
            true => Err("FILE or FILE=SCALE, such as adapter.gguf=0.5".into()),
            false => Ok(Lora {
                path: path.into(),
                scale,
            }),
        }
    }
}

/// Device, context and precision of a command that runs a model.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Device to run on; `gristmill devices` lists them [default: cuda if usable, then wgpu if
    /// built in, else cpu]. Several GPUs, such as cuda:0,cuda:1, divide the layers of a model that
    /// is too large for one; `serve` has a replica on each device of a model that is not
    #[arg(long, value_parser = devices, value_name = "DEVICE", help_heading = "Device")]
    pub device: Option<String>,
    /// -ngl N: layers on the GPU, as in llama.cpp; the others are on the CPU. 0 selects the CPU
    #[arg(
        long = "gpu-layers", alias = "n-gpu-layers", value_name = "N", help_heading = "Device",
        value_parser = GpuLayers::parse, allow_negative_numbers = true
    )]
    gpu_layers: Option<GpuLayers>,
    #[command(flatten)]
    placement: PlacementFlags,
    /// CPU threads [default: all cores]
    #[arg(
        short, long, value_name = "N", help_heading = "Device",
        value_parser = clap::value_parser!(u16).range(1..=1024)
    )]
    pub threads: Option<u16>,
    /// Instruction set of the CPU kernels
    #[arg(
        long, default_value = "auto", value_parser = isas(), value_name = "ISA",
        help_heading = "Device"
    )]
    pub isa: String,
    /// Context size in tokens; 0 for the model's full context [default: the model's, within a
    /// quarter of the free memory, at most 32768]
    #[arg(
        short,
        long,
        visible_alias = "ctx-size",
        value_name = "N",
        help_heading = "Context and precision"
    )]
    ctx: Option<u32>,
    /// KV cache type; fp8 (e4m3) takes half the memory of f16, q8_0 a little more, q4_0 (4-bit
    /// values, 8-bit keys) two fifths [default: f16]
    #[arg(long, value_name = "TYPE", help_heading = "Context and precision")]
    kv: Option<KvType>,
    /// -ctk TYPE: llama.cpp's name of --kv, for keys
    #[arg(long, value_name = "TYPE", hide = true)]
    cache_type_k: Option<KvType>,
    /// -ctv TYPE: llama.cpp's name of --kv, for values
    #[arg(long, value_name = "TYPE", hide = true)]
    cache_type_v: Option<KvType>,
    /// Rounding of activations in products with quantised weights; docs/models.md has what each
    /// costs. With `exact` the KV cache is f32 unless --kv is given
    #[arg(
        long,
        value_enum,
        value_name = "LEVEL",
        default_value_t,
        help_heading = "Context and precision"
    )]
    precision: PrecisionLevel,
    /// --precision exact
    #[arg(
        long,
        conflicts_with = "precision",
        help_heading = "Context and precision"
    )]
    pub exact: bool,
    /// Apply a LoRA adapter, with its effect multiplied by SCALE; repeatable. Requests of serve
    /// choose among them; not for train. FILE is GGUF, or a folder or .safetensors file of Hugging
    /// Face PEFT
    #[arg(long, value_name = "FILE[=SCALE]", value_parser = Lora::parse, value_hint = clap::ValueHint::FilePath, help_heading = "Adapters")]
    pub lora: Vec<Lora>,
    /// Disable an optimisation, for comparison; repeatable. `bench --ablate` measures each
    #[arg(
        long = "disable", alias = "no", value_name = "NAME", value_parser = optimisations(),
        help_heading = "Context and precision", hide_possible_values = true
    )]
    pub without: Vec<String>,
    /// Maximum tokens per prefill chunk
    #[arg(
        long, value_name = "N", hide = true,
        value_parser = clap::value_parser!(u16).range(1..=4096)
    )]
    pub chunk: Option<u16>,
    #[command(flatten)]
    ignored: IgnoredFlags,
}

/// Returns whether a name without its number is that of GPUs: there may be several of them.
fn is_gpu(name: &str) -> bool {
    let row = DEVICES.iter().find(|row| row.name == name);
    row.map_or(is_lacking(name), |row| row.several)
}

/// Cores available to this process.
fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Prints the warnings of a device to standard error.
pub fn warn_of(device: &dyn Device) {
    for warning in device.warnings() {
        say!("warning: {}", Failure::from(warning).text());
    }
}

impl Common {
    /// Refuses flags that contradict each other and notes ignored ones; call it first. The layers
    /// of a model may be divided among several GPUs.
    pub fn check(&self) -> Result {
        if self.devices().len() > 1 && !self.are_gpus() {
            return Err(Failure::usage(
                "--device takes several devices here if all of them are GPUs",
                "name one device; `gristmill serve --device A,B` has a replica on each",
            ));
        }
        self.check_flags()
    }
    /// Returns the flags of a model that drafts, on `device` if it is given.
    pub fn of_drafts(&self, device: Option<&str>) -> Common {
        Common {
            device: device.map(str::to_owned).or(self.device.clone()),
            lora: Vec::new(),
            ..self.clone()
        }
    }
    /// Checks the same for commands that use one device.
    pub fn check_one_device(&self) -> Result {
        if self.devices().len() > 1 {
            let hint = "name one device";
            return Err(Failure::usage("--device takes one device here", hint));
        }
        self.check_flags()
    }
    /// Checks the same for `serve`, which may have replicas on any devices.
    pub fn check_with_replicas(&self) -> Result {
        let is_placed = self.gpu_layers.is_some() || self.placement.wants_gpu();
        if self.devices().len() > 1 && is_placed && !self.are_gpus() {
            return Err(Failure::usage(
                "parts of a model can be placed on several devices if all of them are GPUs",
                "leave --gpu-layers, --gpu-memory and --cpu-moe out, or name GPUs or one device",
            ));
        }
        self.check_flags()
    }
    /// Returns whether every device of --device is a GPU by its name.
    pub fn are_gpus(&self) -> bool {
        let is_gpu = |name: &&str| is_gpu(name.split(':').next().unwrap_or(name));
        self.devices().iter().all(is_gpu)
    }
    /// Returns whether flags say where parts are, so that a model has no replicas.
    pub fn places_parts(&self) -> bool {
        self.gpu_layers.is_some() || self.placement.wants_parts_elsewhere()
    }
    /// Returns the names of --device.
    pub fn devices(&self) -> Vec<&str> {
        let names = self.device.as_deref().map(|names| names.split(','));
        names.into_iter().flatten().collect()
    }
    /// These flags for one of several devices: cpu devices share the cores.
    pub fn with_shared_cores(&self, devices: &[&str]) -> Common {
        let processors = devices.iter().filter(|name| **name == "cpu").count();
        let each = (cores() / processors.max(1)).clamp(1, 1024);
        Common {
            threads: self.threads.or(u16::try_from(each).ok()),
            ..self.clone()
        }
    }
    fn check_flags(&self) -> Result {
        let types = [
            ("--kv", self.kv),
            ("-ctk", self.cache_type_k),
            ("-ctv", self.cache_type_v),
        ];
        let given: Vec<_> = types
            .iter()
            .filter_map(|(flag, kv)| Some((flag, (*kv)?)))
            .collect();
        if let [first, rest @ ..] = given.as_slice()
            && let Some(other) = rest.iter().find(|other| other.1 != first.1)
        {
            let message = format!(
                "{} and {} differ: keys and values share one type",
                first.0, other.0
            );
            return Err(Failure::usage(
                message,
                "give both the same type, or --kv TYPE alone",
            ));
        }
        let device = self
            .device
            .as_deref()
            .map(|name| name.split(':').next().unwrap_or(name));
        let contradicts = match (self.gpu_layers, device) {
            (Some(GpuLayers::Count(0)), Some(name)) => is_gpu(name),
            (Some(GpuLayers::All | GpuLayers::Count(1..)), Some(name)) => name == "cpu",
            _ => false,
        };
        if contradicts {
            let hint = "leave one of them out; --device alone is enough";
            return Err(Failure::usage("--gpu-layers contradicts --device", hint));
        }
        self.ignored.note();
        Ok(())
    }
    /// Whether --gpu-layers or a placement asks for the GPU.
    pub fn wants_gpu(&self) -> bool {
        let layers = matches!(
            self.gpu_layers,
            Some(GpuLayers::All | GpuLayers::Count(1..))
        );
        layers || self.placement.wants_gpu()
    }
    /// Opens the named device, else the best available one.
    pub fn open(&self) -> Result<Opened> {
        if let Some(first) = self.devices().first() {
            return self.open_as(first);
        }
        // Flags of the cpu device select it.
        let of_cpu = self.threads.is_some() || self.isa != "auto";
        if self.gpu_layers == Some(GpuLayers::Count(0)) || of_cpu && !self.wants_gpu() {
            return self.open_as("cpu");
        }
        let (opened, lacking) = gristmill_backend::best(&self.device_options())?;
        if let Some(error) = lacking {
            let text = Failure::from(error).text();
            say!("note: the GPU is not used: {text}");
        } else if self.wants_gpu() && opened.target.machine.kind != MachineKind::Gpu {
            say!("note: no usable GPU: all layers run on the CPU (`gristmill devices` says why)");
        }
        warn_of(opened.device.as_ref());
        Ok(opened)
    }
    /// Refuses the null device, which computes nothing.
    pub fn check_computes(&self) -> Result {
        let is_null = |name: &&str| name.split(':').next() == Some("null");
        if !self.devices().iter().any(is_null) {
            return Ok(());
        }
        let hint =
            "it is for `bench`, `kernels` and `tune`; --device cpu and --device interp compute";
        Err(Failure::usage(
            "the device null computes nothing: its output is meaningless",
            hint,
        ))
    }
    /// Opens the device of that name with these flags.
    pub fn open_as(&self, device: &str) -> Result<Opened> {
        if is_lacking(device) {
            return Err(Failure::new(
                format_args!("device {device} is not in this build"),
                "build with `--features wgpu`; `gristmill devices` lists the devices of this build",
            ));
        }
        let opened = gristmill_backend::open(device, &self.device_options())?;
        let cores = cores();
        if device == "cpu" && self.team() > cores {
            let threads = self.team();
            say!("warning: {threads} threads on {cores} cores: --threads {cores} is faster");
        }
        warn_of(opened.device.as_ref());
        Ok(opened)
    }
    fn device_options(&self) -> gristmill_backend::Options {
        gristmill_backend::Options {
            threads: self.threads.map(usize::from),
            isa: self.isa.clone(),
            precision: self.precision(),
            without: self.without.clone(),
            ..Default::default()
        }
    }
    /// True for float arithmetic throughout, by --precision or --exact.
    pub fn is_exact(&self) -> bool {
        self.precision() == Precision::Exact
    }
    /// Rounding of activations, by --precision or --exact.
    fn precision(&self) -> Precision {
        match self.precision {
            _ if self.exact => Precision::Exact,
            PrecisionLevel::Fast => Precision::Fast,
            PrecisionLevel::Balanced => Precision::Balanced,
            PrecisionLevel::Exact => Precision::Exact,
        }
    }
    /// Threads of the cpu device.
    pub fn team(&self) -> usize {
        self.threads.map_or_else(cores, usize::from)
    }
    /// Tokens of --ctx; `None` if it is not given, or 0 and not resolved by [`Common::over`].
    pub fn ctx(&self) -> Option<usize> {
        self.ctx.filter(|&n| n > 0).map(|n| n as usize)
    }
    /// These flags for a model of that context: `--ctx 0` becomes it.
    pub fn over(&self, context: usize) -> Common {
        let whole = u32::try_from(context).unwrap_or(u32::MAX);
        Common {
            ctx: self.ctx.map(|n| if n == 0 { whole } else { n }),
            ..self.clone()
        }
    }
    /// Engine settings; `context` applies without --ctx.
    pub fn settings(&self, context: Option<usize>) -> Settings {
        let cache = match self.kv.or(self.cache_type_k).or(self.cache_type_v) {
            None if self.precision() == Precision::Exact => CacheType::F32,
            None | Some(KvType::F16) => CacheType::F16,
            Some(KvType::F32) => CacheType::F32,
            Some(KvType::Q8_0) => CacheType::Int8,
            Some(KvType::Q4_0) => CacheType::Int4,
            Some(KvType::Fp8) => CacheType::Fp8,
        };
        let usual = Settings::default();
        let (chunk, long) = match self.chunk.map(usize::from) {
            None => (usual.chunk, usual.long),
            Some(n) => (n.min(usual.chunk), Some(n)),
        };
        Settings {
            context: self.ctx().or(context),
            cache,
            chunk,
            long,
            placement: self.placement(),
            ..usual
        }
    }
    /// Other devices of an engine, and what is asked of its placement.
    fn placement(&self) -> PlacementRequest {
        let layers = match self.gpu_layers {
            Some(GpuLayers::Count(n)) => Some(n as usize),
            Some(GpuLayers::All) => Some(usize::MAX),
            Some(GpuLayers::Auto) | None => None,
        };
        let devices = self.devices();
        let peers = devices.get(1..).unwrap_or_default();
        self.placement.request(layers, peers, self.device_options())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        common: Common,
    }

    fn parsed(flags: &str) -> Common {
        let all = std::iter::once("x").chain(flags.split_whitespace());
        Line::try_parse_from(all)
            .unwrap_or_else(|error| panic!("{error}"))
            .common
    }

    #[test]
    fn kv_cache_types_must_agree() {
        for (flags, cache) in [
            ("", CacheType::F16),
            ("--exact", CacheType::F32),
            ("--precision exact", CacheType::F32),
            ("--precision balanced", CacheType::F16),
            (
                "--cache-type-k q8_0 --cache-type-v q8_0 --kv q8_0",
                CacheType::Int8,
            ),
            ("--cache-type-v f32", CacheType::F32),
        ] {
            let common = parsed(flags);
            assert!(common.check().is_ok(), "{flags}");
            assert_eq!(common.settings(None).cache, cache, "{flags}");
        }
        for flags in [
            "--cache-type-k q8_0 --cache-type-v f16",
            "--kv f16 --cache-type-v f32",
        ] {
            assert!(parsed(flags).check().is_err(), "{flags}");
        }
    }

    #[test]
    fn layers_are_placed_by_flags() {
        for (flags, layers, experts, memory) in [
            ("", None, None, None),
            ("--n-gpu-layers auto", None, None, None),
            ("--gpu-layers 5", Some(5), None, None),
            ("--gpu-layers all", Some(usize::MAX), None, None),
            ("--cpu-moe", None, Some(usize::MAX), None),
            ("--cpu-moe --exact", None, Some(usize::MAX), None),
            ("--cpu-moe=3", None, Some(3), None),
            ("--n-cpu-moe 3", None, Some(3), None),
            ("--gpu-memory 8000", None, None, Some(8_000_000_000)),
        ] {
            let of = parsed(flags).placement();
            assert_eq!(of.layers, layers, "{flags}");
            assert_eq!(of.experts_away, experts, "{flags}");
            assert_eq!(of.memory, memory, "{flags}");
        }
        let of = parsed("--override-tensor exps=CPU,attn=CUDA0").placement();
        let away: Vec<bool> = of.overrides.iter().map(|rule| rule.1).collect();
        assert_eq!(away, [true, false]);
        for flags in [
            "--override-tensor exps",
            "--override-tensor a=b",
            "--override-tensor (=CPU",
        ] {
            assert!(Line::try_parse_from(["x"].into_iter().chain(flags.split(' '))).is_err());
        }
        for flags in [
            "--gpu-layers 0 --device cuda",
            "--gpu-layers 99 --device cpu",
        ] {
            assert!(parsed(flags).check().is_err(), "{flags}");
        }
    }

    #[test]
    fn a_context_of_zero_is_the_whole_one() {
        assert_eq!(
            (parsed("-c 0").ctx(), parsed("-c 0").over(2048).ctx()),
            (None, Some(2048))
        );
        assert_eq!(
            (
                parsed("-c 64").over(2048).ctx(),
                parsed("").over(2048).ctx()
            ),
            (Some(64), None)
        );
    }
}
