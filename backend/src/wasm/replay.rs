//! A captured step: its kernels' arguments in the engine's memory, called one after the other.

use super::code::WasmCode;
use super::engine::{Engine, EngineMemory};
use crate::variables::{Variables, by_level};
use gristmill_runtime::lease::{Order, Owner, StepUses};
use gristmill_runtime::{Error, Kernel, Launch, Replay};
use gristmill_uop::clock::Instant;
use std::ops::Range;
use std::sync::Arc;

/// A launch bound to its arguments.
struct BoundKernel {
    function: u32,
    /// Addresses of the function's arguments.
    arguments: [u32; 3],
    /// Range of its variables among those of the step.
    vars: Range<usize>,
    /// Index among the captured launches.
    number: usize,
}

/// A captured step of an engine.
pub(super) struct WasmReplay<E> {
    engine: Arc<E>,
    variables: Variables,
    /// Variable of each value.
    reads: Vec<usize>,
    tasks: Vec<BoundKernel>,
    /// Addresses of buffers, values of variables (64 bits each), scratch memory.
    memory: Box<dyn EngineMemory>,
    /// Byte offset of the values.
    values: usize,
    uses: StepUses,
    /// Keeps buffers and kernels alive.
    launches: Vec<Launch>,
}

// SAFETY: the memory is this step's alone, and is accessed only by the thread that replays it.
unsafe impl<E: Engine> Send for WasmReplay<E> {}

impl<E: Engine> WasmReplay<E> {
    /// Binds launches in the order of their levels, and writes their arguments to memory.
    pub fn new(
        owner: &Owner,
        order: Order,
        engine: Arc<E>,
        launches: Vec<Launch>,
    ) -> Result<WasmReplay<E>, Error> {
        launches.iter().try_for_each(|l| l.check(owner.id()))?;
        let uses = StepUses::new(owner, launches.iter().flat_map(Launch::uses), order);
        let (mut variables, mut reads) = (Variables::default(), Vec::new());
        let (mut addresses, mut tasks) = (Vec::new(), Vec::new());
        let mut scratch = 0;
        for number in by_level(&launches) {
            let launch = &launches[number];
            let kernel = launch.loaded::<WasmCode>()?;
            let first = addresses.len();
            for buffer in &launch.buffers {
                addresses.push(address(buffer, &kernel.program().name)?);
            }
            let (_, slots) = variables.bind(launch)?;
            let vars = reads.len()..reads.len() + slots.len();
            reads.extend(slots);
            scratch = scratch.max(kernel.code.scratch);
            tasks.push(BoundKernel {
                function: kernel.code.function,
                arguments: [4 * first as u32, 0, 0],
                vars,
                number,
            });
        }
        let values = (4 * addresses.len()).next_multiple_of(64);
        let stages = (values + 8 * reads.len()).next_multiple_of(64);
        let memory = engine.alloc(stages + scratch);
        let memory = memory.ok_or_else(|| Error::OutOfMemory {
            what: "the arguments of a step".into(),
            wanted: stages + scratch,
            free: None,
            device: "wasm".into(),
        })?;
        for (i, address) in addresses.iter().enumerate() {
            // SAFETY: as many addresses lie in the memory, which is this step's.
            unsafe {
                memory
                    .host()
                    .cast::<u32>()
                    .add(i)
                    .write(address.get(&*memory))
            };
        }
        let base = memory.address();
        for task in &mut tasks {
            let vars = base + (values + 8 * task.vars.start) as u32;
            task.arguments = [base + task.arguments[0], vars, base + stages as u32];
        }
        Ok(WasmReplay {
            engine,
            variables,
            reads,
            tasks,
            memory,
            values,
            uses,
            launches,
        })
    }
    /// Runs all launches and calls `done` with the number of each.
    fn run(&mut self, vars: &[(&str, i64)], mut done: impl FnMut(usize)) -> Result<(), Error> {
        self.variables.set(vars)?;
        let _in_flight = self.uses.begin()?;
        for (i, &variable) in self.reads.iter().enumerate() {
            let value = self.variables.values()[variable];
            // SAFETY: as many values lie in the memory, which is this step's.
            unsafe {
                let values = self.memory.host().add(self.values).cast::<i64>();
                values.add(i).write(value);
            }
        }
        for task in &self.tasks {
            let called = self.engine.call(task.function, task.arguments);
            called.map_err(|message| {
                let kernel = &self.launches[task.number].kernel;
                Error::invalid(&kernel.program().name, message)
            })?;
            done(task.number);
        }
        Ok(())
    }
}

/// Address of a buffer relative to other memory of the engine.
struct BufferAddress(*mut u8);

impl BufferAddress {
    /// Returns the address in the engine, whose memory is contiguous in the host.
    fn get(&self, known: &dyn EngineMemory) -> u32 {
        let offset = self.0.addr().wrapping_sub(known.host().addr());
        known.address().wrapping_add(offset as u32)
    }
}

fn address(buffer: &gristmill_runtime::Buffer, name: &str) -> Result<BufferAddress, Error> {
    let host = buffer.host();
    let host = host.ok_or_else(|| Error::invalid(name, "a buffer is not in the host's memory"))?;
    Ok(BufferAddress(host))
}

impl<E: Engine> Replay for WasmReplay<E> {
    fn start(&mut self, vars: &[(&str, i64)]) -> Result<(), Error> {
        self.run(vars, |_| ())
    }
    fn replay_timed(&mut self, vars: &[(&str, i64)]) -> Result<Vec<f64>, Error> {
        let mut times = vec![0.0; self.launches.len()];
        let mut begin = Instant::now();
        self.run(vars, |number| {
            times[number] = begin.elapsed().as_secs_f64();
            begin = Instant::now();
        })?;
        Ok(times)
    }
}
