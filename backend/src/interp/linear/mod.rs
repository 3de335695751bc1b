//! Interpreter of linear code in plain Rust, for any target: a reference for tests, with race
//! detection.
//!
//! The output of lowering is run as it is, vectors lane by lane and threads in lockstep. Bugs in
//! lowering are then found without a C compiler, NVRTC or the hardware.
//!
//! - A workgroup's threads execute each statement together; a loop whose bound differs between
//!   threads is a fault. Accesses to a stage are tracked by byte (`stages.rs`): a missing barrier
//!   between a write and a read of two threads, or a missing wait for a copy, is a fault in any
//!   order of the threads.
//! - On a CPU a stage is filled again only if a workgroup index that it depends on has changed. On
//!   a GPU it is filled in each workgroup, where it starts as NaN.
//! - Surplus workgroups are omitted. Kernels run one after the other, so that only the
//!   spec checks dependency waits.

mod machine;
mod memory;
mod nodes;
mod stages;

use super::fault::Fault;
use super::{InterpDevice, view};
use gristmill_compiler::lower::{KernelCode, lower_program, spec};
use gristmill_runtime::staging::{self, StagedWrite};
use gristmill_runtime::{
    Buffer, Device, DeviceId, Error, Kernel, Launch, LoadedProgram, Memory, Replay,
};
use gristmill_uop::Graph;
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use machine::{LinearMachine, Lowered};
use std::sync::Arc;

/// Interpreter of linear code for a target's kernels.
pub struct LinearDevice {
    memory: InterpDevice,
    target: Target,
}

impl LinearDevice {
    /// Creates an interpreter of kernels lowered for that target.
    pub fn new(target: Target) -> LinearDevice {
        LinearDevice {
            memory: InterpDevice::new(),
            target,
        }
    }
    /// Wraps lowered code of a program as a kernel, without checking the spec.
    ///
    /// Code that violates the spec causes a fault when it runs, or wrong results.
    pub fn kernel(&self, program: &Program, graph: Graph, code: KernelCode) -> Arc<dyn Kernel> {
        let slots = program.params.iter().map(|p| p.slot).collect();
        let lowered = Lowered { graph, code, slots };
        Arc::new(LoadedProgram::new(program.clone(), self.id(), lowered))
    }
}

impl Device for LinearDevice {
    fn name(&self) -> &str {
        "linear"
    }
    fn id(&self) -> DeviceId {
        self.memory.id()
    }
    fn target(&self) -> &Target {
        &self.target
    }
    fn describe(&self) -> Vec<String> {
        vec!["interprets linear code in one thread; needs no compiler".into()]
    }
    fn alloc(&self, bytes: usize, memory: Memory) -> Result<Buffer, Error> {
        self.memory.alloc(bytes, memory)
    }
    fn write(&self, to: &Buffer, offset: usize, data: &[u8]) -> Result<(), Error> {
        self.memory.write(to, offset, data)
    }
    fn read(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        self.memory.read(from, offset, data)
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
            let (graph, code) = lower_program(program, &self.target);
            let broken =
                |e: spec::LinearError| Fault::Graph(e.to_string()).into_error(&program.name);
            spec::check(&graph, &code).map_err(broken)?;
            kernels.push(self.kernel(program, graph, code));
            progress(kernels.len(), programs.len());
        }
        Ok(kernels)
    }
    fn capture(&self, mut launches: Vec<Launch>) -> Result<Box<dyn Replay>, Error> {
        launches.iter().try_for_each(|l| l.check(self.id()))?;
        launches.sort_by_key(|l| l.level);
        Ok(Box::new(Step { launches }))
    }
}

struct Step {
    launches: Vec<Launch>,
}

impl Step {
    fn launch(launch: &Launch, vars: &[(&str, i64)]) -> Result<(), Error> {
        let kernel = launch.loaded::<Lowered>()?;
        let value = |name: &str| vars.iter().find(|v| v.0 == name).map(|v| v.1);
        launch.check_variables(&value)?;
        let params = launch
            .buffers
            .iter()
            .map(view)
            .collect::<Result<Vec<_>, Error>>()?;
        let run = || -> Result<(), Fault> {
            for code in &kernel.code.code.bodies {
                LinearMachine::new(&kernel.code, code, &params, &value)?.run(&value)?;
            }
            Ok(())
        };
        run().map_err(|fault| fault.into_error(&kernel.program().name))
    }
}

impl Replay for Step {
    fn start(&mut self, vars: &[(&str, i64)]) -> Result<(), Error> {
        self.launches.iter().try_for_each(|l| Step::launch(l, vars))
    }
    fn replay_timed(&mut self, vars: &[(&str, i64)]) -> Result<Vec<f64>, Error> {
        self.start(vars).map(|()| vec![0.0; self.launches.len()])
    }
}
