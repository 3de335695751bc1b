//! The third oracle: linear code, run in plain Rust for any target. What lowering makes of a kernel is run as it stands, vectors lane by lane and threads
//! side by side, so that a fault of lowering shows without the C compiler, NVRTC and a machine of that kind.
//!
//! - A workgroup's threads take each statement together; a loop whose bound they do not share is a fault. Races between threads and missing
//!   barriers cannot be seen so: where barriers stand is the dialect's matter.
//! - Threads are counted over a nest's ranges as the dialect of CUDA counts them (`threads.rs`).
//! - On a CPU a stage is filled again only where a workgroup index that it depends on has changed; on a GPU in every workgroup, where it starts as NaN.
//! - Workgroups that nobody reads run too.

mod machine;
mod memory;
mod nodes;
mod threads;

use super::fault::Fault;
use super::{InterpDevice, view};
use crate::variables::kernel_of;
use gristmill_compiler::lower::lower_body;
use gristmill_runtime::staging::{self, Piece};
use gristmill_runtime::{Buffer, Device, DeviceId, Error, Kernel, Launch, Memory, Replay};
use gristmill_uop::Id;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use machine::{Lowered, Machine};
use std::any::Any;
use std::sync::Arc;

/// The interpreter of linear code, for kernels of a target.
pub struct LinearDevice {
    memory: InterpDevice,
    target: Target,
}

impl LinearDevice {
    /// Kernels are lowered for that target.
    pub fn new(target: Target) -> LinearDevice {
        LinearDevice { memory: InterpDevice::new(), target }
    }
}

/// A program and its linear code.
struct Loaded {
    program: Program,
    device: DeviceId,
    lowered: Lowered,
}

impl Kernel for Loaded {
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn program(&self) -> &Program {
        &self.program
    }
    fn device(&self) -> DeviceId {
        self.device
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
    fn stage<'a>(&'a self, to: &Buffer, offset: usize, len: usize) -> Result<Box<dyn Piece + 'a>, Error> {
        staging::in_place(self.id(), to, offset, len)
    }
    fn load(&self, programs: &[Program], progress: &dyn Fn(usize, usize)) -> Result<Vec<Arc<dyn Kernel>>, Error> {
        let mut kernels: Vec<Arc<dyn Kernel>> = Vec::with_capacity(programs.len());
        for program in programs {
            let mut graph = (*program.graph).clone();
            let bodies: Vec<Vec<Id>> = graph[program.root].src.iter().map(|&b| graph[b].src.to_vec()).collect();
            let codes = bodies.iter().map(|nests| lower_body(&mut graph, nests, &self.target)).collect();
            let apart = self.target.machine.kind == MachineKind::Gpu;
            let slots = program.params.iter().map(|p| p.slot).collect();
            let lowered = Lowered { graph, codes, slots, threads: program.threads, apart };
            kernels.push(Arc::new(Loaded { program: program.clone(), device: self.id(), lowered }));
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
        let kernel: &Loaded = kernel_of(launch)?;
        let value = |name: &str| vars.iter().find(|v| v.0 == name).map(|v| v.1);
        launch.check_variables(&value)?;
        let params = launch.buffers.iter().map(view).collect::<Result<Vec<_>, Error>>()?;
        let run = || -> Result<(), Fault> {
            for code in &kernel.lowered.codes {
                Machine::new(&kernel.lowered, code, &params, &value)?.run(&value)?;
            }
            Ok(())
        };
        run().map_err(|fault| fault.of(&kernel.program.name))
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
