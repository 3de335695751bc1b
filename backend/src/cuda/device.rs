//! A CUDA GPU as a device.

use super::copies::{Copies, PINNED};
use super::dialect;
use super::driver::{Context, Handle, Stream, check, get, lacking, stream};
use super::memory::{address, alloc};
use super::nvrtc::{Compiler, architecture};
use super::replay::CudaReplay;
use crate::parallel::{cores, each};
use crate::text::{Libraries, Text};
use cudarc::driver::sys::{self, CUdevice_attribute, CUfunction_attribute};
use gristmill_runtime::lease::Use;
use gristmill_runtime::staging::{self, Piece};
use gristmill_runtime::store::Store;
use gristmill_runtime::{Buffer, Device, DeviceId, Error, Kernel, Launch, Memory, Replay};
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use std::any::Any;
use std::ffi::CString;
use std::sync::Arc;

/// The oldest architecture that kernels are written for.
const OLDEST: u32 = 75;
/// Shared bytes that a kernel may have without asking.
const SHARED: usize = 48 << 10;
/// A kernel that computes nothing.
const IDLE: &str = "idle";

type Module = Handle<sys::CUmodule>;

/// A GPU.
pub struct CudaDevice {
    name: String,
    context: Arc<Context>,
    target: Target,
    compiler: Compiler,
    store: Store,
    prelude: String,
    /// Where steps run, and where everything else is copied meanwhile.
    steps: Arc<Stream>,
    copies: Arc<Copies>,
    /// A kernel that computes nothing.
    idle: Loaded,
    loaded: Libraries<Module>,
}

/// A kernel of a GPU.
pub struct CudaKernel {
    program: Program,
    device: DeviceId,
    pub(super) loaded: Loaded,
}

/// A function, and the module that keeps it.
#[derive(Clone)]
pub struct Loaded {
    pub(super) function: sys::CUfunction,
    _module: Arc<Module>,
}

// SAFETY: a function belongs to its module, which belongs to a context, not to a thread.
unsafe impl Send for Loaded {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Loaded {}

impl Loaded {
    fn new(module: Arc<Module>, symbol: &str) -> Result<Loaded, Error> {
        let symbol = CString::new(symbol).unwrap_or_default();
        // SAFETY: a module that lives and a text that ends with NUL.
        let find = |out| unsafe { sys::cuModuleGetFunction(out, module.raw(), symbol.as_ptr()) };
        Ok(Loaded { function: get("cuModuleGetFunction", find)?, _module: module })
    }
}

fn module(context: &Arc<Context>, cubin: &[u8]) -> Result<Module, Error> {
    // SAFETY: code from NVRTC, by this process or by one of this user that could write to the private store.
    let make = |out| unsafe { sys::cuModuleLoadData(out, cubin.as_ptr().cast()) };
    Handle::new(context, "cuModuleLoadData", sys::cuModuleUnload, make)
}

impl Kernel for CudaKernel {
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

impl CudaDevice {
    /// The GPU of that number, with the user's store.
    pub fn new(number: usize) -> Result<CudaDevice, Error> {
        CudaDevice::with(number, Store::user()?)
    }

    /// The GPU of that number with this store.
    pub fn with(number: usize, store: Store) -> Result<CudaDevice, Error> {
        let context = Context::open(number)?;
        if context.sm < OLDEST {
            let message = format!("{} is an sm_{}", context.model, context.sm);
            return Err(lacking(message, format!("a GPU of sm_{OLDEST} (Turing) or later is needed")));
        }
        let compiler = Compiler::find()?;
        compiler.check(context.sm)?;
        let shared = context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?;
        let (shared, target) = (shared.max(0) as usize, Target::gpu_h200());
        let stage_bytes = target.stage_bytes.min(shared);
        let prelude = dialect::prelude();
        let (cubin, _) = compiler.load(IDLE, &format!("{prelude}{}", dialect::idle(IDLE)), context.sm, &store)?;
        let idle = Loaded::new(Arc::new(module(&context, &cubin)?), IDLE)?;
        Ok(CudaDevice {
            name: if number == 0 { "cuda".into() } else { format!("cuda:{number}") },
            target: Target { stage_bytes, most_stage_bytes: shared, ..target },
            compiler,
            store,
            prelude,
            idle,
            steps: Arc::new(stream(&context)?),
            copies: Arc::new(Copies::new(&context)?),
            loaded: Libraries::default(),
            context,
        })
    }

    /// With this text before every kernel: the types and helpers that they share.
    pub fn with_prelude(mut self, prelude: impl Into<String>) -> CudaDevice {
        self.prelude = prelude.into();
        self
    }

