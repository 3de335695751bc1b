//! The device of a page in an interpreter of WebAssembly, without and with relaxed SIMD.

use crate::harness::{Way, seeds};
use gristmill_backend::Opened;
use gristmill_backend::wasm::{Engine, EngineMemory, Features, MEMORY, WasmDevice, function_name};
use std::sync::{Arc, Mutex, PoisonError};
use wasmi::{Extern, Func, Instance, Memory, MemoryType, Module, Store};

/// Bytes of a page of memory.
const PAGE: usize = 64 << 10;
/// Pages of an interpreter's memory, which never grows, so that it stays where it is.
const PAGES: u32 = 4096;
/// Alignment of allocations, bytes.
const ALIGNMENT: usize = 64;

/// An interpreter, the functions of its modules, and its allocations.
struct Interpreter {
    store: Store<()>,
    memory: Memory,
    functions: Vec<Func>,
    /// Free ranges of the memory, in order.
    free: Vec<(usize, usize)>,
}

/// An interpreter as the engine of a device.
struct Interpreted {
    inner: Arc<Mutex<Interpreter>>,
    base: usize,
    features: Features,
}

impl Interpreted {
    fn new(features: Features) -> Interpreted {
        let mut store = Store::new(&wasmi::Engine::default(), ());
        let memory = Memory::new(&mut store, MemoryType::new(PAGES, Some(PAGES))).expect("memory");
        let base = memory.data_ptr(&store).addr();
        let inner = Interpreter {
            store,
            memory,
            functions: vec![],
            free: vec![(ALIGNMENT, PAGES as usize * PAGE)],
        };
        Interpreted {
            inner: Arc::new(Mutex::new(inner)),
            base,
            features,
        }
    }
    fn memory(&self, address: usize) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.base + address)
    }
}

/// A range of the interpreter's memory.
struct Range {
    inner: Arc<Mutex<Interpreter>>,
    host: *mut u8,
    begin: usize,
    end: usize,
}

// SAFETY: the range belongs to no thread.
unsafe impl Send for Range {}
// SAFETY: as above; its bytes are accessed only by address.
unsafe impl Sync for Range {}

impl EngineMemory for Range {
    fn host(&self) -> *mut u8 {
        self.host
    }
    fn address(&self) -> u32 {
        self.begin as u32
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.free.push((self.begin, self.end));
        inner.free.sort_unstable();
        let mut joined: Vec<(usize, usize)> = Vec::new();
        for &(begin, end) in &inner.free {
            match joined.last_mut() {
                Some(last) if last.1 == begin => last.1 = end,
                _ => joined.push((begin, end)),
            }
        }
        inner.free = joined;
    }
}

impl Engine for Interpreted {
    fn features(&self) -> Features {
        self.features
    }
    fn alloc(&self, bytes: usize) -> Option<Box<dyn EngineMemory>> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let len = bytes.max(1).next_multiple_of(ALIGNMENT);
        let range = inner.free.iter_mut().find(|r| r.1 - r.0 >= len)?;
        let begin = range.0;
        range.0 += len;
        let host = self.memory(begin);
        // SAFETY: the range lies in the memory, and nothing else uses it.
        unsafe { host.write_bytes(0, len) };
        Some(Box::new(Range {
            inner: self.inner.clone(),
            host,
            begin,
            end: begin + len,
        }))
    }
    fn load(&self, module: &[u8], functions: usize) -> Result<Vec<u32>, String> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let Interpreter {
            store,
            memory,
            functions: loaded,
            ..
        } = &mut *inner;
        let module = Module::new(store.engine(), module).map_err(|e| e.to_string())?;
        assert!(module.imports().all(|i| (i.module(), i.name()) == MEMORY));
        let imports = [Extern::from(*memory)];
        let instance = Instance::new(&mut *store, &module, &imports).map_err(|e| e.to_string())?;
        let first = loaded.len();
        for i in 0..functions {
            let function = instance.get_func(&*store, &function_name(i));
            loaded.push(function.expect("a function of each kernel"));
        }
        Ok((first as u32..loaded.len() as u32).collect())
    }
    fn call(&self, function: u32, arguments: [u32; 3]) -> Result<(), String> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let function = inner.functions[function as usize];
        let arguments = arguments.map(|a| wasmi::Val::I32(a as i32));
        let called = function.call(&mut inner.store, &arguments, &mut []);
        called.map_err(|e| e.to_string())
    }
}

/// Kernels of a page: the cheapest schedule with relaxed SIMD, and perturbed ones without.
pub fn wasm() -> Vec<Way> {
    let open = |relaxed: bool| {
        let engine = Interpreted::new(Features { relaxed });
        Opened::new(Arc::new(WasmDevice::new(engine)), None)
    };
    let (plain, relaxed) = (open(false), open(true));
    let way = |name: String, device: &Opened, seed: Option<u64>| Way {
        name,
        device: device.clone(),
        seed,
        same_as: None,
    };
    let cheapest = way("wasm, relaxed".into(), &relaxed, None);
    let perturbed = |s| way(format!("wasm, seed {s}"), &plain, Some(s));
    std::iter::once(cheapest)
        .chain(seeds(1).map(perturbed))
        .collect()
}
