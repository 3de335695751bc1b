//! Interface of a device: allocation, program loading, and captured steps that can be replayed.

use crate::buffer::Buffer;
use crate::error::Error;
use crate::kept_bytes::{HostBytes, KeptBytes};
use crate::lease::{DeviceId, RawBuffer, Use};
use crate::memory;
use crate::store::Store;
use gristmill_uop::costs::Costs;
use gristmill_uop::program::{Access, Extent, Program};
use gristmill_uop::target::Target;
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// Purpose of a buffer; a device may place it accordingly.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Memory {
    /// Written once during loading, then only read. Uses huge pages where available.
    Weights,
    /// KV cache and recurrent state: address space is reserved now, memory is committed as it is
    /// touched. Starts as zeros.
    State,
    /// Activations and tables. Starts as zeros.
    Scratch,
    /// Small results that the host reads after each step. A device with its own memory may copy
    /// them to the host as part of the step. Starts as zeros.
    Readback,
}

impl Memory {
    /// Returns a user-visible description of the contents.
    pub fn describe(self) -> &'static str {
        match self {
            Memory::Weights => "weights",
            Memory::State => "KV cache and recurrent state",
            Memory::Scratch => "activations",
            Memory::Readback => "results of steps",
        }
    }
}

/// One launch of a captured step.
#[derive(Clone)]
pub struct Launch {
    /// Loaded program to run.
    pub kernel: Arc<dyn Kernel>,
    /// Buffers, in the order of `Program::params`.
    pub buffers: Vec<Buffer>,
    /// Level of the launch. Launches of one level are independent; a level starts when the
    /// previous one has ended.
    pub level: usize,
}

impl Launch {
    /// Downcasts the kernel to a [`LoadedProgram`] with code of type `C`.
    ///
    /// # Errors
    /// [`Error::Invalid`] when another kind of device loaded it.
    pub fn loaded<C: Any + Send + Sync>(&self) -> Result<&LoadedProgram<C>, Error> {
        let kernel: &dyn Any = self.kernel.as_ref();
        kernel.downcast_ref().ok_or_else(|| {
            Error::invalid(&self.kernel.program().name, "was loaded by another device")
        })
    }
    /// Checks that kernel and buffers belong to `device` and that buffers of fixed extent are long
    /// enough. [`Launch::limits`] covers extents that depend on a variable.
    pub fn check(&self, device: DeviceId) -> Result<(), Error> {
        let program = self.kernel.program();
        let invalid = |message| Err(Error::invalid(&program.name, message));
        if self.kernel.device() != device {
            return invalid("was loaded by another device".into());
        }
        let (given, wanted) = (self.buffers.len(), program.params.len());
        if given != wanted {
            return invalid(format!("launched with {given} buffers instead of {wanted}"));
        }
        for (i, (buffer, param)) in self.buffers.iter().zip(&program.params).enumerate() {
            buffer.check_device(&program.name, device)?;
            if let Extent::Fixed(bytes) = param.extent
                && buffer.len() < bytes
            {
                return invalid(format!(
                    "its buffer {i} has {} bytes and needs {bytes}",
                    buffer.len()
                ));
            }
        }
        Ok(())
    }
    /// Returns, for each variable-size buffer, the largest value of its variable that fits.
    pub fn limits(&self) -> impl Iterator<Item = (&Arc<str>, i64)> {
        self.buffers
            .iter()
            .zip(&self.kernel.program().params)
            .filter_map(|(buffer, param)| match &param.extent {
                Extent::Fixed(_) => None,
                Extent::Per { variable, bytes } => {
                    Some((variable, (buffer.len() / (*bytes).max(1)) as i64))
                }
            })
    }
    /// Returns the memory ranges that the launch uses, by buffer: input of
    /// [`StepUses`](crate::lease::StepUses).
    pub fn uses(&self) -> impl Iterator<Item = (&Arc<dyn RawBuffer>, Range<usize>, Use)> {
        self.buffers
            .iter()
            .zip(&self.kernel.program().params)
            .map(|(buffer, param)| {
                let how = if param.access == Access::Read {
                    Use::Read
                } else {
                    Use::Write
                };
                (buffer.memory(), buffer.range(), how)
            })
    }
    /// Checks that the buffers are long enough for these variables; for devices that resolve
    /// variables at every launch.
    pub fn check_variables(&self, value: &dyn Fn(&str) -> Option<i64>) -> Result<(), Error> {
        for (name, most) in self.limits() {
            if let Some(value) = value(name).filter(|&v| v > most) {
                let message =
                    format!("{value} is not in the bounds of its buffers, at most {most}");
                return Err(Error::invalid(format!("variable {name}"), message));
            }
        }
        Ok(())
    }
}

/// A program compiled for a device; implemented by [`LoadedProgram`].
pub trait Kernel: Any + Send + Sync {
    /// Program from which it was compiled.
    fn program(&self) -> &Program;
    /// Device that loaded it.
    fn device(&self) -> DeviceId;
}

