//! `gristmill devices`: the devices and their state.

use crate::failure::{Failure, Result};
use clap::Args;
use gristmill_backend::{DEVICES, Options as DeviceOptions};
use std::io::{self, Write};

const NOTES: &str = "\
Examples:
  gristmill devices             names for --device, and why a device is unavailable
  gristmill devices --measure   calibrate the cost model of each device again";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct DevicesArgs {
    /// Calibrate the cost model on each device (about a second each) and store the result
    #[arg(long)]
    measure: bool,
}

pub fn run(options: DevicesArgs) -> Result {
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
