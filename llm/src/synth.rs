//! Models of real shape with random valid weights, to measure speed without a download.
//!
//! A preset has the hyper-parameters, tensor shapes and per-tensor encodings of a published model.
//! Its weights are random with the scale of trained ones (standard deviation 1/√in), so that
//! activations stay of order one. Data is a function of tensor and block number: equal on every
//! machine, and any part can be generated separately.

mod config;
mod fill;
mod plan;
mod preset;
mod vocab;

pub use config::{ConfigError, ModelConfig};
pub use fill::fill;
pub use plan::{Error, SynthPlan, TensorPlan};

use crate::gguf::{ByteSource, Gguf, Metadata, Writer, types};
use std::io::{self, Write};

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
    let size = |p: &preset::Preset| Some((p.without_vocabulary(file_type).ok()?.bytes(), p.name));
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

/// Returns metadata and tensors of `preset` quantised as `quant` (names in any case).
///
/// # Errors
/// Returns an error if either name is unknown.
pub fn plan(preset: &str, quant: &str) -> Result<SynthPlan, Error> {
    let same = |a: &str, b: &str| a.eq_ignore_ascii_case(b);
    let found = preset::PRESETS.iter().find(|p| same(p.name, preset));
    let preset = found.ok_or_else(|| Error::UnknownPreset {
        name: preset.into(),
        presets: presets().collect::<Vec<_>>().join(", "),
    })?;
    preset.plan(file_type(quant)?)
}

/// Returns the file type of that name, in any case.
fn file_type(name: &str) -> Result<&'static types::FileType, Error> {
    let mut all = types::FILE_TYPES.iter();
    let found = all.find(|f| f.name.eq_ignore_ascii_case(name));
    found.ok_or_else(|| Error::UnknownQuant {
        name: name.into(),
        quants: quants().collect::<Vec<_>>().join(", "),
    })
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
        Ok(Gguf::from_source(Box::new(Generated::new(plan(
            preset, quant,
        )?)?))?)
    }
}

/// A generated file: header in memory, tensor data on request.
struct Generated {
    header: Vec<u8>,
    /// Tensors with their offsets in the file, ascending.
    tensors: Vec<(u64, TensorPlan)>,
    size: u64,
}

impl Generated {
    fn new(plan: SynthPlan) -> Result<Self, Error> {
        let mut header = Vec::new();
        let offsets = Writer::new(&mut header, &plan.metadata, &plan.decls())?.offsets();
        let start = header.len() as u64;
        let tensors: Vec<_> = offsets
            .into_iter()
            .map(|o| start + o)
            .zip(plan.tensors)
            .collect();
        let size = tensors.last().map_or(start, |(offset, t)| offset + t.bytes);
        Ok(Self {
            header,
            tensors,
            size,
        })
    }

    /// Fills the overlap of `out`, at `offset` of the file, and the tensor's data, at `at`.
    fn fill_part(
        &self,
        at: u64,
        tensor: &TensorPlan,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), Error> {
        let (from, to) = (
            at.max(offset),
            (at + tensor.bytes).min(offset + out.len() as u64),
        );
        if from >= to {
            return Ok(());
        }
        let mut out = &mut out[(from - offset) as usize..(to - offset) as usize];
        let block = tensor.encoding.bytes;
        let (mut index, inside) = (
            (from - at) / block as u64,
            ((from - at) % block as u64) as usize,
        );
        let mut partial = vec![0; block];
        if inside > 0 {
            fill(tensor, index, &mut partial)?;
            let n = out.len().min(block - inside);
            let (head, rest) = out.split_at_mut(n);
            head.copy_from_slice(&partial[inside..inside + n]);
            (out, index) = (rest, index + 1);
        }
        let (whole, tail) = out.split_at_mut(out.len() / block * block);
        fill(tensor, index, whole)?;
        if !tail.is_empty() {
            fill(tensor, index + (whole.len() / block) as u64, &mut partial)?;
            tail.copy_from_slice(&partial[..tail.len()]);
        }
        Ok(())
    }
}

impl ByteSource for Generated {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset
            .checked_add(out.len() as u64)
            .filter(|&end| end <= self.size);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        let header = usize::try_from(offset)
            .ok()
            .and_then(|o| self.header.get(o..))
            .unwrap_or_default();
        let n = header.len().min(out.len());
        out[..n].copy_from_slice(&header[..n]);
        // Everything before `done` is written. Padding between tensors is zero.
        let mut done = offset + n as u64;
        let first = self
            .tensors
            .partition_point(|(at, t)| at + t.bytes <= offset);
        for (at, tensor) in self.tensors[first..].iter().take_while(|(at, _)| *at < end) {
            if *at > done {
                out[(done - offset) as usize..(at - offset) as usize].fill(0);
            }
            self.fill_part(*at, tensor, offset, out)
                .map_err(io::Error::other)?;
            done = (at + tensor.bytes).min(end);
        }
        out[(done - offset) as usize..].fill(0);
        Ok(())
    }
}
