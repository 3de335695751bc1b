//! A wrapper around a device that fails on demand: at the n-th call, or at all calls from there on.
//! The server's tests include it too.
#![allow(dead_code, reason = "the server's tests use it too, each its part")]

use gristmill_backend::{Opened, Options, Precision, open};
use gristmill_runtime::staging::StagedWrite;
use gristmill_runtime::{Buffer, Device, DeviceId, Error, Kernel, Launch, Memory, Replay};
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Counts calls to a device, and the call that is to fail.
#[derive(Default)]
pub struct Calls {
    /// Calls since the failure was armed: copies, captures, starts, waits.
    made: AtomicUsize,
    /// Number of the call that fails, counted from 1; 0 for none.
    fails: AtomicUsize,
    /// Number of the call from which on the device is lost, counted likewise.
    lost: AtomicUsize,
    /// Copies from the device until one silently returns garbage; 0 for never.
    garbles: AtomicUsize,
    /// Steps that were started and not waited for.
    running: AtomicUsize,
    /// Captured steps that exist.
    captured: AtomicUsize,
    /// Bytes of allocated buffers, except scratch: loading frees its staging buffers.
    allocated: AtomicUsize,
}

impl Calls {
    /// Makes the `n`-th call from now on fail once; 0 for none.
    pub fn fail(&self, n: usize) {
        self.made.store(0, Ordering::SeqCst);
        self.fails.store(n, Ordering::SeqCst);
    }
    /// Makes the device lost from the `n`-th call from now on: no later call succeeds.
    pub fn lose(&self, n: usize) {
        self.made.store(0, Ordering::SeqCst);
        self.lost.store(n, Ordering::SeqCst);
    }
    /// Makes the `n`-th copy from the device from now on return garbage without an error, once.
    pub fn garble(&self, n: usize) {
        self.garbles.store(n, Ordering::SeqCst);
    }
    /// Returns whether garbage is still pending.
    pub fn garbles(&self) -> bool {
        self.garbles.load(Ordering::SeqCst) > 0
    }
    /// Returns the number of calls since a failure was armed.
    pub fn made(&self) -> usize {
        self.made.load(Ordering::SeqCst)
    }
    /// Returns the number of running steps.
    pub fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }
    /// Returns the number of captured steps.
    pub fn captured(&self) -> usize {
        self.captured.load(Ordering::SeqCst)
    }
    /// Returns the bytes allocated for weights and states so far.
    pub fn allocated(&self) -> usize {
        self.allocated.load(Ordering::SeqCst)
    }
    /// Counts a call, and fails if it is the armed one.
    fn check(&self, what: &str) -> Result<(), Error> {
        let call = self.made.fetch_add(1, Ordering::SeqCst) + 1;
        let lost = self.lost.load(Ordering::SeqCst);
        if lost > 0 && call >= lost {
            let hint = "start again".into();
            return Err(Error::Lost {
                device: "the device".into(),
                what: format!("{what} did not end"),
                hint,
            });
        }
        if call == self.fails.load(Ordering::SeqCst) {
            Err(failure(what))
        } else {
            Ok(())
        }
    }
}

fn failure(what: &str) -> Error {
    Error::invalid(what, "failed on demand")
}

/// A device that fails on demand.
struct Failing {
    inner: Arc<dyn Device>,
    calls: Arc<Calls>,
    overlaps: bool,
}

/// Opens the named device with failures on demand. With `overlaps` it claims that
/// its steps run asynchronously.
pub fn failing(name: &str, exact: bool, overlaps: bool) -> (Opened, Arc<Calls>) {
    let options = Options {
        threads: Some(2),
        precision: if exact {
            Precision::Exact
        } else {
            Precision::Fast
        },
        quick: true,
        ..Options::default()
    };
    around(open(name, &options).expect("a device"), overlaps)
}

/// Wraps an opened device in the same way.
pub fn around(opened: Opened, overlaps: bool) -> (Opened, Arc<Calls>) {
    let calls = Arc::new(Calls::default());
    let device = Failing {
        inner: opened.device.clone(),
        calls: calls.clone(),
        overlaps,
    };
    (
        Opened {
            device: Arc::new(device),
            ..opened
        },
        calls,
    )
}

/// Byte pattern that is NaN in every float type.
const GARBAGE: u8 = 0xff;

impl Device for Failing {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn id(&self) -> DeviceId {
        self.inner.id()
    }
    fn target(&self) -> &Target {
        self.inner.target()
    }
    fn overlaps(&self) -> bool {
        self.overlaps
    }
    fn describe(&self) -> Vec<String> {
        self.inner.describe()
    }
    fn available(&self) -> Option<u64> {
        self.inner.available()
    }
    fn alloc(&self, bytes: usize, memory: Memory) -> Result<Buffer, Error> {
        if memory != Memory::Scratch {
            self.calls.allocated.fetch_add(bytes, Ordering::SeqCst);
        }
        self.inner.alloc(bytes, memory)
    }
    /// A failed copy leaves garbage in half of its bytes.
    fn write(&self, to: &Buffer, offset: usize, data: &[u8]) -> Result<(), Error> {
        if let Err(error) = self.calls.check("a copy to the device") {
            self.inner
                .write(to, offset, &vec![GARBAGE; data.len().div_ceil(2)])?;
            return Err(error);
        }
        self.inner.write(to, offset, data)
    }
    fn read(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        if let Err(error) = self.calls.check("a copy from the device") {
            data.fill(GARBAGE);
            return Err(error);
        }
        self.inner.read(from, offset, data)?;
        let count = |left: usize| left.checked_sub(1);
        if self
            .calls
            .garbles
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, count)
            == Ok(1)
        {
            data.fill(GARBAGE);
        }
        Ok(())
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
        self.calls.check("a capture")?;
        Ok(Step::around(self.inner.capture(launches)?, &self.calls))
    }
    fn capture_alone(&self, launches: Vec<Launch>) -> Result<Box<dyn Replay>, Error> {
        self.inner.capture_alone(launches)
    }
}

/// A captured step. A failed start starts nothing; a failed wait still ends its step.
struct Step {
    inner: Box<dyn Replay>,
    calls: Arc<Calls>,
    running: usize,
}

impl Step {
    fn around(inner: Box<dyn Replay>, calls: &Arc<Calls>) -> Box<dyn Replay> {
        calls.captured.fetch_add(1, Ordering::SeqCst);
        Box::new(Step {
            inner,
            calls: calls.clone(),
            running: 0,
        })
    }
}

impl Replay for Step {
    fn start(&mut self, vars: &[(&str, i64)]) -> Result<(), Error> {
        self.calls.check("a start")?;
        self.inner.start(vars)?;
        self.running += 1;
        self.calls.running.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
    fn wait(&mut self) -> Result<(), Error> {
        if self.running > 0 {
            self.running -= 1;
            self.calls.running.fetch_sub(1, Ordering::SeqCst);
        }
        self.inner.wait()?;
        self.calls.check("a wait")
    }
    fn replay_timed(&mut self, vars: &[(&str, i64)]) -> Result<Vec<f64>, Error> {
        self.inner.replay_timed(vars)
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        self.calls.captured.fetch_sub(1, Ordering::SeqCst);
    }
}
