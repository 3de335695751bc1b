//! The [`Device`] implementation for CUDA GPUs.

use super::context::{CudaContext, Current};
use super::copies::{PINNED_BYTES, PinnedCopies};
use super::dialect;
use super::driver::lacking;
use super::handle::{Stream, stream};
use super::measure;
use super::memory::{PinnedBytes, address, alloc};
use super::modules::{LoadedModule, Module, ModuleLoader};
use super::nvrtc::{Nvrtc, architecture};
use super::peers::PeerCopies;
use super::replay::CudaReplay;
use crate::cost_store::CostStore;
use crate::parallel::{cores, parallel_for};
use crate::text::{KernelText, Libraries};
use crate::tuning;
use cudarc::driver::sys::{self, CUdevice_attribute, CUfunction_attribute};
use gristmill_runtime::lease::Use;
use gristmill_runtime::staging::{self, StagedWrite};
use gristmill_runtime::store::Store;
use gristmill_runtime::{
    Buffer, Device, DeviceId, Error, HostBytes, KeptBytes, Kernel, Launch, LoadedProgram, Memory,
    Replay,
};
use gristmill_uop::costs::Costs;
use gristmill_uop::machine::{Attributes, Machine};
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Oldest supported compute capability.
const MIN_ARCHITECTURE: u32 = 75;
/// Shared bytes that a kernel may use without an opt-in attribute.
const DEFAULT_SHARED_BYTES: usize = 48 << 10;
/// Name of the kernel that computes nothing.
const IDLE_KERNEL: &str = "idle";

/// An NVIDIA GPU as a device.
pub struct CudaDevice {
    name: String,
    context: Arc<CudaContext>,
    target: Target,
    maker: ModuleLoader,
    prelude: String,
    /// Stream of the steps, and the stream of all copies.
    steps: Arc<Stream>,
    copies: Arc<PinnedCopies>,
    peers: PeerCopies,
    /// Kernel that computes nothing, for the end of timed steps.
    idle: LoadedModule,
    loaded: Libraries<Module>,
}

impl CudaDevice {
    /// Opens the GPU with this index, with the user's kernel store.
    pub fn new(number: usize) -> Result<CudaDevice, Error> {
        CudaDevice::with(number, Store::user()?)
    }

    /// Opens the GPU with this index and kernel store.
    pub fn with(number: usize, store: Store) -> Result<CudaDevice, Error> {
        let context = CudaContext::open(number)?;
        if context.sm < MIN_ARCHITECTURE {
            let message = format!("{} is an sm_{}", context.model, context.sm);
            return Err(lacking(
                message,
                format!("a GPU of sm_{MIN_ARCHITECTURE} (Turing) or later is needed"),
            ));
        }
        let compiler = Nvrtc::find()?;
        compiler.check(context.sm)?;
        let prelude = dialect::prelude();
        let maker = ModuleLoader {
            context: context.clone(),
            compiler,
            store,
        };
        let source = format!("{prelude}{}", dialect::idle(IDLE_KERNEL));
        let code = maker.code(IDLE_KERNEL, &source)?;
        let current = context.enter()?;
        let idle = LoadedModule::new(
            &current,
            Arc::new(maker.module(&current, IDLE_KERNEL, &source, code)?),
            IDLE_KERNEL,
        )?;
        let device = CudaDevice {
            name: if number == 0 {
                "cuda".into()
            } else {
                format!("cuda:{number}")
            },
            target: Target::new(machine(&context)?),
            maker,
            prelude,
            idle,
            steps: Arc::new(stream(&current)?),
            copies: Arc::new(PinnedCopies::new(&current)?),
            peers: PeerCopies::new(&current)?,
            loaded: Libraries::default(),
            context: context.clone(),
        };
        let machine = device
            .cost_store()
            .plan(device.target.machine.clone(), || measure::costs(&device))?;
        let (_, plans) = tuning::load(&device.maker.store, &device.description());
        Ok(CudaDevice {
            target: Target {
                plans,
                ..Target::new(machine)
            },
            ..device
        })
    }