/// A program, the device that loaded it, and the device-specific code.
pub struct LoadedProgram<C> {
    program: Program,
    device: DeviceId,
    /// Device-specific executable form.
    pub code: C,
}

impl<C> LoadedProgram<C> {
    /// Combines a program with the code that `device` compiled from it.
    pub fn new(program: Program, device: DeviceId, code: C) -> LoadedProgram<C> {
        LoadedProgram {
            program,
            device,
            code,
        }
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

/// One worker's part of one launch; times in seconds since the step began.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Span {
    /// Index of the launch in the captured order.
    pub launch: usize,
    /// Index of the worker.
    pub worker: usize,
    /// Start time, seconds since the step began.
    pub start: f64,
    /// End time, seconds since the step began.
    pub end: f64,
}

/// A copy between the devices of a step; times in seconds since the step began.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CopySpan {
    /// Index of the device that is read; `None` for pinned memory of the host.
    pub from: Option<usize>,
    /// Index of the device that is written.
    pub to: usize,
    /// Bytes that are copied.
    pub bytes: usize,
    /// Start time, seconds since the step began.
    pub start: f64,
    /// End time, seconds since the step began.
    pub end: f64,
}

/// Timeline of a step.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct StepTrace {
    /// Each worker's part of each launch.
    pub spans: Vec<Span>,
    /// Copies between the devices of the step.
    pub copies: Vec<CopySpan>,
    /// Index of each launch's device, in the captured order; empty if there is one device.
    pub devices: Vec<usize>,
}

/// A captured step (in CUDA terms, a graph) that can be run repeatedly.
pub trait Replay: Send {
    /// Starts every launch with these values of the variables, by name;
    /// extra variables are ignored.
    ///
    /// A missing variable or one outside its bounds is an error, and then nothing has been started.
    ///
    /// The step begins after everything started earlier on the device has ended. Whether it has
    /// ended when this returns depends on the device. Until [`Replay::wait`] has returned, reading
    /// its outputs or writing any of its buffers is an error. So is starting it while
    /// the host uses the same bytes.
    fn start(&mut self, vars: &[(&str, i64)]) -> Result<(), Error>;
    /// Waits for the earliest `start` that has not been waited for; returns at once
    /// if there is none.
    fn wait(&mut self) -> Result<(), Error> {
        Ok(())
    }
    /// Runs every launch and waits for the end. All earlier starts must have been waited for.
    fn replay(&mut self, vars: &[(&str, i64)]) -> Result<(), Error> {
        self.start(vars)?;
        self.wait()
    }
    /// Like `replay`; returns the seconds of each launch, in order.
    fn replay_timed(&mut self, vars: &[(&str, i64)]) -> Result<Vec<f64>, Error>;
    /// Like `replay`; returns the span of each worker in each launch, and copies between devices.
    /// The default lays the times of `replay_timed` end to end.
    fn replay_traced(&mut self, vars: &[(&str, i64)]) -> Result<StepTrace, Error> {
        let mut start = 0.0;
        let after = |(launch, seconds): (usize, f64)| {
            let span = Span {
                launch,
                worker: 0,
                start,
                end: start + seconds,
            };
            start = span.end;
            span
        };
        let seconds = self.replay_timed(vars)?.into_iter();
        Ok(StepTrace {
            spans: seconds.enumerate().map(after).collect(),
            ..StepTrace::default()
        })
    }
}

/// A range of a buffer that the host fills and sends.
pub trait StagedWrite {
    /// Host memory that stages the range; its initial contents are unspecified.
    fn bytes(&mut self) -> &mut [u8];
    /// Sends the bytes to the buffer. Every step started afterwards sees them, even if the copy has
    /// not ended when this returns.
    fn send(self: Box<Self>) -> Result<(), Error>;
}

