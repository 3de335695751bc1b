//! The device `interp`: interprets kernel-level graphs in plain Rust. Slow, without dependencies.
//!
//! Tests compare other devices with it.
//!
//! Semantics of a kernel: its workgroups are divided among its bodies in order; the count of a body
//! is the product of the bounds of its `Global` ranges (row-major by number). A workgroup runs the
//! nests of its body in order; a nest loops over the ranges it closes, in the given order. Ranges
//! of other kinds than `Global` are sequential loops.
//!
//! - Elementwise ops have the semantics of `uop::fold`, each result rounded to its type; `Fma` is
//!   rounded once; `Exp` and `Log` are computed in f64 and rounded.
//! - A reduction adds in the order of its ranges; each partial sum is rounded to the
//!   type of the reduction.
//! - Both sides of a `Where` are evaluated; a load on the side not taken must be in bounds too.
//! - Loop-invariant values are computed before the loop, even if it then has no iterations.
//! - A nest must not read memory that another iteration of it writes.
//! - Each access is checked against its buffer. Local buffers start as NaN in each workgroup,
//!   except those that the first nests fill equally in all workgroups: they are filled once.

mod access;
mod arith;
mod code;
mod compile;
mod fault;
mod lanes;
pub mod linear;
mod memory;
mod run;

pub use fault::Fault;

use crate::variables::Variables;
use access::BoundBuffer;
use gristmill_runtime::lease::{Order, Owner, StepUses};
use gristmill_runtime::staging::{self, StagedWrite};
use gristmill_runtime::{
    Buffer, Device, DeviceId, Error, Kernel, Launch, LoadedProgram, Memory, Replay,
};
use gristmill_uop::clock::Instant;
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use memory::HostMemory;
use std::sync::{Arc, Mutex, PoisonError};

/// Interpreter of kernel-level graphs.
pub struct InterpDevice {
    owner: Owner,
    target: Target,
    /// Held by the running step, unless it was captured alone.
    turn: Arc<Mutex<()>>,
}

impl Default for InterpDevice {
    fn default() -> Self {
        InterpDevice::new()
    }
}

impl InterpDevice {
    /// Creates the interpreter; its target is a CPU of one thread.
    pub fn new() -> InterpDevice {
        let target = Target {
            name: "interp".into(),
            ..Target::cpu("interp", 4, 1)
        };
        InterpDevice {
            owner: Owner::new(),
            target,
            turn: Arc::default(),
        }
    }
}

/// Launches of a captured step.
struct Step {
    launches: Vec<Launch>,
    variables: Variables,
    uses: StepUses,
    turn: Arc<Mutex<()>>,
    machine: run::LoopMachine,
}

/// Returns the host address and length of a buffer.
fn view(b: &Buffer) -> Result<BoundBuffer, Error> {
    let start = b
        .host()
        .ok_or_else(|| Error::invalid("interp", "a buffer is not in the host's memory"))?;
    Ok(BoundBuffer {
        start,
        len: b.len(),
    })
}

impl Device for InterpDevice {
    fn name(&self) -> &str {
        "interp"
    }
    fn id(&self) -> DeviceId {
        self.owner.id()
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
        let raw = HostMemory::new(&self.owner, bytes).ok_or_else(out_of_memory)?;
        Ok(Buffer::whole(Arc::new(raw)))
    }
    fn write(&self, to: &Buffer, offset: usize, data: &[u8]) -> Result<(), Error> {
        to.copy_in(self.id(), offset, data)
    }
    fn read(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        from.copy_out(self.id(), offset, data)
    }
    fn stage<'a>(
        &'a self,
        to: &Buffer,
        offset: usize,
        len: usize,
    ) -> Result<Box<dyn StagedWrite + 'a>, Error> {
        staging::staged_in_place(self.id(), to, offset, len)
    }
    fn load(
        &self,
        programs: &[Program],
        progress: &dyn Fn(usize, usize),
    ) -> Result<Vec<Arc<dyn Kernel>>, Error> {
        let mut kernels: Vec<Arc<dyn Kernel>> = Vec::with_capacity(programs.len());
        for program in programs {
            let code =
                compile::compile(program).map_err(|fault| fault.into_error(&program.name))?;
            kernels.push(Arc::new(LoadedProgram::new(
                program.clone(),
                self.id(),
                code,
            )));
            progress(kernels.len(), programs.len());
        }
        Ok(kernels)
    }
    fn capture(&self, launches: Vec<Launch>) -> Result<Box<dyn Replay>, Error> {
        self.step(launches, Order::Queued)
    }
    fn capture_alone(&self, launches: Vec<Launch>) -> Result<Box<dyn Replay>, Error> {
        self.step(launches, Order::Alone)
    }
}

impl InterpDevice {
    fn step(&self, launches: Vec<Launch>, order: Order) -> Result<Box<dyn Replay>, Error> {
        let mut variables = Variables::default();
        for launch in &launches {
            launch.check(self.id())?;
            variables.bind(launch)?;
            launch.buffers.iter().try_for_each(|b| view(b).map(drop))?;
        }
        let uses = StepUses::new(&self.owner, launches.iter().flat_map(Launch::uses), order);
        let turn = if order == Order::Queued {
            self.turn.clone()
        } else {
            Arc::default()
        };
        Ok(Box::new(Step {
            launches,
            variables,
            uses,
            turn,
            machine: run::LoopMachine::default(),
        }))
    }
}

impl Step {
    fn launch(&mut self, i: usize, vars: &[(&str, i64)]) -> Result<(), Error> {
        let launch = &self.launches[i];
        let kernel = launch.loaded::<code::Code>()?;
        let views = launch
            .buffers
            .iter()
            .map(view)
            .collect::<Result<Vec<BoundBuffer>, Error>>()?;
        let value = |name: &str| vars.iter().find(|v| v.0 == name).map(|v| v.1);
        let done = self
            .machine
            .launch(kernel.program(), &kernel.code, &views, &value);
        done.map_err(|fault| fault.into_error(&kernel.program().name))
    }
    /// Runs all launches and calls `done` after each; an invalid variable is an
    /// error before the first.
    fn run(&mut self, vars: &[(&str, i64)], mut done: impl FnMut()) -> Result<(), Error> {
        self.variables.set(vars)?;
        let turn = self.turn.clone();
        let _turn = turn.lock().unwrap_or_else(PoisonError::into_inner);
        let _in_flight = self.uses.begin()?;
        for i in 0..self.launches.len() {
            self.launch(i, vars)?;
            done();
        }
        Ok(())
    }
}

impl Replay for Step {
    fn start(&mut self, vars: &[(&str, i64)]) -> Result<(), Error> {
        self.run(vars, || ())
    }
    fn replay_timed(&mut self, vars: &[(&str, i64)]) -> Result<Vec<f64>, Error> {
        let mut times = Vec::with_capacity(self.launches.len());
        let mut begin = Instant::now();
        self.run(vars, || {
            times.push(begin.elapsed().as_secs_f64());
            begin = Instant::now();
        })?;
        Ok(times)
    }
}
