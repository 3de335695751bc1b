//! The device: memory of the engine, and kernels loaded in modules.

use super::code::WasmCode;
use super::emit::{self, Tables};
use super::engine::{Engine, EngineMemory, Features};
use super::replay::WasmReplay;
use gristmill_runtime::lease::{Order, Owner, Uses};
use gristmill_runtime::staging::{self, StagedWrite};
use gristmill_runtime::{
    Buffer, Device, DeviceId, Error, Kernel, Launch, LoadedProgram, Memory, RawBuffer, Replay,
};
use gristmill_uop::machine::Machine;
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use std::sync::{Arc, Mutex, PoisonError};

/// f32 lanes of a vector.
const LANES: usize = 4;
/// Kernels of a module: an engine compiles one at once, and the page shows progress between two.
const KERNELS_PER_MODULE: usize = 16;
/// Largest buffer, bytes: an address has 32 bits.
const LARGEST_BUFFER: usize = i32::MAX as usize;

/// Describes the machine behind an engine: one core, vectors of four floats.
///
/// A prefetch does not exist. Vector registers are those of the processor below, 16 on most.
pub fn machine(features: Features) -> Machine {
    Machine {
        signed_bytes: !features.relaxed,
        ..Machine::cpu("wasm", LANES, 1)
    }
}

/// The WebAssembly engine as a device.
pub struct WasmDevice<E> {
    owner: Owner,
    target: Target,
    engine: Arc<E>,
    /// Constant tables of kernels, which stay as long as the device.
    tables: Mutex<Vec<Box<dyn EngineMemory>>>,
}

/// A buffer in the engine's memory.
struct WasmBuffer {
    memory: Box<dyn EngineMemory>,
    bytes: usize,
    uses: Uses,
}

// SAFETY: the memory has as many bytes, stays where it is until this is dropped, and no other code
// knows its address.
unsafe impl RawBuffer for WasmBuffer {
    fn len(&self) -> usize {
        self.bytes
    }
    fn uses(&self) -> &Uses {
        &self.uses
    }
    fn host(&self) -> Option<*mut u8> {
        Some(self.memory.host())
    }
}

impl<E: Engine> WasmDevice<E> {
    /// Creates the device of an engine.
    pub fn new(engine: E) -> WasmDevice<E> {
        let target = Target::new(machine(engine.features()));
        WasmDevice {
            owner: Owner::new(),
            target,
            engine: Arc::new(engine),
            tables: Mutex::default(),
        }
    }
    /// Writes a constant table to memory; returns its address.
    fn place(&self, words: &[u32]) -> u32 {
        let memory = self.engine.alloc(4 * words.len());
        let memory = memory.expect("memory for a kernel's table");
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        // SAFETY: as many bytes were allocated.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.host(), bytes.len()) };
        let address = memory.address();
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.push(memory);
        address
    }
    /// Loads programs as one module.
    fn load_module(&self, programs: &[Program]) -> Result<Vec<WasmCode>, Error> {
        let place = |words: &[u32]| self.place(words);
        let tables = Tables::new(&place);
        let features = self.engine.features();
        let functions: Vec<emit::KernelFunction> = programs
            .iter()
            .map(|program| emit::function(program, &self.target, features, &tables))
            .collect();
        let module = emit::module(&functions);
        let loaded = self.engine.load(&module, functions.len());
        let numbers = loaded.map_err(|message| {
            let names: Vec<&str> = programs.iter().map(|p| p.name.as_str()).collect();
            Error::invalid(names.join(", "), message)
        })?;
        let code = |(function, kernel): (u32, &emit::KernelFunction)| WasmCode {
            function,
            scratch: kernel.scratch,
        };
        Ok(numbers.into_iter().zip(&functions).map(code).collect())
    }
    fn step(&self, launches: Vec<Launch>, order: Order) -> Result<Box<dyn Replay>, Error> {
        let engine = self.engine.clone();
        Ok(Box::new(WasmReplay::new(
            &self.owner,
            order,
            engine,
            launches,
        )?))
    }
}

impl<E: Engine> Device for WasmDevice<E> {
    fn name(&self) -> &str {
        "wasm"
    }
    fn id(&self) -> DeviceId {
        self.owner.id()
    }
    fn target(&self) -> &Target {
        &self.target
    }
    fn describe(&self) -> Vec<String> {
        let relaxed = match self.engine.features().relaxed {
            true => "with relaxed SIMD",
            false => "without relaxed SIMD",
        };
        vec![format!("WebAssembly in one thread, {relaxed}")]
    }
    fn alloc(&self, bytes: usize, memory: Memory) -> Result<Buffer, Error> {
        let out_of_memory = || Error::OutOfMemory {
            what: memory.describe().into(),
            wanted: bytes,
            free: None,
            device: "wasm".into(),
        };
        let found = match bytes {
            0..=LARGEST_BUFFER => self.engine.alloc(bytes.max(1)),
            _ => None,
        };
        Ok(Buffer::whole(Arc::new(WasmBuffer {
            memory: found.ok_or_else(out_of_memory)?,
            bytes,
            uses: Uses::new(&self.owner),
        })))
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
        for part in programs.chunks(KERNELS_PER_MODULE) {
            for (program, code) in part.iter().zip(self.load_module(part)?) {
                kernels.push(Arc::new(LoadedProgram::new(
                    program.clone(),
                    self.id(),
                    code,
                )));
            }
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