/// An opened device: memory, kernels and steps.
pub trait Device: Any + Send + Sync {
    /// Name of the device on the command line.
    fn name(&self) -> &str;
    /// Identity of this opened device, which owns its memory and kernels.
    fn id(&self) -> DeviceId;
    /// Target description used by the compiler.
    fn target(&self) -> &Target;
    /// Returns whether written data is kept. A device that executes nothing need not keep it.
    fn holds_data(&self) -> bool {
        true
    }
    /// Returns whether steps run asynchronously to the host: `Replay::start` then returns before
    /// the step has ended.
    fn overlaps(&self) -> bool {
        false
    }
    /// Lines for `gristmill devices`: features found and missing.
    fn describe(&self) -> Vec<String>;
    /// Calibrates the device's costs, in about a second, and stores them for later starts; `None`
    /// if there is nothing to measure.
    fn measure(&self) -> Result<Option<Costs>, Error> {
        Ok(None)
    }
    /// Returns the costs that [`Device::measure`] stored, if there are any.
    fn measured(&self) -> Option<Costs> {
        None
    }
    /// Machine description under which autotuned plans are stored; `None` if they are not stored.
    fn tuned_as(&self) -> Option<String> {
        None
    }
    /// Store of compiled kernels that persists between starts, if any.
    fn store(&self) -> Option<&Store> {
        None
    }
    /// Takes non-fatal problems that the user should know about; each is returned once.
    fn warnings(&self) -> Vec<Error> {
        Vec::new()
    }
    /// Bytes that can still be allocated, if known.
    fn available(&self) -> Option<u64> {
        memory::available()
    }
    /// Allocates a buffer of `bytes` bytes.
    fn alloc(&self, bytes: usize, memory: Memory) -> Result<Buffer, Error>;
    /// Copies `data` to the device.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the range does not lie in the buffer, the buffer is another
    /// device's, or these bytes are in use: by an unsent staged write, another copy, or a step that
    /// was not waited for.
    fn write(&self, to: &Buffer, offset: usize, data: &[u8]) -> Result<(), Error>;
    /// Copies from the device. Errors as for [`Device::write`], but concurrent reads are permitted.
    fn read(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error>;
    /// Like `read`, for settled bytes of a buffer that an in-flight step still writes elsewhere.
    ///
    /// The bytes were written by a step that has been waited for, and no in-flight step writes
    /// them: for example a list to which each step appends an element. If a step does write
    /// them, the result is any mixture of old and new bytes; a device with host memory refuses
    /// instead, as `read` does.
    fn read_settled(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        self.read(from, offset, data)
    }
    /// Copies a buffer to host memory that [`Device::restore`] reads as fast as the device can.
    ///
    /// # Errors
    /// As for [`Device::read`], and when the host lacks the memory.
    fn keep(&self, from: &Buffer) -> Result<Arc<dyn KeptBytes>, Error> {
        let mut bytes = vec![0; from.len()];
        self.read(from, 0, &mut bytes)?;
        Ok(Arc::new(bytes))
    }
    /// Keeps the bytes of a buffer in host memory, which another device owns, without a copy:
    /// nothing may write to them as long as they are kept.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the buffer is not in the host's memory, or is being written.
    fn keep_host(&self, host: &Buffer) -> Result<Arc<dyn KeptBytes>, Error> {
        Ok(Arc::new(HostBytes::new(host)?))
    }
    /// Copies a range of kept bytes to a buffer. Every step started afterwards sees them, even if
    /// the copy has not ended when this returns.
    ///
    /// # Errors
    /// As for [`Device::write`].
    fn restore(
        &self,
        kept: &dyn KeptBytes,
        range: Range<usize>,
        to: &Buffer,
        offset: usize,
    ) -> Result<(), Error> {
        self.write(to, offset, kept.part(range)?)
    }
    /// Returns whether [`Device::copy_queued`] copies from that device to this one.
    fn queues_copies_from(&self, _peer: &dyn Device) -> bool {
        false
    }
    /// Queues a copy of the first `bytes` bytes of a buffer of `peer`, behind all steps that were
    /// started on both devices. Steps started afterwards see the bytes on this device and wait for
    /// the copy on `peer`, whose buffer they may write.
    ///
    /// # Errors
    /// [`Error::Invalid`] when a buffer is too short or another device's, or these devices cannot:
    /// see [`Device::queues_copies_from`].
    fn copy_queued(
        &self,
        _peer: &dyn Device,
        _from: &Buffer,
        _to: &Buffer,
        _bytes: usize,
    ) -> Result<(), Error> {
        Err(Error::invalid(
            "a queued copy",
            "is not between these devices",
        ))
    }
    /// Waits for all started steps and queued copies.
    ///
    /// # Errors
    /// When one failed, or the device is lost.
    fn settle(&self) -> Result<(), Error> {
        Ok(())
    }
    /// Returns a staged write of `len` bytes at `offset`, for large transfers.
    ///
    /// Several threads may hold staged writes; a call may block until an earlier one has
    /// arrived. Errors as for [`Device::write`]; nothing else may use these bytes until it
    /// is sent or dropped.
    fn stage<'a>(
        &'a self,
        to: &Buffer,
        offset: usize,
        len: usize,
    ) -> Result<Box<dyn StagedWrite + 'a>, Error>;
    /// Compiles programs, or loads them from the store. `progress(done, total)` is
    /// called as they finish.
    fn load(
        &self,
        programs: &[Program],
        progress: &dyn Fn(usize, usize),
    ) -> Result<Vec<Arc<dyn Kernel>>, Error>;
    /// Captures launches, in a valid order, as a step that can be replayed.
    fn capture(&self, launches: Vec<Launch>) -> Result<Box<dyn Replay>, Error>;
    /// Like `capture`, for a step that runs entirely on the thread that replays it, where
    /// supported. Several threads can then run steps of their own.
    fn capture_alone(&self, launches: Vec<Launch>) -> Result<Box<dyn Replay>, Error> {
        self.capture(launches)
    }
}
