//! The device `interp`: runs kernel-level graphs in plain Rust. Slow, needs nothing, and the oracle that the other devices
//! are held against.
//!
//! What a kernel means: its workgroups are divided among its bodies in order, each taking the product of the bounds of
//! its `Global` ranges (row-major in the order of their numbers). A workgroup runs the nests of its body in order; a nest
//! loops over the ranges it closes, in the order given. All kinds of range other than `Global` are sequential loops.
//!
//! - Elementwise ops mean what `uop::fold` says, each result rounded to its type; `Fma` is rounded once; `Exp` and `Log` are
//!   computed in f64 and rounded.
//! - A reduction adds up in the order of its ranges, and each partial sum is rounded to the type of the reduction.
//! - Both sides of a `Where` are evaluated; a load on the side not taken must be in bounds too.
//! - What does not vary with a loop is computed before it, even if the loop then runs no iterations.
//! - A nest must not read what another iteration of it writes.
//! - Every access is checked against its buffer. Local buffers start as NaN in every workgroup,
//!   but for those that the first nests fill with the same in every workgroup: they are filled once.

mod access;
mod arith;
mod code;
mod compile;
mod fault;
mod lanes;
mod memory;
mod run;

pub use fault::Fault;

use access::View;
use gristmill_runtime::staging::{self, Piece};
use gristmill_runtime::{Buffer, Device, Error, Kernel, Launch, Memory, Replay};
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use memory::HostMemory;
use std::any::Any;
use std::sync::Arc;
use std::time::Instant;

/// The interpreter.
pub struct InterpDevice {
    target: Target,
}

impl Default for InterpDevice {
    fn default() -> Self {
        InterpDevice::new()
    }
}

impl InterpDevice {
    /// The interpreter, as a CPU of one thread.
    pub fn new() -> InterpDevice {
        InterpDevice { target: Target { name: "interp".into(), ..Target::cpu("interp", 4, 1) } }
    }
}

/// A program and what it was compiled to.
struct Loaded {
    program: Program,
    code: code::Code,
}

impl Kernel for Loaded {
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn program(&self) -> &Program {
        &self.program
    }
}

/// Launches with their buffers.
struct Step {
    launches: Vec<Launch>,
    machine: run::Machine,
}

fn foreign(what: &str) -> Error {
    Error::NoDevice("interp".into(), format!("{what} of another device"))
}

/// Address and length of a piece of host memory.
fn view(b: &Buffer) -> Result<View, Error> {
    let raw = b.raw.as_any().downcast_ref::<HostMemory>().ok_or_else(|| foreign("a buffer"))?;
    // SAFETY: a `Buffer` is a piece of its `raw`.
    Ok(View { start: unsafe { raw.start().add(b.offset) }, len: b.len })
}

/// The address at `offset` of a buffer in which `len` bytes follow.
fn inside(b: &Buffer, offset: usize, len: usize) -> Result<*mut u8, Error> {
    let v = view(b)?;
    match offset.checked_add(len) {
        // SAFETY: just checked.
        Some(end) if end <= v.len => Ok(unsafe { v.start.add(offset) }),
        _ => Err(Error::Io {
            context: "interp".into(),
            source: std::io::Error::other(format!("{len} bytes at {offset} of a buffer of {}", v.len)),
        }),
    }
}

impl Device for InterpDevice {
    fn name(&self) -> &str {
        "interp"
    }
    fn target(&self) -> &Target {
        &self.target
    }
    fn describe(&self) -> Vec<String> {
        vec!["interprets kernels in one thread; needs no compiler".into()]
    }
    fn alloc(&self, bytes: usize, memory: Memory) -> Result<Buffer, Error> {
        let out_of_memory = || Error::OutOfMemory {
            what: format!("{memory:?}").to_lowercase(),
            wanted: bytes,
            free: None,
            device: "interp".into(),
        };
        let raw = HostMemory::new(bytes).ok_or_else(out_of_memory)?;
        Ok(Buffer { raw: Arc::new(raw), offset: 0, len: bytes })
    }
    fn write(&self, to: &Buffer, offset: usize, data: &[u8]) -> Result<(), Error> {
        let start = inside(to, offset, data.len())?;
        // SAFETY: inside the buffer, which is not `data`.
        unsafe { start.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        Ok(())
    }
    fn read(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        let start = inside(from, offset, data.len())?;
        // SAFETY: inside the buffer, which is not `data`.
        unsafe { start.copy_to_nonoverlapping(data.as_mut_ptr(), data.len()) };
        Ok(())
    }
    fn stage<'a>(&'a self, to: &Buffer, offset: usize, len: usize) -> Result<Box<dyn Piece + 'a>, Error> {
        staging::in_place(to, offset, len)
    }
    fn load(&self, programs: &[Program], progress: &dyn Fn(usize, usize)) -> Result<Vec<Arc<dyn Kernel>>, Error> {
        let mut kernels: Vec<Arc<dyn Kernel>> = Vec::with_capacity(programs.len());
        for program in programs {
            let code = compile::compile(program).map_err(|fault| fault.of(&program.name))?;
            kernels.push(Arc::new(Loaded { program: program.clone(), code }));
            progress(kernels.len(), programs.len());
        }
        Ok(kernels)
    }
    fn capture(&self, launches: Vec<Launch>) -> Result<Box<dyn Replay>, Error> {
        for launch in &launches {
            if !launch.kernel.as_any().is::<Loaded>() {
                return Err(foreign("a kernel"));
            }
            let program = launch.kernel.program();
            if program.params.len() != launch.buffers.len() {
                let message = format!("{} buffers, {} parameters", launch.buffers.len(), program.params.len());
                return Err(Fault::Launch(message).of(&program.name));
            }
            launch.buffers.iter().try_for_each(|b| view(b).map(|_| ()))?;
        }
        Ok(Box::new(Step { launches, machine: run::Machine::default() }))
    }
}

impl Step {
    fn launch(&mut self, i: usize, vars: &[(&str, i64)]) -> Result<(), Error> {
        let launch = &self.launches[i];
        let Some(kernel) = launch.kernel.as_any().downcast_ref::<Loaded>() else { return Err(foreign("a kernel")) };
        let views = launch.buffers.iter().map(view).collect::<Result<Vec<View>, Error>>()?;
        let value = |name: &str| vars.iter().find(|v| v.0 == name).map(|v| v.1);
        let done = self.machine.launch(&kernel.program, &kernel.code, &views, &value);
        done.map_err(|fault| fault.of(&kernel.program.name))
    }
}

impl Replay for Step {
    fn start(&mut self, vars: &[(&str, i64)]) -> Result<(), Error> {
        (0..self.launches.len()).try_for_each(|i| self.launch(i, vars))
    }
    fn replay_timed(&mut self, vars: &[(&str, i64)]) -> Result<Vec<f64>, Error> {
        let mut times = Vec::with_capacity(self.launches.len());
        for i in 0..self.launches.len() {
            let begin = Instant::now();
            self.launch(i, vars)?;
            times.push(begin.elapsed().as_secs_f64());
        }
        Ok(times)
    }
}
