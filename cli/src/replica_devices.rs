//! The devices of `serve --device A,B`: each with a replica of every model, or with some of its
//! layers.

use crate::failure::Result;
use crate::flags::Common;
use gristmill_backend::{Opened, find};
use gristmill_llm::placement::{OtherDevice, PlacementRequest};
use gristmill_uop::machine::MachineKind;

/// Open devices that hold a replica of each model.
pub struct ReplicaDevices {
    devices: Vec<ReplicaDevice>,
    /// GPUs that hold layers of a replica on the first device, which is the only one then.
    peers: Vec<OtherDevice>,
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
        Ok(ReplicaDevices {
            devices,
            peers: Vec::new(),
        })
    }
    /// Divides the layers of each model among all devices, instead of a replica on each.
    pub fn divided(mut self) -> ReplicaDevices {
        let peers = self.devices.drain(1..).map(|of| of.opened);
        self.peers = peers.map(OtherDevice::from_opened).collect();
        self
    }
    /// Returns the placement with the opened devices besides the first one that hold layers.
    pub fn divide(&self, mut of: PlacementRequest) -> PlacementRequest {
        for (other, peer) in of.others.iter_mut().zip(&self.peers) {
            *other = peer.clone();
        }
        of
    }
    /// Tells what is on several devices.
    pub fn tell(&self) {
        let names: Vec<&str> = self.devices.iter().map(|of| of.name.as_str()).collect();
        if names.len() > 1 {
            say!("replicas: one of each model on {}", names.join(", "));
        } else if !self.peers.is_empty() {
            say!(
                "note: each model is on all of the devices together: it does not fit on one, or flags place its parts"
            );
        }
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