    fn kernel(&self, text: &Text, program: &Program, module: Arc<Module>) -> Result<CudaKernel, Error> {
        let invalid = |message: String| Err(Error::invalid(&program.name, message));
        let loaded = Loaded::new(module, &text.symbol)?;
        let function = loaded.function;
        let of = |attribute| {
            // SAFETY: a function that lives.
            get("cuFuncGetAttribute", |out| unsafe { sys::cuFuncGetAttribute(out, attribute, function) })
        };
        let threads = of(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
        if program.threads == 0 || program.threads > threads.max(0) as usize {
            return invalid(format!("has workgroups of {} threads, compiled for {threads}", program.threads));
        }
        let fixed = of(CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        if program.scratch + fixed.max(0) as usize > SHARED {
            let most = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
            let most = self.context.attribute(most)? - fixed;
            if program.scratch > most.max(0) as usize {
                return invalid(format!("wants {} shared bytes, and {most} are left", program.scratch));
            }
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // Programs of one text may differ in it, so all there is. SAFETY: a function that lives.
            check("cuFuncSetAttribute", unsafe { sys::cuFuncSetAttribute(function, attribute, most) })?;
        }
        Ok(CudaKernel { program: program.clone(), device: self.id(), loaded })
    }
}

impl Device for CudaDevice {
    fn name(&self) -> &str {
        &self.name
    }
    fn id(&self) -> DeviceId {
        self.context.owner.id()
    }
    fn target(&self) -> &Target {
        &self.target
    }
    fn overlaps(&self) -> bool {
        true
    }
    fn describe(&self) -> Vec<String> {
        let context = &self.context;
        let memory = context.memory().map_or("memory: the driver does not say".into(), |(free, total)| {
            format!("memory: {} of {} MiB free", free >> 20, total >> 20)
        });
        let driver = context.driver;
        vec![
            format!("{}, {}", context.model, architecture(context.sm)),
            memory,
            format!("driver: CUDA {}.{}", driver / 1000, driver % 1000 / 10),
            format!("compiler: {}", self.compiler.describe()),
        ]
    }
    fn available(&self) -> Option<u64> {
        self.context.memory().ok().map(|(free, _)| free as u64)
    }
    fn alloc(&self, bytes: usize, memory: Memory) -> Result<Buffer, Error> {
        alloc(&self.context, self.copies.stream(), bytes, memory)
    }
    fn write(&self, to: &Buffer, offset: usize, data: &[u8]) -> Result<(), Error> {
        let at = address(&self.context, "write", to, offset, data.len())?;
        let _lease = to.lease("write", offset, data.len(), Use::Write)?;
        if data.is_empty() {
            return Ok(());
        }
        self.context.enter()?;
        // SAFETY: inside the buffer; the bytes are there until the copy has ended.
        let queued =
            unsafe { sys::cuMemcpyHtoDAsync_v2(at, data.as_ptr().cast(), data.len(), self.copies.stream().raw()) };
        check("cuMemcpyHtoDAsync", queued)?;
        self.copies.stream().wait()
    }
    fn read(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        let _lease = from.lease("read", offset, data.len(), Use::Read)?;
        self.read_settled(from, offset, data)
    }
    /// The device's memory is no place of a race: copies and kernels that meet mix old bytes and new ones.
    fn read_settled(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        let at = address(&self.context, "read", from, offset, data.len())?;
        if data.is_empty() {
            return Ok(());
        }
        self.context.enter()?;
        // SAFETY: as in `write`.
        let queued =
            unsafe { sys::cuMemcpyDtoHAsync_v2(data.as_mut_ptr().cast(), at, data.len(), self.copies.stream().raw()) };
        check("cuMemcpyDtoHAsync", queued)?;
        self.copies.stream().wait()
    }

    fn stage<'a>(&'a self, to: &Buffer, offset: usize, len: usize) -> Result<Box<dyn Piece + 'a>, Error> {
        if len > PINNED {
            return staging::through(self, to, offset, len);
        }
        let at = address(&self.context, "staging", to, offset, len)?;
        self.copies.stage(to.lease("staging", offset, len, Use::Write)?, at, len)
    }

    fn load(&self, programs: &[Program], progress: &dyn Fn(usize, usize)) -> Result<Vec<Arc<dyn Kernel>>, Error> {
        let texts = Text::all(programs)?;
        let (mut modules, missing) = self.loaded.find(&texts);
        let mut done = modules.len();
        let total = done + missing.len();
        progress(done, total);
        let compile = |i: usize| {
            let text: &Text = missing[i];
            // Errors then point at a line of the kernel.
            let source = format!("{}\n#line 1\n{}", self.prelude, text.source);
            self.compiler.load(&text.symbol, &source, self.context.sm, &self.store).map_err(|e| text.with_name(e))
        };
        each(missing.len(), cores(), compile, |i, (cubin, _)| {
            modules.insert(missing[i].key, Arc::new(module(&self.context, &cubin)?));
            done += 1;
            progress(done, total);
            Ok(())
        })?;
        self.loaded.keep(&modules);
        self.context.enter()?;
        let kernel = |(text, program): (&Text, &Program)| -> Result<Arc<dyn Kernel>, Error> {
            Ok(Arc::new(self.kernel(text, program, modules[&text.key].clone())?))
        };
        texts.iter().zip(programs).map(kernel).collect()
    }

    fn capture(&self, launches: Vec<Launch>) -> Result<Box<dyn Replay>, Error> {
        Ok(Box::new(CudaReplay::new(self.steps.clone(), self.copies.clone(), self.idle.clone(), launches)?))
    }
}
