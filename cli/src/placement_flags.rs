//! Flags that say where the parts of a model are when it is larger than the GPU's memory.

use clap::{Args, ValueEnum};
use gristmill_backend::Options;
use gristmill_llm::placement::{Goal, OtherDevice, PlacementRequest, TensorPattern};

/// Kind of step that a placement is chosen for alone: value of --for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum PlacedFor {
    /// The speed of answers
    Decode,
    /// The speed of reading prompts
    Prefill,
}

/// Layers of --cpu-moe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CpuMoe {
    All,
    First(u32),
}

impl CpuMoe {
    fn parse(text: &str) -> Result<CpuMoe, String> {
        match text {
            "all" => Ok(CpuMoe::All),
            text => text
                .parse()
                .map(CpuMoe::First)
                .map_err(|_| "all, or a number of layers".into()),
        }
    }
}

/// A pattern of tensor names, and whether those that match are on the CPU.
#[derive(Clone, Debug)]
struct Override {
    pattern: TensorPattern,
    is_away: bool,
}

impl Override {
    fn parse(text: &str) -> Result<Vec<Override>, String> {
        text.split(',').map(Override::parse_one).collect()
    }
    fn parse_one(text: &str) -> Result<Override, String> {
        let (pattern, device) = text
            .rsplit_once('=')
            .ok_or("PATTERN=DEVICE, such as exps=CPU")?;
        let device = device.to_ascii_lowercase();
        let is_away = device == "cpu";
        // llama.cpp's names of buffers: CUDA0, Vulkan0, Metal.
        let gpus = ["gpu", "cuda", "vulkan", "metal", "wgpu"];
        if !is_away && !gpus.iter().any(|name| device.starts_with(name)) {
            return Err(format!("{device} is no device of a tensor: CPU or GPU"));
        }
        let pattern = TensorPattern::parse(pattern)?;
        Ok(Override { pattern, is_away })
    }
}

/// Where the parts of a model are: on GPUs, or in the host's memory and computed by its cores.
#[derive(Args, Clone, Debug, Default)]
pub struct PlacementFlags {
    /// Memory of the GPU to use, in MB, or of each GPU; parts that do not fit are on the CPU
    /// [default: what is free]
    #[arg(long, value_name = "MB", help_heading = "Device", value_parser = clap::value_parser!(u64).range(1..))]
    gpu_memory: Option<u64>,
    /// Experts of all layers on the CPU, or of the first N; the rest on the GPU
    #[arg(
        long, value_name = "N", help_heading = "Device",
        num_args = 0..=1, require_equals = true, default_missing_value = "all",
        value_parser = CpuMoe::parse
    )]
    cpu_moe: Option<CpuMoe>,
    /// -ncmoe N: --cpu-moe=N
    #[arg(long, value_name = "N", hide = true, conflicts_with = "cpu_moe", value_parser = CpuMoe::parse)]
    n_cpu_moe: Option<CpuMoe>,
    /// -ot PATTERN=CPU: layers or experts whose tensors match a regular expression, as in
    /// llama.cpp; several are separated by commas
    #[arg(
        long, value_name = "PATTERN=DEVICE", help_heading = "Device", hide = true,
        value_parser = Override::parse
    )]
    override_tensor: Vec<Vec<Override>>,
    /// Memory of the GPU, in MB, for the most used experts of layers whose experts are on the CPU;
    /// 0 for none [default: by the uses of experts in earlier runs]
    #[arg(long, value_name = "MB", help_heading = "Device", value_parser = clap::value_parser!(u64).range(..=100_000_000))]
    expert_cache: Option<u64>,
    /// Place parts for one kind of step alone [default: prompts of 1,024 tokens with answers of
    /// 256]
    #[arg(long = "for", value_enum, value_name = "GOAL", help_heading = "Device")]
    goal: Option<PlacedFor>,
}

impl PlacementFlags {
    /// Returns whether any of them asks for parts on a GPU.
    pub fn wants_gpu(&self) -> bool {
        let experts = self.cpu_moe.or(self.n_cpu_moe);
        let cache = self.expert_cache.is_some_and(|mb| mb > 0);
        self.gpu_memory.is_some() || experts.is_some() || !self.override_tensor.is_empty() || cache
    }
    /// Returns whether any of them names parts that are not on a GPU.
    pub fn wants_parts_elsewhere(&self) -> bool {
        let experts = self.cpu_moe.or(self.n_cpu_moe);
        experts.is_some() || !self.override_tensor.is_empty()
    }
    /// Returns what these flags ask of an engine, with `layers` layers on GPUs if that is given;
    /// `peers` are GPUs besides the main one, `options` are those of all devices.
    pub fn request(
        &self,
        layers: Option<usize>,
        peers: &[&str],
        options: Options,
    ) -> PlacementRequest {
        let other = |&name: &&str| {
            let (named, options) = (name.to_owned(), options.clone());
            OtherDevice::new(name, move || gristmill_backend::open(&named, &options))
        };
        let overrides = self.override_tensor.iter().flatten();
        PlacementRequest {
            others: peers.iter().chain(&["cpu"]).map(other).collect(),
            memory: self.gpu_memory.map(|mb| mb * 1_000_000),
            layers,
            experts_away: self.cpu_moe.or(self.n_cpu_moe).map(|count| match count {
                CpuMoe::All => usize::MAX,
                CpuMoe::First(n) => n as usize,
            }),
            overrides: overrides
                .map(|of| (of.pattern.clone(), of.is_away))
                .collect(),
            stream_from: None,
            expert_cache: self.expert_cache.map(|mb| mb * 1_000_000),
            goal: match self.goal {
                None => Goal::Both,
                Some(PlacedFor::Decode) => Goal::Decode,
                Some(PlacedFor::Prefill) => Goal::Prefill,
            },
            link: None,
            fixed: None,
        }
    }
}
