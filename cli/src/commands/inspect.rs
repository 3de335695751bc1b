//! `gristmill inspect`: metadata, tensors and memory needs of a model file.

use gristmill_llm::arch::CacheType;
use crate::failure::{Result, printable};
use crate::model::{Model, warn};
use crate::model_arg::ModelArg;
use crate::placement_flags::PlacementFlags;
use crate::size::size;
use clap::Args;
use gristmill_llm::arch::Pools;
use gristmill_llm::engine::{CompiledModel, Settings};
use gristmill_llm::file::ModelFile;
use gristmill_llm::language;
use std::io::{self, Write};

const NOTES: &str = "\
Examples:
  gristmill inspect MODEL.gguf --brief        whether it is supported, and its memory needs
  gristmill inspect MODEL.gguf | less         metadata and tensors
  gristmill inspect MODEL.gguf --all > FILE   without truncation
  gristmill inspect synth:youtu-llm-2b:q4_0   a synthetic model
  gristmill inspect MODEL.gguf --brief --device cuda --gpu-memory 8000
                                              what would be on the GPU and on the CPU";

#[derive(Args)]
#[command(after_help = NOTES, override_usage = "gristmill inspect [OPTIONS] <MODEL>")]
pub struct InspectArgs {
    #[command(flatten)]
    model: ModelArg,
    /// Show where the model's parts would be on this GPU and the CPU; null:NAME for a machine that
    /// is not here
    #[arg(long, value_name = "DEVICE", help_heading = "Device")]
    device: Option<String>,
    #[command(flatten)]
    placement: PlacementFlags,
    /// Omit the table of tensors
    #[arg(long)]
    brief: bool,
    /// Show all keys and tensors, without truncation
    #[arg(long)]
    all: bool,
}

/// Maximum keys without --all; models have about 60, a hostile file may have millions.
const KEYS: usize = 256;
/// Maximum tensors without --all; the largest models have about 1,100.
const TENSORS: usize = 4096;
/// Maximum characters of a name or a token without --all; ggml limits names to 64.
const NAME: usize = 120;
/// Maximum characters of the reason for a replaced template, which quotes at most 500 of it.
const REASON: usize = 800;

/// Limits of the output.
#[derive(Clone, Copy)]
struct Most {
    keys: usize,
    tensors: usize,
    name: usize,
}

pub fn run(options: InspectArgs) -> Result {
    let model = Model::open(options.model.name())?;
    let file = &model.file;
    let mut out = io::BufWriter::new(io::stdout().lock());
    let most = match options.all {
        true => Most { keys: usize::MAX, tensors: usize::MAX, name: usize::MAX },
        false => Most { keys: KEYS, tensors: TENSORS, name: NAME },
    };
    let parts = if file.shards() > 1 { format!(" in {} files", file.shards()) } else { String::new() };
    writeln!(out, "{}: {}{parts}", printable(&model.name), size(file.size()))?;
    writeln!(out, "\nMETADATA, {} keys", file.metadata().len())?;
    for (key, value) in file.metadata().iter().take(most.keys) {
        writeln!(out, "  {} = {}", oneline(key, most.name), oneline(&value.to_string(), usize::MAX))?;
    }
    left_out(file.metadata().len(), most.keys, "keys", &mut out)?;
    if !options.brief {
        tensors(file, most, &mut out)?;
    }
    totals(file, &mut out)?;
    // A vocabulary-only file has no tensors.
    if file.tensors().is_empty() {
        writeln!(out, "\nNO MODEL: the file has no tensors")?;
    } else {
        hyper(&model, &mut out)?;
        if let Some(device) = &options.device {
            placement(&model, device, &options.placement, &mut out)?;
        }
    }
    text(&model, most, &mut out)?;
    Ok(out.flush()?)
}

/// Prints where the model's parts would be on a device and the CPU, and what came second.
fn placement(model: &Model, device: &str, flags: &PlacementFlags, out: &mut dyn Write) -> Result {
    let mut names = device.split(',');
    let main = names.next().unwrap_or(device);
    let opened = gristmill_backend::open(main, &Default::default())?;
    let peers: Vec<&str> = names.collect();
    let request = flags.request(None, &peers, Default::default());
    let settings = Settings { placement: request, ..Settings::default() };
    let choice = CompiledModel::planned_placement(&model.file, &settings, &opened)?;
    writeln!(out, "\nPLACEMENT on {device}")?;
    for line in choice.lines() {
        writeln!(out, "  {line}")?;
    }
    if let Some(tokens) = choice.stream_from {
        writeln!(out, "  steps of {tokens} tokens and more copy experts to {main}")?;
    }
    Ok(())
}

/// Prints the number of items that were not shown.
fn left_out(count: usize, most: usize, what: &str, out: &mut dyn Write) -> Result {
    match count.saturating_sub(most) {
        0 => Ok(()),
        more => Ok(writeln!(out, "  … {more} more {what}; --all shows them")?),
    }
}

