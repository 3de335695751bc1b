//! `gristmill devices`.

use crate::failure::{Failure, Result};
use clap::Args;
use gristmill_backend::{DEVICES, Options as DeviceOptions};
use std::io::{self, Write};

const NOTES: &str = "\
Examples:
  gristmill devices                                 what --device may name, and what is missing for the rest
  gristmill devices --measure                       what memory, launches, barriers and operations cost on each, measured again";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct Options {
    /// Measure what things cost on each device, about a second each, and keep it
    #[arg(long)]
    measure: bool,
}

pub fn run(options: Options) -> Result {
    let mut out = io::stdout().lock();
    for row in DEVICES {
        writeln!(out, "{:<9} {}", row.name, row.doc)?;
        match (row.open)(&DeviceOptions::default()) {
            Ok(device) => {
                let failed = options.measure.then(|| device.measure().err()).flatten();
                let warnings = failed.into_iter().chain(device.warnings()).map(|w| format!("warning: {}", Failure::from(w).text()));
                let lines = device.describe().into_iter().chain(warnings);
                for line in lines.collect::<Vec<_>>().iter().flat_map(|text| text.lines()) {
                    writeln!(out, "{:9} {line}", "")?;
                }
            }
            Err(error) => {
                let text = format!("not available: {}", Failure::from(error).text());
                for line in text.lines() {
                    writeln!(out, "{:9} {line}", "")?;
                }
            }
        }
    }
    Ok(())
}
