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
        let first = (row.open)(&DeviceOptions::default());
        let mut gpus: Vec<Opened> = Vec::new();
        match first {
            Ok(device) => gpus.push(Opened::new(device, row.dialect)),
            Err(error) => print(&mut out, &[format!("not available: {}", Failure::from(error).text())])?,
        }
        // Further GPUs, until the driver has no more.
        while row.several && !gpus.is_empty() {
            let options = DeviceOptions { number: gpus.len(), ..DeviceOptions::default() };
            let Ok(device) = (row.open)(&options) else { break };
            gpus.push(Opened::new(device, row.dialect));
        }
        for (number, opened) in gpus.iter().enumerate() {
            if number > 0 {
                writeln!(out, "{}", opened.device.name())?;
            }
            print(&mut out, &lines(opened, &gpus[..number], cpu.as_ref(), options.measure))?;
        }
    }
    Ok(())
}

/// Describes a device, and its links with the host and with the GPUs before it.
fn lines(opened: &Opened, before: &[Opened], cpu: Option<&Opened>, measure: bool) -> Vec<String> {
    let device = &opened.device;
    let failed = measure.then(|| device.measure().err()).flatten();
    let warnings = failed.into_iter().chain(device.warnings());
    let warnings = warnings.map(|warning| format!("warning: {}", Failure::from(warning).text()));
    let warnings: Vec<String> = warnings.collect();
    let peers = before.iter().flat_map(|peer| link::with((peer, opened), peer, measure));
    let links = link::lines(opened, cpu, measure).into_iter().chain(peers);
    device.describe().into_iter().chain(links).chain(warnings).collect()
}

/// Prints texts of one or several lines, indented.
fn print(out: &mut dyn Write, texts: &[String]) -> Result {
    for line in texts.iter().flat_map(|text| text.lines()) {
        writeln!(out, "{:9} {line}", "")?;
    }
    Ok(())
}