fn tensors(file: &ModelFile, most: Most, out: &mut dyn Write) -> Result {
    writeln!(out, "\nTENSORS, {}", file.tensors().len())?;
    let name = |t: &gristmill_llm::file::TensorInfo| oneline(&t.name, most.name);
    let shown = || file.tensors().iter().take(most.tensors);
    let width = shown().map(|t| name(t).chars().count()).max().unwrap_or(0);
    for t in shown() {
        let dims: Vec<String> = t.dims.iter().map(u64::to_string).collect();
        writeln!(out, "  {:width$}  {:7} {:>10}  {}", name(t), t.encoding.name, size(t.bytes), dims.join(" × "))?;
    }
    left_out(file.tensors().len(), most.tensors, "tensors", out)
}

fn totals(file: &ModelFile, out: &mut dyn Write) -> Result {
    writeln!(out, "\nTYPES")?;
    let mut types: Vec<(&str, usize, u64, u64)> = Vec::new();
    for t in file.tensors() {
        match types.iter_mut().find(|row| row.0 == t.encoding.name) {
            Some(row) => (row.1, row.2, row.3) = (row.1 + 1, row.2 + t.elements(), row.3 + t.bytes),
            None => types.push((t.encoding.name, 1, t.elements(), t.bytes)),
        }
    }
    types.sort_by_key(|row| std::cmp::Reverse(row.3));
    let all = types.iter().fold(("all", 0, 0, 0), |a, b| ("all", a.1 + b.1, a.2 + b.2, a.3 + b.3));
    for (name, count, elements, bytes) in types.into_iter().chain([all]) {
        writeln!(out, "  {name:7} {count:5} tensors {:>9.3} M elements {:>10}", elements as f64 / 1e6, size(bytes))?;
    }
    Ok(())
}

fn hyper(model: &Model, out: &mut dyn Write) -> Result {
    let described = model.describe()?;
    writeln!(out, "\nMODEL, {}", described.architecture())?;
    for (name, value) in &described.info().summary {
        writeln!(out, "  {name:18} {value}")?;
    }
    let windowed = described.window_row_bytes(CacheType::F16);
    let f16 = (described.cache_row_bytes(CacheType::F16) - windowed) as u64;
    let used: Vec<_> = described.tensors().iter().filter_map(|t| model.file.tensor(&t.name)).collect();
    let weights = used.iter().map(|t| t.bytes).sum();
    writeln!(out, "\nMEMORY")?;
    writeln!(out, "  {:18} {} in {} tensors", "weights", size(weights), used.len())?;
    writeln!(out, "  {:18} {} per 1024 tokens of context, with --kv f16", "KV cache", size(1024 * f16))?;
    if let Some(window) = described.window() {
        let pages = Pools::new(usize::MAX, described.cache_kinds(), 1, Settings::default().chunk).pages_of(Some(window));
        let most = size((windowed * pages * Pools::PAGE) as u64);
        writeln!(out, "  {:18} at most {most} at any context", "sliding windows")?;
    }
    if described.state_bytes() > 0 {
        writeln!(out, "  {:18} {} at any context", "recurrent state", size(described.state_bytes() as u64))?;
    }
    let unused = model.file.tensors().len() - used.len();
    if unused > 0 {
        warn(&[format!("{unused} tensors are unused")]);
    }
    warn(&described.info().warnings);
    Ok(())
}

fn text(model: &Model, most: Most, out: &mut dyn Write) -> Result {
    let tokenizer = model.tokenizer()?;
    let (_, why) = model.template(&tokenizer)?;
    let (sampling, ignored) = language::sampling(model.file.metadata());
    let special = |id: Option<u32>| {
        id.map_or("none".into(), |id| {
            let text = String::from_utf8_lossy(tokenizer.token_bytes(id).unwrap_or_default()).into_owned();
            format!("{id} {}", oneline(&text, most.name))
        })
    };
    writeln!(out, "\nTEXT")?;
    writeln!(out, "  {:18} {}, {} tokens", "tokenizer", oneline(tokenizer.pre(), most.name), tokenizer.n_tokens())?;
    let added = if tokenizer.adds_bos() { ", added to prompts" } else { "" };
    writeln!(out, "  {:18} {}{added}", "BOS", special(tokenizer.bos()))?;
    let ends: Vec<String> = tokenizer.eog().iter().map(|&id| special(Some(id))).collect();
    writeln!(out, "  {:18} {}", "end of generation", ends.join(", "))?;
    let template = why.as_deref().map_or("from the file".into(), |why| oneline(why, REASON));
    writeln!(out, "  {:18} {template}", "chat template")?;
    writeln!(
        out,
        "  {:18} --temp {} --top-k {} --top-p {} --min-p {} --repeat-penalty {}",
        "sampling",
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        sampling.repeat_penalty
    )?;
    warn(&ignored);
    Ok(())
}

/// Escapes text of the file to one line, truncated after `most` characters.
fn oneline(text: &str, most: usize) -> String {
    let end = text.char_indices().nth(most).map_or(text.len(), |(at, _)| at);
    let more = if end < text.len() { format!("… ({} bytes)", text.len()) } else { String::new() };
    printable(&text[..end]).replace('\n', "\\n") + &more
}
