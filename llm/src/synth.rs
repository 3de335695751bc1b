//! Models of real shape with random valid weights, to measure speed without a download.
//!
//! A preset has the hyper-parameters, tensor shapes and per-tensor encodings of a published model.
//! Its weights are random with the scale of trained ones (standard deviation 1/√in), so that
//! activations stay of order one. Data is a function of tensor and block number: equal on every
//! machine, and any part can be generated separately.

mod config;
mod draft_block;
mod fill;
mod generated;
mod plan;
mod preset;
mod vocab;

pub use config::ModelConfig;
pub use draft_block::{DRAFT_BLOCK, add_draft_block};
pub use fill::fill;
pub use plan::{ConfigError, Error, SynthPlan, TensorPlan};

use crate::gguf::{Gguf, Metadata, Writer, types};
use plan::file_type;
use std::io::Write;

/// Returns the names of all presets.
pub fn presets() -> impl Iterator<Item = &'static str> {
    preset::PRESETS.iter().map(|p| p.name)
}

/// Returns the names of all quantisations.
pub fn quants() -> impl Iterator<Item = &'static str> {
    types::FILE_TYPES.iter().map(|f| f.name)
}

/// Splits a model name `synth:PRESET:QUANT` into `PRESET` and `QUANT`; `None` for any other text.
pub fn parse_name(model: &str) -> Option<(&str, &str)> {
    model.strip_prefix("synth:")?.split_once(':')
}

/// Returns presets of at most `bytes` bytes with the same quantisation as a preset's metadata, with
/// sizes in GB, largest first. Empty if the metadata is not that of a preset.
pub fn fitting(metadata: &Metadata, bytes: u64) -> Vec<String> {
    let id = metadata.u32("general.file_type").ok().flatten();
    let file_type = types::FILE_TYPES.iter().find(|f| Some(f.id) == id);
    let Some(file_type) = file_type.filter(|_| preset::PRESETS.iter().any(|p| p.is(metadata)))
    else {
        return Vec::new();
    };
    let named = |(bytes, name): (u64, &str)| {
        format!("synth:{name}:{} ({})", file_type.name, gigabytes(bytes))
    };
    within(file_type, bytes).into_iter().map(named).collect()
}

/// Returns presets of at most `bytes` bytes quantised as `quant`, with sizes in GB, largest first.
/// Empty for an unknown quantisation.
pub fn fitting_as(quant: &str, bytes: u64) -> Vec<String> {
    let quant = quant.split(':').next().unwrap_or(quant);
    let file_type = types::FILE_TYPES
        .iter()
        .find(|f| f.name.eq_ignore_ascii_case(quant));
    let sizes = file_type
        .map(|file_type| within(file_type, bytes))
        .unwrap_or_default();
    sizes
        .into_iter()
        .map(|(bytes, name)| format!("{name} ({})", gigabytes(bytes)))
        .collect()
}

/// Returns presets of at most `bytes` bytes with their sizes, largest first.
fn within(file_type: &types::FileType, bytes: u64) -> Vec<(u64, &'static str)> {
    let size =
        |p: &preset::Preset| Some((p.without_vocabulary(file_type, false).ok()?.bytes(), p.name));
    let mut sizes: Vec<_> = preset::PRESETS
        .iter()
        .filter_map(size)
        .filter(|s| s.0 <= bytes)
        .collect();
    sizes.sort_by(|a, b| b.cmp(a));
    sizes
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

/// Option of a quantisation that skews routers: see [`plan`].
pub const ROUTER_SKEW: &str = "router-skew";

/// Options of a quantisation.
#[derive(Clone, Copy, Default)]
struct SynthOptions {
    /// Skew of routers; 0 if none is given.
    skew: f32,
    draft_block: bool,
}

impl SynthOptions {
    /// Splits a quantisation into its name and its options.
    fn split(quant: &str) -> Result<(&str, SynthOptions), Error> {
        let mut parts = quant.split(':');
        let name = parts.next().unwrap_or_default();
        let mut options = SynthOptions::default();
        for option in parts {
            let skew = option.split_once('=').filter(|of| of.0 == ROUTER_SKEW);
            let skew = skew.and_then(|of| of.1.parse::<f32>().ok());
            match skew.filter(|skew| (0.0..=MAX_SKEW).contains(skew)) {
                Some(skew) => options.skew = skew,
                None if option == DRAFT_BLOCK => options.draft_block = true,
                None => return Err(Error::Option(option.to_owned())),
            }
        }
        Ok((name, options))
    }
}

/// Largest skew of routers.
const MAX_SKEW: f32 = 4.0;

/// Returns metadata and tensors of `preset` quantised as `quant` (names in any case).
///
/// `QUANT:router-skew=A` multiplies the router's row of the expert of rank `r` (from 1, in an order
/// of each layer's own) by `r^-A`, so that few experts are chosen often. `QUANT:mtp` adds a block
/// that drafts tokens, where the architecture has one.
///
/// # Errors
/// Returns an error if either name is unknown, or the option is.
pub fn plan(preset: &str, quant: &str) -> Result<SynthPlan, Error> {
    let same = |a: &str, b: &str| a.eq_ignore_ascii_case(b);
    let found = preset::PRESETS.iter().find(|p| same(p.name, preset));
    let preset = found.ok_or_else(|| Error::UnknownPreset {
        name: preset.into(),
        presets: presets().collect::<Vec<_>>().join(", "),
    })?;
    let (quant, options) = SynthOptions::split(quant)?;
    let mut plan = preset.plan(file_type(quant)?, options.draft_block)?;
    let has_block = plan.tensors.iter().any(|t| t.name.contains(".nextn."));
    if options.draft_block && !has_block {
        return Err(Error::Option(DRAFT_BLOCK.to_owned()));
    }
    for tensor in &mut plan.tensors {
        if tensor.name.ends_with(".ffn_gate_inp.weight") {
            tensor.skew = options.skew;
        }
    }
    Ok(plan)
}

/// Writes the model as a GGUF file. `progress` is called with the bytes of tensor data
/// written and their total.
///
/// # Errors
/// Returns an error if a name is unknown or `out` fails.
pub fn build(
    preset: &str,
    quant: &str,
    out: &mut dyn Write,
    progress: &dyn Fn(u64, u64),
) -> Result<(), Error> {
    const WRITE_CHUNK_BYTES: usize = 32 << 20;
    let plan = plan(preset, quant)?;
    let total = plan.bytes();
    let mut writer = Writer::new(out, &plan.metadata, &plan.decls())?;
    let mut done = 0;
    let mut buffer = Vec::new();
    for tensor in &plan.tensors {
        let block = tensor.encoding.bytes;
        let (mut start, step) = (0, (WRITE_CHUNK_BYTES / block).max(1) as u64);
        let blocks = tensor.bytes / block as u64;
        while start < blocks {
            let n = step.min(blocks - start);
            buffer.resize(n as usize * block, 0);
            fill(tensor, start, &mut buffer)?;
            writer.data(&buffer)?;
            start += n;
            done += buffer.len() as u64;
            progress(done, total);
        }
    }
    writer.finish()?;
    Ok(())
}

impl Gguf {
    /// Opens the model of [`build`] without a file: data is generated when it is read.
    ///
    /// # Errors
    /// Returns an error if a name is unknown.
    pub fn synth(preset: &str, quant: &str) -> Result<Gguf, Error> {
        plan(preset, quant)?.open()
    }
}
