//! The link between a device and the host, for people.

use crate::failure::Failure;
use gristmill_backend::{DEVICES, Opened, Options};
use gristmill_llm::placement::{measure_link, renew_link, stored_link};
use gristmill_uop::link::DeviceLink;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::measured::Measured;
use serde_json::{Value, json};

/// Opens the cpu device, on which parts of a model are that do not fit on another one.
pub fn cpu() -> Option<Opened> {
    let row = DEVICES.iter().find(|row| row.name == "cpu")?;
    let device = (row.open)(&Options::default()).ok()?;
    Some(Opened::new(device, row.dialect))
}

/// Describes the stored link of a device with the cpu, for `gristmill devices`; measures it before
/// if `measure`. Empty for a device that holds no data, and for the cpu itself.
pub fn lines(opened: &Opened, cpu: Option<&Opened>, measure: bool) -> Vec<String> {
    let Some(cpu) = cpu.filter(|_| opened.device.holds_data() && opened.device.name() != "cpu")
    else {
        return Vec::new();
    };
    let mut lines = with((opened, cpu), cpu, measure);
    let link = stored_link(opened, cpu);
    let slow = link.and_then(|link| slow(opened, &link));
    lines.extend(slow.map(|slow| format!("warning: {}", slow.text())));
    lines
}

/// Describes the stored link between two devices, of which the text names `other`; measures it
/// before if `measure`.
pub fn with((main, placed): (&Opened, &Opened), other: &Opened, measure: bool) -> Vec<String> {
    let failed = measure.then(|| renew_link(main, placed).err()).flatten();
    let failed = failed.map(|error| format!("warning: {}", Failure::from(error).text()));
    let costs = match stored_link(main, placed) {
        Some(link) => link.text(),
        None => "not measured: run `gristmill devices --measure`".into(),
    };
    let line = format!("link with {}: {costs}", other.device.name());
    std::iter::once(line).chain(failed).collect()
}

/// Measures the link of a device with the cpu, for a report; also returns the warning of a slow
/// one.
pub fn report(opened: &Opened) -> (Value, Option<Failure>) {
    let Some(cpu) = cpu() else {
        return (Value::Null, None);
    };
    let link = match measure_link(opened, &cpu) {
        Ok(link) => link.rounded(),
        Err(error) => return (json!({ "error": Failure::from(error).text() }), None),
    };
    let value = json!({
        "with": cpu.device.name(),
        "upload_gb_per_second": link.upload.map(|rate| rate / 1e9),
        "download_gb_per_second": link.download.map(|rate| rate / 1e9),
        "hand_over_us": link.handover.map(|seconds| (seconds * 1e7).round() / 10.0),
    });
    say!(
        "copies between {} and the host: {}",
        opened.device.name(),
        link.text()
    );
    (value, slow(opened, &link))
}

/// Returns the warning of a GPU whose copies are slow.
fn slow(opened: &Opened, link: &DeviceLink) -> Option<Failure> {
    let is_gpu = opened.target.machine.kind == MachineKind::Gpu;
    (is_gpu && link.is_slow()).then(|| {
        Failure::new(
            format_args!("copies between {} and the host are slow: {}", opened.device.name(), link.text()),
            "PCIe 4.0 with 16 lanes carries 25 GB/s, with 4 lanes 7: check the card's slot, riser cable and the \
             mainboard's settings; models larger than the GPU's memory read prompts at this rate",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_link_of_a_gpu_is_a_warning() {
        let opened = |name| gristmill_backend::open(name, &Options::default()).unwrap();
        let link = |rate| DeviceLink {
            upload: Some(rate),
            ..DeviceLink::ASSUMED
        };
        let text = slow(&opened("null:gpu"), &link(3e9)).unwrap().text();
        assert!(
            text.contains("upload 3 GB/s") && text.contains("hint: PCIe"),
            "{text}"
        );
        assert!(slow(&opened("null:gpu"), &link(7e9)).is_none());
        assert!(
            slow(&opened("interp"), &link(3e9)).is_none(),
            "its memory is the host's"
        );
    }
}
