//! What a device does: it has memory, loads programs, and captures steps that can be replayed.

use crate::buffer::Buffer;
use crate::error::Error;
use crate::lease::{DeviceId, RawBuffer, Use};
use crate::memory;
use crate::store::Store;
use gristmill_uop::costs::Costs;
use gristmill_uop::program::{Access, Extent, Program};
use gristmill_uop::target::Target;
use std::any::Any;
use std::ops::Range;
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
    /// What a step tells the host, which reads it after each: a few numbers. Where memory is not the host's, a copy may come with the step. Starts as zeros.
    Readback,
}

impl Memory {
    /// What is in it, for people.
    pub fn what(self) -> &'static str {
        match self {
            Memory::Weights => "weights",
            Memory::State => "the context's state",
            Memory::Scratch => "activations",
            Memory::Readback => "what steps tell",
        }
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
    /// The kernel, as one of a device that makes this of programs.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it is another's.
    pub fn loaded<C: Any + Send + Sync>(&self) -> Result<&LoadedProgram<C>, Error> {
        let kernel: &dyn Any = self.kernel.as_ref();
        kernel.downcast_ref().ok_or_else(|| Error::invalid(&self.kernel.program().name, "was loaded by another device"))
    }
    /// Are the kernel and its buffers that device's, and each buffer as long as the kernel needs? What a variable must be known for,
    /// [`Launch::limits`] says.
    pub fn check(&self, device: DeviceId) -> Result<(), Error> {
        let program = self.kernel.program();
        let invalid = |message| Err(Error::invalid(&program.name, message));
        if self.kernel.device() != device {
            return invalid("was loaded by another device".into());
        }
        let (given, wanted) = (self.buffers.len(), program.params.len());
        if given != wanted {
            return invalid(format!("launched with {given} buffers, has {wanted}"));
        }
        for (i, (buffer, param)) in self.buffers.iter().zip(&program.params).enumerate() {
            buffer.check_device(&program.name, device)?;
            if let Extent::Fixed(bytes) = param.extent
                && buffer.len() < bytes
            {
                return invalid(format!("its buffer {i} has {} bytes, and {bytes} may be used", buffer.len()));
            }
        }
        Ok(())
    }
    /// The largest values of variables for which the buffers are long enough.
    pub fn limits(&self) -> impl Iterator<Item = (&Arc<str>, i64)> {
        self.buffers.iter().zip(&self.kernel.program().params).filter_map(|(buffer, param)| match &param.extent {
            Extent::Fixed(_) => None,
            Extent::Per { variable, bytes } => Some((variable, (buffer.len() / (*bytes).max(1)) as i64)),
        })
    }
    /// Its uses of memory, buffer by buffer: for [`StepUses`](crate::lease::StepUses).
    pub fn uses(&self) -> impl Iterator<Item = (&Arc<dyn RawBuffer>, Range<usize>, Use)> {
        self.buffers.iter().zip(&self.kernel.program().params).map(|(buffer, param)| {
            let how = if param.access == Access::Read { Use::Read } else { Use::Write };
            (buffer.memory(), buffer.range(), how)
        })
    }
    /// Are the buffers long enough for these values? For devices that look variables up at every launch.
    pub fn check_variables(&self, value: &dyn Fn(&str) -> Option<i64>) -> Result<(), Error> {
        for (name, most) in self.limits() {
            if let Some(value) = value(name).filter(|&v| v > most) {
                let message = format!("{value} is not in its buffers' bounds, at most {most}");
                return Err(Error::invalid(format!("variable {name}"), message));
            }
        }
        Ok(())
    }
}

/// A compiled program on a device: a [`LoadedProgram`] of whatever the device made of it.
pub trait Kernel: Any + Send + Sync {
    /// The program it was compiled from.
    fn program(&self) -> &Program;
    /// The device that loaded it.
    fn device(&self) -> DeviceId;
}

/// A program, the device that loaded it, and what that made of it.
pub struct LoadedProgram<C> {
    program: Program,
    device: DeviceId,
    /// What runs.
    pub code: C,
}

impl<C> LoadedProgram<C> {
    /// A program that this device has made this of.
    pub fn new(program: Program, device: DeviceId, code: C) -> LoadedProgram<C> {
        LoadedProgram { program, device, code }
    }
}

impl<C: Any + Send + Sync> Kernel for LoadedProgram<C> {
    fn program(&self) -> &Program {
        &self.program
    }
    fn device(&self) -> DeviceId {
        self.device
    }
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
    /// device's affair; until it is waited for, to read what it writes is an error, and to write what it uses, and so is to start it while
    /// the host does.
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

/// A piece of a buffer, to be filled.
pub trait Piece {
    /// Host memory that stands for it; what is in it means nothing.
    fn bytes(&mut self) -> &mut [u8];
    /// Sends the bytes to where they belong. They are there for every step that is started afterwards, whether or not they are when this
    /// returns.
    fn send(self: Box<Self>) -> Result<(), Error>;
}

/// A device.
pub trait Device: Send + Sync {
    /// Name as on the command line.
    fn name(&self) -> &str;
    /// Which opened device: its memory and kernels are no other's.
    fn id(&self) -> DeviceId;
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
    /// Measures what things cost on it, for about a second, and keeps that for later starts; none where there is nothing to measure.
    fn measure(&self) -> Result<Option<Costs>, Error> {
        Ok(None)
    }
    /// The machine in words, by which what a tuner finds for it is kept; none where it is not.
    fn tuned_as(&self) -> Option<String> {
        None
    }
    /// Where what is compiled for it is kept from one start to the next, if it is.
    fn store(&self) -> Option<&Store> {
        None
    }
    /// What did not keep it from working, but whoever uses it should know: each is told once.
    fn warnings(&self) -> Vec<Error> {
        Vec::new()
    }
    /// Bytes that buffers may still take, if that can be said.
    fn available(&self) -> Option<u64> {
        memory::available()
    }
    /// A new buffer.
    fn alloc(&self, bytes: usize, memory: Memory) -> Result<Buffer, Error>;
    /// Copies to the device.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the bytes do not lie in the buffer, the buffer is another device's, or something else uses these bytes now: a
    /// piece that was not sent, another copy, a step that was not waited for.
    fn write(&self, to: &Buffer, offset: usize, data: &[u8]) -> Result<(), Error>;
    /// Copies from the device. Errors are those of [`Device::write`]; what others only read may be read.
    fn read(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error>;
    /// As `read`, of bytes that were written by a step which has been waited for, and that none in flight writes, though a step in flight has
    /// others of this buffer to write: a list of which each step adds its element. If one does write them, what is read is old bytes or new
    /// ones, in any mixture; a device whose memory is the host's refuses instead, as `read` does.
    fn read_settled(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        self.read(from, offset, data)
    }
    /// A piece of a buffer, to be filled by the host and sent: for what is large. Several threads may have pieces of their own; one
    /// may have to wait until an earlier piece has arrived. Errors are those of [`Device::write`]: until it is sent or dropped, nothing else
    /// may use these bytes.
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
