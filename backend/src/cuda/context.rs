//! A device's context: opened once, current on a thread for as long as a token lives, lost for good when the driver says so.

use super::driver::{get, hint, is_fatal, lacking, message, refused, start, written};
use cudarc::driver::sys::{self, CUdevice_attribute, CUresult};
use gristmill_runtime::Error;
use gristmill_runtime::lease::Owner;
use std::ffi::CStr;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long a wait for work may take unless said. Steps take milliseconds (docs/cuda), long prompts go in many steps; a GPU that others use too, or that is
/// throttled, takes many times as long, but not this.
const WAIT_LIMIT: Duration = Duration::from_secs(120);
/// No limit, in the nanoseconds that a limit is kept in.
const UNLIMITED: u64 = u64::MAX;
/// For so long a wait asks without a pause, as the driver's own does: every usual step ends within it.
const SPIN_TIME: Duration = Duration::from_secs(1);
/// What is asked for after that comes so much later at most.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// One device, opened: everything below keeps it.
pub struct CudaContext {
    /// The device as it was opened here, which owns its buffers.
    pub owner: Owner,
    /// Its number, N of `cuda:N`.
    pub number: usize,
    /// Its model.
    pub model: String,
    /// Compute capability, 90 for 9.0.
    pub sm: u32,
    /// Version of the driver's CUDA, 13000 for 13.0.
    pub driver: i32,
    device: sys::CUdevice,
    raw: sys::CUcontext,
    /// Set once, when the device is lost.
    lost: OnceLock<Lost>,
    /// Nanoseconds that a wait may take.
    limit: AtomicU64,
}

/// Why a device is lost.
struct Lost {
    what: String,
    hint: String,
    /// May work still run there? Then nothing that it may use is ever freed: to free it would wait for that work.
    runs: bool,
}

// SAFETY: a context may be current on any number of threads; the driver locks what it must.
unsafe impl Send for CudaContext {}
// SAFETY: as above.
unsafe impl Sync for CudaContext {}

impl CudaContext {
    /// The device of that number, with the context that all users of it in this process share.
    pub fn open(number: usize) -> Result<Arc<CudaContext>, Error> {
        let (driver, count) = start()?;
        if number >= count as usize {
            let names = (0..count).map(|n| format!("cuda:{n}")).collect::<Vec<_>>().join(", ");
            return Err(lacking(format!("there is no GPU {number}"), format!("there is {names}")));
        }
        // SAFETY: the number is a device's; the name's buffer is as long as is said.
        unsafe {
            let device = get("cuDeviceGet", |out| sys::cuDeviceGet(out, number as i32))?;
            let mut name = [0u8; 128];
            let named = sys::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, device);
            if named != CUresult::CUDA_SUCCESS {
                return Err(refused(&format!("cuda:{number}"), "cuDeviceGetName", named));
            }
            let model = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned();
            let raw = written(|out| sys::cuDevicePrimaryCtxRetain(out, device))
                .map_err(|result| refused(&title(number, &model), "cuDevicePrimaryCtxRetain", result))?;
            let limit = AtomicU64::new(WAIT_LIMIT.as_nanos() as u64);
            let (owner, lost) = (Owner::new(), OnceLock::new());
            let mut context = CudaContext { owner, number, model, sm: 0, driver, device, raw, lost, limit };
            let major = context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
            let minor = context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
            context.sm = (major * 10 + minor) as u32;
            Ok(Arc::new(context))
        }
    }

    /// `cuda:0 (NVIDIA H200)`, for errors.
    pub fn title(&self) -> String {
        title(self.number, &self.model)
    }

    /// Sets how long a wait for work may take before the device counts as lost; none for ever.
    pub fn limit_waits(&self, limit: Option<Duration>) {
        let nanoseconds = limit.map_or(UNLIMITED, |l| u64::try_from(l.as_nanos()).unwrap_or(UNLIMITED));
        self.limit.store(nanoseconds, Ordering::Relaxed);
    }

    /// Makes it the calling thread's current one for as long as what is returned lives, as every call that follows needs.
    ///
    /// # Errors
    /// When the device is lost, without a call of the driver.
    pub fn enter(self: &Arc<CudaContext>) -> Result<Current<'_>, Error> {
        match self.lost.get() {
            Some(lost) => Err(self.error(lost)),
            None => self.make_current(),
        }
    }
    /// As [`CudaContext::enter`], of a lost device, too: for what is destroyed. What fails is tried once more, since what is not destroyed stays.
    pub fn enter_to_destroy(self: &Arc<CudaContext>) -> Result<Current<'_>, Error> {
        self.make_current().or_else(|_| self.make_current())
    }
    fn make_current(self: &Arc<CudaContext>) -> Result<Current<'_>, Error> {
        let mut current = Current { context: self, previous: std::ptr::null_mut(), _of_this_thread: PhantomData };
        // SAFETY: writes a handle or null.
        let previous = unsafe { current.get("cuCtxGetCurrent", |out| sys::cuCtxGetCurrent(out)) }?;
        if previous != self.raw {
            // SAFETY: retained until this is dropped.
            self.check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.raw) })?;
            current.previous = previous;
        }
        Ok(current)
    }

    /// What the driver said of `what`. An error after which nothing works here is kept, and is what everybody gets from now on.
    pub fn check(&self, what: &str, result: CUresult) -> Result<(), Error> {
        match result {
            CUresult::CUDA_SUCCESS => Ok(()),
            result if is_fatal(result) => Err(self.lose(Lost {
                what: format!("{what} failed: {}", message(result)),
                hint: format!("start gristmill again to use it; {}", hint(result)),
                runs: false,
            })),
            result => Err(refused(&self.title(), what, result)),
        }
    }
    fn lose(&self, lost: Lost) -> Error {
        self.error(self.lost.get_or_init(|| lost))
    }
    /// From now on the device counts as lost, and what it has is never freed: it cannot be said whether work there has ended.
    pub fn lose_track(&self, why: &Error) -> Error {
        let (what, hint) = (format!("what it does is not known: {why}"), "start gristmill again to use it".into());
        self.lose(Lost { what, hint, runs: true })
    }
    /// May work run there for good, so that nothing it uses can be freed?
    pub fn is_stuck(&self) -> bool {
        self.lost.get().is_some_and(|lost| lost.runs)
    }
    fn error(&self, lost: &Lost) -> Error {
        Error::Lost { device: self.title(), what: lost.what.clone(), hint: lost.hint.clone() }
    }

    /// A number of the device.
    pub fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32, Error> {
        let mut value = 0;
        // SAFETY: an open device.
        self.check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, self.device) })?;
        Ok(value)
    }
    /// Bytes free and in all.
    pub fn memory(self: &Arc<CudaContext>) -> Result<(usize, usize), Error> {
        let current = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are written.
        current.check("cuMemGetInfo", unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) })?;
        Ok((free, total))
    }
}

