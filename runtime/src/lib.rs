//! What a device is: buffers, programs, capture and replay, stores on disk. Knows no compiler.

mod error;
pub mod image;
pub mod index;
pub mod memory;
pub mod staging;
pub mod store;

pub use error::Error;
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use staging::Piece;
use std::any::Any;
use std::sync::Arc;

/// What a buffer is for; a device may place it accordingly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// Written once at load, then only read: huge pages where there are any.
    Weights,
    /// A state that grows: address space now, memory as it is touched. Starts as zeros.
    State,
    /// Activations and tables. Starts as zeros.
    Scratch,
}

impl Memory {
    /// What is in it, for people.
    pub fn what(self) -> &'static str {
        match self {
            Memory::Weights => "weights",
            Memory::State => "the context's state",
            Memory::Scratch => "activations",
        }
    }
}

/// A piece of a device's memory. Cheap to clone; freed with its last clone.
#[derive(Clone)]
pub struct Buffer {
    /// The device's own handle.
    pub raw: Arc<dyn RawBuffer>,
    /// Where this piece begins in it, bytes.
    pub offset: usize,
    /// How long it is, bytes.
    pub len: usize,
}

/// A device's own buffer.
pub trait RawBuffer: Any + Send + Sync {
    /// For downcasting by the device that made it.
    fn as_any(&self) -> &dyn Any;
    /// Address on the host, where the memory is the host's.
    fn host(&self) -> Option<*mut u8>;
}

impl Buffer {
    /// Is `offset + len` inside? As an error, for devices' copies and launches.
    pub fn check(&self, what: &str, offset: usize, len: usize) -> Result<(), Error> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Error::invalid(what, format!("{len} bytes at {offset} of a buffer of {}", self.len))),
        }
    }
    /// A piece of this piece. Panics if it does not lie inside, which callers have checked.
    pub fn slice(&self, offset: usize, len: usize) -> Buffer {
        assert!(offset + len <= self.len, "slice {offset}+{len} of {}", self.len);
        Buffer { raw: self.raw.clone(), offset: self.offset + offset, len }
    }
}

/// One launch of a captured step.
#[derive(Clone)]
pub struct Launch {
    /// Which loaded program.
    pub kernel: Arc<dyn Kernel>,
    /// Its buffers, in the order of `Program::params`.
    pub buffers: Vec<Buffer>,
    /// Launches of one level do not depend on one another; a level starts when the one before has ended.
    pub level: usize,
}

impl Launch {
    /// Are there as many buffers as the program has?
    pub fn check(&self) -> Result<(), Error> {
        let program = self.kernel.program();
        if self.buffers.len() == program.params.len() {
            return Ok(());
        }
        let message = format!("launched with {} buffers, has {}", self.buffers.len(), program.params.len());
        Err(Error::invalid(&program.name, message))
    }
}

/// A compiled program on a device.
pub trait Kernel: Any + Send + Sync {
    /// For downcasting by the device that made it.
    fn as_any(&self) -> &dyn Any;
    /// The program it was compiled from.
    fn program(&self) -> &Program;
}

/// One worker's part of one launch, in seconds since the step began.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Span {
    /// Which launch, counted in the order of the capture.
    pub launch: usize,
    /// Which worker.
    pub worker: usize,
    /// When it began.
    pub start: f64,
    /// When it ended.
    pub end: f64,
}

/// A captured step.
pub trait Replay: Send {
    /// Starts every launch with these values of the variables (by name; others may be among them). A variable that is missing or
    /// outside its bounds is an error, and then nothing has been started.
    ///
    /// What was started on a device before, this step or another, ends before it begins. Whether it has ended when this returns is the
    /// device's affair; until it is waited for, bytes that it writes may not be read, and bytes that it reads may not be written.
    fn start(&mut self, vars: &[(&str, i64)]) -> Result<(), Error>;
    /// Waits for the end of the earliest `start` that has not been waited for; if there is none, returns at once.
    fn wait(&mut self) -> Result<(), Error> {
        Ok(())
    }
    /// Runs every launch and waits for the end. What was started before has been waited for.
    fn replay(&mut self, vars: &[(&str, i64)]) -> Result<(), Error> {
        self.start(vars)?;
        self.wait()
    }
    /// As `replay`, with the time of each launch in seconds, in order.
    fn replay_timed(&mut self, vars: &[(&str, i64)]) -> Result<Vec<f64>, Error>;
    /// As `replay`, with when each worker was at each launch. A device that cannot tell gives what it has timed, end to end.
    fn replay_traced(&mut self, vars: &[(&str, i64)]) -> Result<Vec<Span>, Error> {
        let mut start = 0.0;
        let after = |(launch, seconds): (usize, f64)| {
            let span = Span { launch, worker: 0, start, end: start + seconds };
            start = span.end;
            span
        };
        Ok(self.replay_timed(vars)?.into_iter().enumerate().map(after).collect())
    }
}

/// A device.
pub trait Device: Send + Sync {
    /// Name as on the command line.
    fn name(&self) -> &str;
    /// Its numbers.
    fn target(&self) -> &Target;
    /// Does it hold what is written to it? A device that runs nothing need not.
    fn holds_data(&self) -> bool {
        true
    }
    /// Does a step run beside the host? Then `Replay::start` returns before it has ended.
    fn overlaps(&self) -> bool {
        false
    }
    /// Lines for `gristmill devices`: what was found, what is missing.
    fn describe(&self) -> Vec<String>;
    /// Bytes that buffers may still take, if that can be said.
    fn available(&self) -> Option<u64> {
        memory::available()
    }
    /// A new buffer.
    fn alloc(&self, bytes: usize, memory: Memory) -> Result<Buffer, Error>;
    /// Copies to the device.
    fn write(&self, to: &Buffer, offset: usize, data: &[u8]) -> Result<(), Error>;
    /// Copies from the device.
    fn read(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error>;
    /// A piece of a buffer, to be filled by the host and sent: for what is large. Several threads may have pieces of their own; one
    /// may have to wait until an earlier piece has arrived. Until it is sent, nothing else uses these bytes.
    fn stage<'a>(&'a self, to: &Buffer, offset: usize, len: usize) -> Result<Box<dyn Piece + 'a>, Error>;
    /// Compiles programs, or finds them in the cache. `progress(done, total)` is called as they finish.
    fn load(&self, programs: &[Program], progress: &dyn Fn(usize, usize)) -> Result<Vec<Arc<dyn Kernel>>, Error>;
    /// Binds launches, in a valid order, into a step that can be replayed.
    fn capture(&self, launches: Vec<Launch>) -> Result<Box<dyn Replay>, Error>;
    /// The same, for a step that the thread which replays it runs alone, where the device can: then several threads have steps of their own.
    fn capture_alone(&self, launches: Vec<Launch>) -> Result<Box<dyn Replay>, Error> {
        self.capture(launches)
    }
}