    /// Returns the text that identifies the GPU for tuning and costs.
    fn description(&self) -> String {
        let CudaContext { model, sm, .. } = &*self.context;
        format!(
            "{model}, {}, {} multiprocessors",
            architecture(*sm),
            self.target.machine.units
        )
    }
    /// Returns the entry of measured costs.
    fn cost_store(&self) -> CostStore<'_> {
        CostStore::new(
            &self.maker.store,
            &self.description(),
            &format!("CUDA {}", self.context.driver),
        )
    }

    /// Sets the timeout of waits for steps and copies, two minutes by default.
    ///
    /// After a timeout the device is [lost](Error::Lost). None waits forever.
    pub fn with_wait_limit(self, limit: Option<Duration>) -> CudaDevice {
        self.context.limit_waits(limit);
        self
    }

    /// Sets the period after the last staged copy, ten seconds by default.
    ///
    /// The first step after it frees most of the pinned staging memory.
    pub fn with_staging_kept_for(self, time: Duration) -> CudaDevice {
        self.copies.keep_for(time);
        self
    }

    /// Replaces the prelude before each kernel: its types and helper functions.
    pub fn with_prelude(mut self, prelude: impl Into<String>) -> CudaDevice {
        self.prelude = prelude.into();
        self
    }

    fn kernel(
        &self,
        current: &Current,
        text: &KernelText,
        program: &Program,
        module: Arc<Module>,
    ) -> Result<LoadedProgram<LoadedModule>, Error> {
        let invalid = |message: String| Err(Error::invalid(&program.name, message));
        let loaded = LoadedModule::new(current, module, &text.symbol)?;
        let function = loaded.function;
        let of = |attribute| {
            // SAFETY: a live function; writes a number.
            unsafe {
                current.get("cuFuncGetAttribute", |out| {
                    sys::cuFuncGetAttribute(out, attribute, function)
                })
            }
        };
        let threads = of(CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?;
        if program.threads == 0 || program.threads > threads.max(0) as usize {
            return invalid(format!(
                "has workgroups of {} threads, compiled for {threads}",
                program.threads
            ));
        }
        let fixed = of(CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        if program.scratch + fixed.max(0) as usize > DEFAULT_SHARED_BYTES {
            let most = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
            let most = self.context.attribute(most)? - fixed;
            if program.scratch > most.max(0) as usize {
                return invalid(format!(
                    "wants {} shared bytes, and {most} are left",
                    program.scratch
                ));
            }
            let attribute = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            // All that is left, since programs with one text may differ in it.
            // SAFETY: a live function.
            current.check("cuFuncSetAttribute", unsafe {
                sys::cuFuncSetAttribute(function, attribute, most)
            })?;
        }
        if let Some(percent) = program.context.plan.shared {
            let attribute =
                CUfunction_attribute::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
            // A hint that the driver may ignore. SAFETY: a live function.
            let set = unsafe {
                sys::cuFuncSetAttribute(function, attribute, percent.clamp(1, 100) as i32)
            };
            current.check("cuFuncSetAttribute", set)?;
        }
        Ok(LoadedProgram::new(program.clone(), self.id(), loaded))
    }
}

/// Returns the machine description from the device's attributes.
fn machine(context: &CudaContext) -> Result<Machine, Error> {
    use CUdevice_attribute as Attribute;
    let number = |attribute| Ok::<_, Error>(context.attribute(attribute)?.max(0) as usize);
    // Attributes are in kHz; the result is in Hz.
    let clock = |attribute| Ok::<_, Error>(number(attribute)? as f64 * 1e3);
    let attributes = Attributes {
        sm: context.sm,
        units: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        subgroup: number(Attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE)? as i64,
        threads_per_unit: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR)?,
        registers: number(Attribute::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR)?,
        shared_per_unit: number(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR,
        )?,
        shared_per_workgroup: number(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?,
        cache: number(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?,
        clock: clock(Attribute::CU_DEVICE_ATTRIBUTE_CLOCK_RATE)?,
        memory_clock: clock(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
        memory_bits: number(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
    };
    Ok(Machine::nvidia(&architecture(context.sm), &attributes))
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
        let memory =
            context
                .memory()
                .map_or("memory: the driver does not say".into(), |(free, total)| {
                    format!(
                        "memory: {} of {} MB free",
                        free / 1_000_000,
                        total / 1_000_000
                    )
                });
        let driver = context.driver;
        let machine = &self.target.machine;
        let unknown = Costs::can_plan(machine).then_some(["as measured", "by its clocks"]);
        let [costs, measured] = self.cost_store().describe(machine, unknown);
        vec![
            format!("{}, {}", context.model, architecture(context.sm)),
            memory,
            format!("driver: CUDA {}.{}", driver / 1000, driver % 1000 / 10),
            format!("compiler: {}", self.maker.compiler.describe()),
            tuning::describe(&self.maker.store, &self.description(), &self.target.plans),
            costs,
            measured,
        ]
    }
    fn measure(&self) -> Result<Option<Costs>, Error> {
        self.cost_store().renew(|| measure::costs(self)).map(Some)
    }
    fn measured(&self) -> Option<Costs> {
        self.cost_store().read()
    }
    fn tuned_as(&self) -> Option<String> {
        Some(self.description())
    }
    fn store(&self) -> Option<&Store> {
        Some(&self.maker.store)
    }
    fn warnings(&self) -> Vec<Error> {
        self.maker.store.warnings()
    }
    fn available(&self) -> Option<u64> {
        self.context.memory().ok().map(|(free, _)| free as u64)
    }
    fn alloc(&self, bytes: usize, memory: Memory) -> Result<Buffer, Error> {
        alloc(self.copies.stream(), bytes, memory)
    }
    fn write(&self, to: &Buffer, offset: usize, data: &[u8]) -> Result<(), Error> {
        let at = address(&self.context, "write", to, offset, data.len())?;
        let _lease = to.lease("write", offset, data.len(), Use::Write)?;
        if data.is_empty() {
            return Ok(());
        }
        let (current, copies) = (self.context.enter()?, self.copies.stream());
        // SAFETY: inside the buffer; the bytes live until the copy has ended.
        let queued = unsafe {
            sys::cuMemcpyHtoDAsync_v2(at, data.as_ptr().cast(), data.len(), copies.raw())
        };
        current.check("cuMemcpyHtoDAsync", queued)?;
        copies.wait_for_copies(&current)
    }
    fn read(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        let _lease = from.lease("read", offset, data.len(), Use::Read)?;
        self.read_settled(from, offset, data)
    }
    /// A concurrent copy and kernel are no data race in device memory: the result mixes
    /// old and new bytes.
    fn read_settled(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        let at = address(&self.context, "read", from, offset, data.len())?;
        if data.is_empty() {
            return Ok(());
        }
        let (current, copies) = (self.context.enter()?, self.copies.stream());
        // SAFETY: as in `write`.
        let queued = unsafe {
            sys::cuMemcpyDtoHAsync_v2(data.as_mut_ptr().cast(), at, data.len(), copies.raw())
        };
        current.check("cuMemcpyDtoHAsync", queued)?;
        copies.wait_for_copies(&current)
    }

    fn keep(&self, from: &Buffer) -> Result<Arc<dyn KeptBytes>, Error> {
        let _lease = from.lease("keeping", 0, from.len(), Use::Read)?;
        let at = address(&self.context, "keeping", from, 0, from.len())?;
        let (current, copies) = (self.context.enter()?, self.copies.stream());
        let kept = match PinnedBytes::new(copies, from.len()) {
            Ok(kept) => kept,
            Err(error) if error.is_lost() => return Err(error),
            // Memory that is not pinned will do: copies from it take longer.
            Err(_) => {
                let mut bytes = vec![0; from.len()];
                self.read_settled(from, 0, &mut bytes)?;
                return Ok(Arc::new(bytes));
            }
        };
        if !from.is_empty() {
            // SAFETY: both have that length and live until the copy has ended.
            let queued =
                unsafe { sys::cuMemcpyDtoHAsync_v2(kept.address(), at, from.len(), copies.raw()) };
            current.check("cuMemcpyDtoHAsync", queued)?;
            copies.wait_for_copies(&current)?;
        }
        Ok(Arc::new(kept))
    }
    fn keep_host(&self, host: &Buffer) -> Result<Arc<dyn KeptBytes>, Error> {
        let pinned = PinnedBytes::of_host(self.copies.stream(), HostBytes::new(host)?);
        match pinned {
            Ok(pinned) => Ok(Arc::new(pinned)),
            Err(error) if error.is_lost() => Err(error),
            // As in `keep`.
            Err(_) => Ok(Arc::new(HostBytes::new(host)?)),
        }
    }
    fn restore(
        &self,
        kept: &dyn KeptBytes,
        range: Range<usize>,
        to: &Buffer,
        offset: usize,
    ) -> Result<(), Error> {
        let any: &dyn Any = kept;
        let bytes = kept.part(range.clone())?;
        let Some(pinned) = any.downcast_ref::<PinnedBytes>() else {
            return self.write(to, offset, bytes);
        };
        let at = address(&self.context, "restoring", to, offset, range.len())?;
        let _lease = to.lease("restoring", offset, range.len(), Use::Write)?;
        if range.is_empty() {
            return Ok(());
        }
        self.copies.restore(pinned, range, at)
    }

    fn queues_copies_from(&self, peer: &dyn Device) -> bool {
        let any: &dyn Any = peer;
        any.is::<CudaDevice>()
    }
    fn copy_queued(
        &self,
        peer: &dyn Device,
        from: &Buffer,
        to: &Buffer,
        bytes: usize,
    ) -> Result<(), Error> {
        let what = "a queued copy";
        let any: &dyn Any = peer;
        let Some(peer) = any.downcast_ref::<CudaDevice>() else {
            return Err(Error::invalid(what, "reads another kind of device"));
        };
        let source = address(&peer.context, what, from, 0, bytes)?;
        let target = address(&self.context, what, to, 0, bytes)?;
        let ends = [(&peer.peers, &peer.steps), (&self.peers, &self.steps)];
        PeerCopies::copy(ends, [source, target], bytes)
    }
    fn settle(&self) -> Result<(), Error> {
        self.steps.wait()
    }
    fn stage<'a>(
        &'a self,
        to: &Buffer,
        offset: usize,
        len: usize,
    ) -> Result<Box<dyn StagedWrite + 'a>, Error> {
        if len <= PINNED_BYTES {
            let at = address(&self.context, "staging", to, offset, len)?;
            let lease = to.lease("staging", offset, len, Use::Write)?;
            if let Some(piece) = self.copies.stage(lease, at, len)? {
                return Ok(piece);
            }
        }
        staging::through(self, to, offset, len)
    }

    fn load(
        &self,
        programs: &[Program],
        progress: &dyn Fn(usize, usize),
    ) -> Result<Vec<Arc<dyn Kernel>>, Error> {
        let texts = KernelText::all(programs)?;
        let (mut modules, missing) = self.loaded.find(&texts);
        let mut done = modules.len();
        let total = done + missing.len();
        progress(done, total);
        // So that errors refer to lines of the kernel.
        let source = |text: &KernelText| format!("{}\n#line 1\n{}", self.prelude, text.source);
        let code = |i: usize| {
            let text: &KernelText = missing[i];
            self.maker
                .code(&text.symbol, &source(text))
                .map_err(|e| text.with_name(e))
        };
        let current = self.context.enter()?;
        parallel_for(missing.len(), cores(), code, |i, code| {
            let text = missing[i];
            let module = self
                .maker
                .module(&current, &text.symbol, &source(text), code);
            modules.insert(text.key, Arc::new(module.map_err(|e| text.with_name(e))?));
            done += 1;
            progress(done, total);
            Ok(())
        })?;
        self.loaded.remember(&modules);
        let kernel = |(text, program): (&KernelText, &Program)| -> Result<Arc<dyn Kernel>, Error> {
            Ok(Arc::new(self.kernel(
                &current,
                text,
                program,
                modules[&text.key].clone(),
            )?))
        };
        texts.iter().zip(programs).map(kernel).collect()
    }

    fn capture(&self, launches: Vec<Launch>) -> Result<Box<dyn Replay>, Error> {
        Ok(Box::new(CudaReplay::new(
            self.steps.clone(),
            self.copies.clone(),
            self.idle.clone(),
            launches,
        )?))
    }
}