impl Drop for CudaContext {
    fn drop(&mut self) {
        if self.is_stuck() {
            return; // to release it would wait for what never ends
        }
        // SAFETY: retained once, released once; handles in it hold it. A context that is gone stays current nowhere on this thread.
        unsafe {
            let mut current = std::ptr::null_mut();
            if sys::cuCtxGetCurrent(&mut current) == CUresult::CUDA_SUCCESS && current == self.raw {
                sys::cuCtxSetCurrent(std::ptr::null_mut());
            }
            sys::cuDevicePrimaryCtxRelease_v2(self.device);
        }
    }
}

fn title(number: usize, model: &str) -> String {
    format!("cuda:{number} ({model})")
}

/// Says that a context is the current one of this thread. When it is dropped the one before is current again; a thread that had none keeps this, so
/// that to enter again takes one call that changes nothing. Those of a thread are dropped in the reverse order of their making, as variables are.
pub struct Current<'a> {
    context: &'a Arc<CudaContext>,
    /// What to make current again; null if nothing.
    previous: sys::CUcontext,
    /// The current context is the thread's: neither `Send` nor `Sync`.
    _of_this_thread: PhantomData<*const ()>,
}

impl<'a> Current<'a> {
    /// The context that is current.
    pub fn context(&self) -> &'a Arc<CudaContext> {
        self.context
    }
    /// As [`CudaContext::check`].
    pub fn check(&self, what: &str, result: CUresult) -> Result<(), Error> {
        self.context.check(what, result)
    }
    /// A value that a function of the driver writes.
    ///
    /// # Safety
    /// As of [`written`].
    pub unsafe fn get<T>(&self, what: &str, call: impl FnOnce(*mut T) -> CUresult) -> Result<T, Error> {
        // SAFETY: as the caller says.
        unsafe { written(call) }.map_err(|result| match self.check(what, result) {
            Err(error) => error,
            Ok(()) => unreachable!("{what} failed with {result:?}"),
        })
    }

    /// Waits for work until `query` no longer says that it is not ready, or too long has passed: then the device is lost. `synchronise` is the
    /// driver's own wait, which never gives up; it is called where there is no limit.
    pub fn wait(&self, synchronise: impl Fn() -> CUresult, query: impl Fn() -> CUresult) -> Result<(), Error> {
        let limit = self.context.limit.load(Ordering::Relaxed);
        if limit == UNLIMITED {
            return self.check("a kernel or copy", synchronise());
        }
        let (begin, limit) = (Instant::now(), Duration::from_nanos(limit));
        let mut over = false;
        loop {
            match query() {
                CUresult::CUDA_ERROR_NOT_READY => {}
                result => return self.check("a kernel or copy", result),
            }
            let waited = begin.elapsed();
            if waited >= limit {
                // A process that was stopped (a debugger, a frozen container) between the question and the clock has waited for long, though the work
                // may have ended meanwhile: it is asked for once more.
                if !std::mem::replace(&mut over, true) {
                    continue;
                }
                return Err(self.context.lose(Lost {
                    what: format!("a kernel or copy has not ended after {limit:?}"),
                    hint: "start gristmill again to use it; if that happens again, please report it with the command that led here; \
                           --device cpu works without the GPU"
                        .into(),
                    runs: true,
                }));
            }
            match waited < SPIN_TIME {
                true => std::hint::spin_loop(),
                false => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        if !self.previous.is_null() {
            // SAFETY: it was current on this thread; one that has been destroyed since is refused, and harms nobody.
            unsafe { sys::cuCtxSetCurrent(self.previous) };
        }
    }
}
