//! A wrapper around a device that records its state buffers.

use gristmill_backend::Opened;
use gristmill_runtime::staging::StagedWrite;
use gristmill_runtime::{Buffer, Device, DeviceId, Error, Kernel, Launch, Memory, Replay};
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use std::sync::{Arc, Mutex};

/// The recorded state buffers of a device.
#[derive(Clone, Default)]
pub struct Recording(Arc<Mutex<Vec<Buffer>>>);

impl Recording {
    /// Returns the recorded buffers of `bytes` bytes.
    pub fn states(&self, bytes: usize) -> Vec<Buffer> {
        self.0
            .lock()
            .expect("a lock")
            .iter()
            .filter(|buffer| buffer.len() == bytes)
            .cloned()
            .collect()
    }
}

struct Recorded {
    inner: Arc<dyn Device>,
    states: Recording,
}

/// Wraps a device and returns its recording.
pub fn around(opened: Opened) -> (Opened, Recording) {
    let states = Recording::default();
    let device = Recorded {
        inner: opened.device.clone(),
        states: states.clone(),
    };
    (
        Opened {
            device: Arc::new(device),
            ..opened
        },
        states,
    )
}

impl Device for Recorded {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn id(&self) -> DeviceId {
        self.inner.id()
    }
    fn target(&self) -> &Target {
        self.inner.target()
    }
    fn describe(&self) -> Vec<String> {
        self.inner.describe()
    }
    fn available(&self) -> Option<u64> {
        self.inner.available()
    }
    fn alloc(&self, bytes: usize, memory: Memory) -> Result<Buffer, Error> {
        let buffer = self.inner.alloc(bytes, memory)?;
        if memory == Memory::State {
            self.states.0.lock().expect("a lock").push(buffer.clone());
        }
        Ok(buffer)
    }
    fn write(&self, to: &Buffer, offset: usize, data: &[u8]) -> Result<(), Error> {
        self.inner.write(to, offset, data)
    }
    fn read(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        self.inner.read(from, offset, data)
    }
    fn stage<'a>(
        &'a self,
        to: &Buffer,
        offset: usize,
        len: usize,
    ) -> Result<Box<dyn StagedWrite + 'a>, Error> {
        self.inner.stage(to, offset, len)
    }
    fn load(
        &self,
        programs: &[Program],
        progress: &dyn Fn(usize, usize),
    ) -> Result<Vec<Arc<dyn Kernel>>, Error> {
        self.inner.load(programs, progress)
    }
    fn capture(&self, launches: Vec<Launch>) -> Result<Box<dyn Replay>, Error> {
        self.inner.capture(launches)
    }
    fn capture_alone(&self, launches: Vec<Launch>) -> Result<Box<dyn Replay>, Error> {
        self.inner.capture_alone(launches)
    }
}
