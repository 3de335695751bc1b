//! A device that only tracks allocations and runs nothing.
//!
//! It serves scheduling tests and memory estimates without the hardware.

use gristmill_runtime::lease::{Order, Owner, StepGuard, StepUses, Use, Uses};
use gristmill_runtime::staging::{self, StagedWrite};
use gristmill_runtime::{
    Buffer, Device, DeviceId, Error, Kernel, Launch, LoadedProgram, Memory, RawBuffer, Replay,
};
use gristmill_uop::adapter::Adapter;
use gristmill_uop::machine::{MachineKind, NAMED};
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A device that allocates no memory and runs no kernel.
pub struct NullDevice {
    owner: Owner,
    name: String,
    target: Target,
    used: Arc<AtomicUsize>,
}

impl NullDevice {
    /// Creates a device with a name and a target.
    pub fn new(name: impl Into<String>, target: Target) -> NullDevice {
        NullDevice {
            owner: Owner::new(),
            name: name.into(),
            target,
            used: Arc::default(),
        }
    }
    /// Creates the NVIDIA GPU named `machine` in [`NAMED`]; `None` means an H200.
    pub fn for_gpu(machine: Option<&'static str>) -> NullDevice {
        let name = format!("null:{}", machine.unwrap_or("gpu"));
        NullDevice::new(name, Target::named(machine.unwrap_or("h200")))
    }
    /// Creates the GPU named `machine` as wgpu would describe it; `None` means an H200.
    pub fn for_adapter(machine: Option<&'static str>) -> NullDevice {
        let name = format!("null:{}", machine.unwrap_or("wgpu"));
        let adapter = Adapter::named(machine.unwrap_or("h200"))
            .expect("what is told of each GPU that is not NVIDIA's");
        NullDevice::new(name, Target::new(adapter.machine()))
    }
    /// Returns the total size of all live buffers in bytes.
    pub fn allocated(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

struct NullBuffer {
    bytes: usize,
    uses: Uses,
    used: Arc<AtomicUsize>,
}

// SAFETY: it has no address.
unsafe impl RawBuffer for NullBuffer {
    fn len(&self) -> usize {
        self.bytes
    }
    fn uses(&self) -> &Uses {
        &self.uses
    }
}

impl Drop for NullBuffer {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Runs nothing; a started step counts as in flight until it is waited for.
struct NullReplay {
    launches: Vec<Launch>,
    uses: StepUses,
    started: VecDeque<StepGuard>,
}

impl Replay for NullReplay {
    fn start(&mut self, _: &[(&str, i64)]) -> Result<(), Error> {
        self.started.push_back(self.uses.begin()?);
        Ok(())
    }
    fn wait(&mut self) -> Result<(), Error> {
        self.started.pop_front();
        Ok(())
    }
    fn replay_timed(&mut self, _: &[(&str, i64)]) -> Result<Vec<f64>, Error> {
        Ok(vec![0.0; self.launches.len()])
    }
}

impl Device for NullDevice {
    fn name(&self) -> &str {
        &self.name
    }
    fn id(&self) -> DeviceId {
        self.owner.id()
    }
    fn target(&self) -> &Target {
        &self.target
    }
    fn holds_data(&self) -> bool {
        false
    }
    fn describe(&self) -> Vec<String> {
        let mut lines = vec![format!(
            "runs nothing, with the numbers of {}",
            self.target.name
        )];
        let machine = &self.target.machine;
        if machine.kind == MachineKind::Gpu {
            let alike = NAMED
                .iter()
                .filter(|row| row.is_nvidia() == machine.sm.is_some());
            lines.extend(alike.map(|row| format!("null:{:<10} {}", row.name, row.doc)));
        }
        lines
    }
    fn available(&self) -> Option<u64> {
        None
    }
    fn alloc(&self, bytes: usize, _: Memory) -> Result<Buffer, Error> {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        let uses = Uses::new(&self.owner);
        Ok(Buffer::whole(Arc::new(NullBuffer {
            bytes,
            uses,
            used: self.used.clone(),
        })))
    }
    fn write(&self, to: &Buffer, offset: usize, data: &[u8]) -> Result<(), Error> {
        to.check_device("write", self.id())?;
        to.lease("write", offset, data.len(), Use::Write).map(drop)
    }
    /// Fills the destination with zeros.
    fn read(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        from.check_device("read", self.id())?;
        from.lease("read", offset, data.len(), Use::Read)?;
        data.fill(0);
        Ok(())
    }
    fn stage<'a>(
        &'a self,
        to: &Buffer,
        offset: usize,
        len: usize,
    ) -> Result<Box<dyn StagedWrite + 'a>, Error> {
        staging::through(self, to, offset, len)
    }
    fn load(
        &self,
        programs: &[Program],
        progress: &dyn Fn(usize, usize),
    ) -> Result<Vec<Arc<dyn Kernel>>, Error> {
        progress(programs.len(), programs.len());
        Ok(programs
            .iter()
            .map(|p| Arc::new(LoadedProgram::new(p.clone(), self.id(), ())) as Arc<dyn Kernel>)
            .collect())
    }
    fn capture(&self, launches: Vec<Launch>) -> Result<Box<dyn Replay>, Error> {
        for launch in &launches {
            launch.check(self.id())?;
        }
        let uses = StepUses::new(
            &self.owner,
            launches.iter().flat_map(Launch::uses),
            Order::Queued,
        );
        Ok(Box::new(NullReplay {
            launches,
            uses,
            started: VecDeque::new(),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_books() {
        let device = NullDevice::new("null", Target::named("h200"));
        let buffer = device.alloc(1 << 40, Memory::Weights).unwrap();
        let small = device.alloc(10, Memory::Scratch).unwrap();
        assert_eq!(device.allocated(), (1 << 40) + 10);
        assert!(buffer.host().is_none());
        let mut data = [1; 4];
        device.read(&small, 6, &mut data).unwrap();
        assert_eq!(data, [0; 4]);
        assert!(device.write(&small, 7, &data).is_err());
        let part = buffer.slice(5, 5).unwrap();
        drop(buffer);
        assert_eq!(device.allocated(), (1 << 40) + 10);
        drop((part, small));
        assert_eq!(device.allocated(), 0);
    }
}
