//! A device that keeps books and runs nothing: scheduling tests, and the size of a model, on a machine without hardware.

use gristmill_runtime::staging::{self, Piece};
use gristmill_runtime::{Buffer, Device, Error, Kernel, Launch, Memory, RawBuffer, Replay};
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The null device.
pub struct NullDevice {
    name: String,
    target: Target,
    used: Arc<AtomicUsize>,
}

impl NullDevice {
    /// A device under this name with these numbers.
    pub fn new(name: impl Into<String>, target: Target) -> NullDevice {
        NullDevice { name: name.into(), target, used: Arc::default() }
    }
    /// Bytes of all buffers that live.
    pub fn allocated(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

struct NullBuffer {
    bytes: usize,
    used: Arc<AtomicUsize>,
}

impl RawBuffer for NullBuffer {
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn host(&self) -> Option<*mut u8> {
        None
    }
}

impl Drop for NullBuffer {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct NullKernel(Program);

impl Kernel for NullKernel {
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn program(&self) -> &Program {
        &self.0
    }
}

struct NullReplay {
    launches: Vec<Launch>,
}

impl Replay for NullReplay {
    fn start(&mut self, _: &[(&str, i64)]) -> Result<(), Error> {
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
    fn target(&self) -> &Target {
        &self.target
    }
    fn holds_data(&self) -> bool {
        false
    }
    fn describe(&self) -> Vec<String> {
        vec![format!("runs nothing, with the numbers of {}", self.target.name)]
    }
    fn available(&self) -> Option<u64> {
        None
    }
    fn alloc(&self, bytes: usize, _: Memory) -> Result<Buffer, Error> {
        self.used.fetch_add(bytes, Ordering::Relaxed);
        Ok(Buffer { raw: Arc::new(NullBuffer { bytes, used: self.used.clone() }), offset: 0, len: bytes })
    }
    fn write(&self, to: &Buffer, offset: usize, data: &[u8]) -> Result<(), Error> {
        to.check("write", offset, data.len())
    }
    /// Reads zeros.
    fn read(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        from.check("read", offset, data.len())?;
        data.fill(0);
        Ok(())
    }
    fn stage<'a>(&'a self, to: &Buffer, offset: usize, len: usize) -> Result<Box<dyn Piece + 'a>, Error> {
        staging::through(self, to, offset, len)
    }
    fn load(&self, programs: &[Program], progress: &dyn Fn(usize, usize)) -> Result<Vec<Arc<dyn Kernel>>, Error> {
        progress(programs.len(), programs.len());
        Ok(programs.iter().map(|p| Arc::new(NullKernel(p.clone())) as Arc<dyn Kernel>).collect())
    }
    fn capture(&self, launches: Vec<Launch>) -> Result<Box<dyn Replay>, Error> {
        for launch in &launches {
            launch.check()?;
        }
        Ok(Box::new(NullReplay { launches }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_books() {
        let device = NullDevice::new("null", Target::gpu_h200());
        let buffer = device.alloc(1 << 40, Memory::Weights).unwrap();
        let small = device.alloc(10, Memory::Scratch).unwrap();
        assert_eq!(device.allocated(), (1 << 40) + 10);
        assert!(buffer.raw.host().is_none());
        let mut data = [1; 4];
        device.read(&small, 6, &mut data).unwrap();
        assert_eq!(data, [0; 4]);
        assert!(device.write(&small, 7, &data).is_err());
        let part = buffer.slice(5, 5);
        drop(buffer);
        assert_eq!(device.allocated(), (1 << 40) + 10);
        drop((part, small));
        assert_eq!(device.allocated(), 0);
    }
}
