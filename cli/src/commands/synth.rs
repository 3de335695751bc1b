//! `gristmill synth`: model files with random weights.

use crate::failure::{Failure, Result};
use crate::progress;
use clap::Args;
use gristmill_llm::synth;
use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

const NOTES: &str = "\
Examples:
  gristmill synth youtu-llm-2b --quant q4_0 -o youtu.gguf   1.2 GB, as fast as the real model
  gristmill bench synth:youtu-llm-2b:q4_0                   most commands need no file";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct SynthArgs {
    /// Shape of the model; an unknown name lists all
    preset: String,
    /// Quantisation of the weights
    #[arg(long, value_name = "QUANT")]
    quant: String,
    /// Multiply the router's row of the expert of rank r by r^-A, so that few experts are chosen
    /// often; also synth:PRESET:QUANT:router-skew=A
    #[arg(long, value_name = "A")]
    router_skew: Option<f32>,
    /// Output file
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

pub fn run(mut options: SynthArgs) -> Result {
    if let Some(skew) = options.router_skew {
        options.quant = format!("{}:{}={skew}", options.quant, synth::ROUTER_SKEW);
    }
    // Wrong names must not truncate a file.
    let total = synth::plan(&options.preset, &options.quant)?.bytes();
    let failed = |e| Failure::file("write", &options.output, e);
    // The space of a file that is overwritten is available too.
    let there = std::fs::metadata(&options.output).ok().filter(|m| m.is_file()).map_or(0, |m| m.len());
    let room = room(&options.output).map(|free| free.saturating_add(there));
    if let Some(room) = room.filter(|&room| room < total) {
        return Err(no_room(&options, total, room));
    }
    let file = File::create(&options.output).map_err(failed)?;
    let regular = file.metadata().is_ok_and(|m| m.is_file());
    let bar = progress::bytes("writing", total);
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let written = synth::build(&options.preset, &options.quant, &mut out, &|done, _| bar.set_position(done));
    bar.finish_and_clear();
    let written = match written {
        Ok(()) => out.into_inner().map(drop).map_err(|e| failed(e.into_error())),
        Err(error) => Err(error.into()),
    };
    // An incomplete file is removed.
    if written.is_err() && regular {
        let _ = std::fs::remove_file(&options.output);
    }
    written
}

/// Free bytes on the disk of a file; `None` for a special file.
fn room(file: &Path) -> Option<u64> {
    let special = std::fs::metadata(file).is_ok_and(|m| !m.is_file());
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let disk = rustix::fs::statvfs(folder).ok().filter(|disk| !special && disk.f_blocks > 0)?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

fn no_room(options: &SynthArgs, total: u64, room: u64) -> Failure {
    let gb = |bytes: u64| bytes as f64 / 1e9;
    let fitting = synth::fitting_as(&options.quant, room);
    let models = if fitting.is_empty() { String::new() } else { format!(", or a model that fits ({})", fitting.join(", ")) };
    Failure::new(
        format_args!(
            "cannot write {}: {} as {} takes {:.1} GB, and the disk has {:.1} GB free",
            options.output.display(),
            options.preset,
            options.quant,
            gb(total),
            gb(room)
        ),
        format!("free disk space, choose another folder, a smaller quantisation{models}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_without_room_is_told_with_what_fits() {
        let options = SynthArgs { preset: "deepseek-v3".into(), quant: "q4_0".into(), router_skew: None, output: "x.gguf".into() };
        let (message, hint) = no_room(&options, 378_060_000_000, 5_000_000_000).parts();
        assert_eq!(message, "cannot write x.gguf: deepseek-v3 as q4_0 takes 378.1 GB, and the disk has 5.0 GB free");
        let hint = hint.unwrap();
        assert!(hint.contains("youtu-llm-2b (1.2 GB)") && !hint.contains("glm-4.7-flash"), "{hint}");
        assert!(room(Path::new("/dev/null")).is_none());
        assert!(room(&std::env::temp_dir().join("none")).is_some());
    }
}
