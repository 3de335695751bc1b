//! `gristmill devices`: the devices and their state.

use crate::failure::{Failure, Result};
use crate::link;
use clap::Args;
use gristmill_backend::{DEVICES, Opened, Options as DeviceOptions};
use std::io::{self, Write};

const NOTES: &str = "\
Examples:
  gristmill devices             names for --device, and why a device is unavailable
  gristmill devices --measure   calibrate the cost model of each device again, and copies";

#[derive(Args)]
#[command(after_help = NOTES)]
pub struct DevicesArgs {
    /// Calibrate the cost model on each device and measure copies between it and the host (about a
    /// second each), and store the results
    #[arg(long)]
    measure: bool,
}

pub fn run(options: DevicesArgs) -> Result {
    let mut out = io::stdout().lock();
    let cpu = link::cpu();
    for row in DEVICES {
        writeln!(out, "{:<9} {}", row.name, row.doc)?;
        match (row.open)(&DeviceOptions::default()) {
            Ok(device) => {
                let failed = options.measure.then(|| device.measure().err()).flatten();
                let warnings = failed.into_iter().chain(device.warnings()).map(|w| format!("warning: {}", Failure::from(w).text()));
                let warnings: Vec<String> = warnings.collect();
                let opened = Opened::new(device, row.dialect);
                let links = link::lines(&opened, cpu.as_ref(), options.measure);
                let lines = opened.device.describe().into_iter().chain(links).chain(warnings);
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
