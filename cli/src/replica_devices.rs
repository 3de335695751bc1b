//! The devices of `serve --device A,B`, each with a replica of every model.

use crate::failure::Result;
use crate::flags::Common;
use gristmill_backend::{Opened, find};
use gristmill_uop::machine::MachineKind;

/// Open devices that hold a replica of each model.
pub struct ReplicaDevices {
    devices: Vec<ReplicaDevice>,
}

/// An open device of a replica.
pub struct ReplicaDevice {
    /// Name as given to `--device`, by which the server reports it.
    pub name: String,
    pub opened: Opened,
    /// Number of replicas in its memory.
    sharing: u64,
    /// Bytes that each of them may take, if there are several.
    pub share: Option<u64>,
}

impl ReplicaDevice {
    /// Returns the bytes that each replica in its memory may still take, if known.
    fn available(&self) -> Option<u64> {
        let available = self.opened.device.available();
        available.map(|bytes| bytes / self.sharing)
    }
}

/// Returns what two devices of one memory have in common.
fn memory_of(name: &str, opened: &Opened) -> (&'static str, usize, Option<String>) {
    match find(name) {
        Ok(found) if opened.target.machine.kind == MachineKind::Gpu => {
            (found.row.name, found.number, found.adapter)
        }
        _ => ("host", 0, None),
    }
}

impl ReplicaDevices {
    /// Opens the devices of `--device`, or the default one.
    pub fn open(common: &Common) -> Result<ReplicaDevices> {
        let names = common.devices();
        let opened = match names.as_slice() {
            [] | [_] => vec![common.open()?],
            several => several
                .iter()
                .map(|name| common.with_shared_cores(several).open_as(name))
                .collect::<Result<_>>()?,
        };
        let mut devices: Vec<ReplicaDevice> = Vec::new();
        for (at, opened) in opened.into_iter().enumerate() {
            let name = names.get(at).copied();
            devices.push(ReplicaDevice {
                name: name.unwrap_or(opened.device.name()).to_owned(),
                opened,
                sharing: 1,
                share: None,
            });
        }
        let memories: Vec<_> = (devices.iter())
            .map(|device| memory_of(&device.name, &device.opened))
            .collect();
        for (device, memory) in devices.iter_mut().zip(&memories) {
            let sharing = memories.iter().filter(|other| *other == memory).count();
            device.sharing = sharing as u64;
            device.share = device.available().filter(|_| sharing > 1);
        }
        if let [_, _, ..] = names.as_slice() {
            say!("replicas: one of each model on {}", names.join(", "));
        }
        Ok(ReplicaDevices { devices })
    }
    /// Returns the devices, in the order of `--device`.
    pub fn all(&self) -> &[ReplicaDevice] {
        &self.devices
    }
    /// Returns the bytes that a further model may take on each device, if known.
    pub fn available(&self) -> Option<u64> {
        let all = self.devices.iter();
        all.filter_map(ReplicaDevice::available).min()
    }
}
