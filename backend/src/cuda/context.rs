//! Context of a device: opened once, made current by a token, and lost for good on fatal errors.

use super::driver::{get, hint, is_fatal, lacking, message, refused, start, written};
use cudarc::driver::sys::{self, CUdevice_attribute, CUresult};
use gristmill_runtime::Error;
use gristmill_runtime::lease::Owner;
use std::ffi::CStr;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Default timeout of waits, after which the device counts as lost. Steps take milliseconds
/// (docs/cuda); a shared or throttled GPU takes many times as long, but not this.
const WAIT_LIMIT: Duration = Duration::from_secs(120);
/// Value of `limit` without a timeout.
const UNLIMITED: u64 = u64::MAX;
/// Time that a wait polls without pauses, as the driver's own does; usual steps end within it.
const SPIN_TIME: Duration = Duration::from_secs(1);
/// Pause between polls after that.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// An open device, kept alive by everything that uses it.
pub struct CudaContext {
    /// Identity as an owner of buffers.
    pub owner: Owner,
    /// Index of the device: N of `cuda:N`.
    pub number: usize,
    /// Name of the GPU model.
    pub model: String,
    /// Compute capability: 90 for 9.0.
    pub sm: u32,
    /// CUDA version of the driver: 13000 for 13.0.
    pub driver: i32,
    device: sys::CUdevice,
    raw: sys::CUcontext,
    /// Set once, when the device is lost.
    lost: OnceLock<Lost>,
    /// Timeout of waits in nanoseconds.
    limit: AtomicU64,
}

/// Reason why a device is lost.
struct Lost {
    what: String,
    hint: String,
    /// Whether work may still run. Its memory is then never freed, as that would wait for the work.
    runs: bool,
}

// SAFETY: a context may be current on any number of threads; the driver takes the needed locks.
unsafe impl Send for CudaContext {}
// SAFETY: as above.
unsafe impl Sync for CudaContext {}

impl CudaContext {
    /// Opens the device with this index, with its primary context, which the process shares.
    pub fn open(number: usize) -> Result<Arc<CudaContext>, Error> {
        let (driver, count) = start()?;
        if number >= count as usize {
            let names = (0..count)
                .map(|n| format!("cuda:{n}"))
                .collect::<Vec<_>>()
                .join(", ");
            return Err(lacking(
                format!("there is no GPU {number}"),
                format!("choose one of {names}"),
            ));
        }
        // SAFETY: the index is a device's; the name's buffer has the stated length.
        unsafe {
            let device = get("cuDeviceGet", |out| sys::cuDeviceGet(out, number as i32))?;
            let mut name = [0u8; 128];
            let named = sys::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, device);
            if named != CUresult::CUDA_SUCCESS {
                return Err(refused(&format!("cuda:{number}"), "cuDeviceGetName", named));
            }
            let model = CStr::from_bytes_until_nul(&name)
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            let raw =
                written(|out| sys::cuDevicePrimaryCtxRetain(out, device)).map_err(|result| {
                    refused(&title(number, &model), "cuDevicePrimaryCtxRetain", result)
                })?;
            let limit = AtomicU64::new(WAIT_LIMIT.as_nanos() as u64);
            let (owner, lost) = (Owner::new(), OnceLock::new());
            let mut context = CudaContext {
                owner,
                number,
                model,
                sm: 0,
                driver,
                device,
                raw,
                lost,
                limit,
            };
            let major = context
                .attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
            let minor = context
                .attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
            context.sm = (major * 10 + minor) as u32;
            Ok(Arc::new(context))
        }
    }

    /// Returns the name for errors: `cuda:0 (NVIDIA H200)`.
    pub fn title(&self) -> String {
        title(self.number, &self.model)
    }

    /// Returns the raw handle, valid while this lives.
    pub fn raw(&self) -> sys::CUcontext {
        self.raw
    }

    /// Sets the timeout of waits, after which the device counts as lost; None waits forever.
    pub fn limit_waits(&self, limit: Option<Duration>) {
        let nanoseconds = limit.map_or(UNLIMITED, |l| {
            u64::try_from(l.as_nanos()).unwrap_or(UNLIMITED)
        });
        self.limit.store(nanoseconds, Ordering::Relaxed);
    }

    /// Makes the context current on this thread while the result lives, as all driver calls need.
    ///
    /// # Errors
    /// When the device is lost, without a call of the driver.
    pub fn enter(self: &Arc<CudaContext>) -> Result<Current<'_>, Error> {
        match self.lost.get() {
            Some(lost) => Err(self.error(lost)),
            None => self.make_current(),
        }
    }
    /// Makes the context current even if the device is lost, to destroy objects.
    ///
    /// It tries twice, since an object that is not destroyed leaks.
    pub fn enter_to_destroy(self: &Arc<CudaContext>) -> Result<Current<'_>, Error> {
        self.make_current().or_else(|_| self.make_current())
    }
    fn make_current(self: &Arc<CudaContext>) -> Result<Current<'_>, Error> {
        let mut current = Current {
            context: self,
            previous: std::ptr::null_mut(),
            _of_this_thread: PhantomData,
        };
        // SAFETY: writes a handle or null.
        let previous = unsafe { current.get("cuCtxGetCurrent", |out| sys::cuCtxGetCurrent(out)) }?;
        if previous != self.raw {
            // SAFETY: the context is retained until this is dropped.
            self.check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.raw) })?;
            current.previous = previous;
        }
        Ok(current)
    }

    /// Converts the result of the call `what`. A fatal error makes the device lost from now on.
    pub fn check(&self, what: &str, result: CUresult) -> Result<(), Error> {
        match result {
            CUresult::CUDA_SUCCESS => Ok(()),
            result if is_fatal(result) => Err(self.lose(Lost {
                what: format!("{what} failed: {}", message(result)),
                hint: format!("restart gristmill to use it; {}", hint(result)),
                runs: false,
            })),
            result => Err(refused(&self.title(), what, result)),
        }
    }
    fn lose(&self, lost: Lost) -> Error {
        self.error(self.lost.get_or_init(|| lost))
    }
    /// Marks the device as lost with work possibly running, so that its memory is never freed.
    pub fn lose_track(&self, why: &Error) -> Error {
        let (what, hint) = (
            format!("its state is unknown: {why}"),
            "restart gristmill to use it".into(),
        );
        self.lose(Lost {
            what,
            hint,
            runs: true,
        })
    }
    /// Returns whether work may run forever, so that its memory must not be freed.
    pub fn is_stuck(&self) -> bool {
        self.lost.get().is_some_and(|lost| lost.runs)
    }
    fn error(&self, lost: &Lost) -> Error {
        Error::Lost {
            device: self.title(),
            what: lost.what.clone(),
            hint: lost.hint.clone(),
        }
    }

    /// Returns an attribute of the device.
    pub fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32, Error> {
        let mut value = 0;
        // SAFETY: an open device.
        self.check("cuDeviceGetAttribute", unsafe {
            sys::cuDeviceGetAttribute(&mut value, attribute, self.device)
        })?;
        Ok(value)
    }
    /// Returns the free and the total bytes of device memory.
    pub fn memory(self: &Arc<CudaContext>) -> Result<(usize, usize), Error> {
        let current = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: both are written.
        current.check("cuMemGetInfo", unsafe {
            sys::cuMemGetInfo_v2(&mut free, &mut total)
        })?;
        Ok((free, total))
    }
}

impl Drop for CudaContext {
    fn drop(&mut self) {
        if self.is_stuck() {
            return; // releasing it would wait forever
        }
        // SAFETY: retained once, released once; handles in it keep it alive. A released context
        // does not stay current on this thread.
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

/// Token for a context that is current on this thread.
///
/// Dropping it restores the previous context. A thread without one keeps this context, so
/// that entering again is one call without effect. Tokens of a thread are dropped in reverse
/// order, as variables are.
pub struct Current<'a> {
    context: &'a Arc<CudaContext>,
    /// Context to restore; null if there is none.
    previous: sys::CUcontext,
    /// The current context is a property of the thread: neither `Send` nor `Sync`.
    _of_this_thread: PhantomData<*const ()>,
}

impl<'a> Current<'a> {
    /// Returns the current context.
    pub fn context(&self) -> &'a Arc<CudaContext> {
        self.context
    }
    /// Converts a result as [`CudaContext::check`] does.
    pub fn check(&self, what: &str, result: CUresult) -> Result<(), Error> {
        self.context.check(what, result)
    }
    /// Calls a driver function and returns the value that it writes.
    ///
    /// # Safety
    /// The same as for [`written`].
    pub unsafe fn get<T>(
        &self,
        what: &str,
        call: impl FnOnce(*mut T) -> CUresult,
    ) -> Result<T, Error> {
        // SAFETY: guaranteed by the caller.
        unsafe { written(call) }.map_err(|result| match self.check(what, result) {
            Err(error) => error,
            Ok(()) => unreachable!("{what} failed with {result:?}"),
        })
    }

    /// Polls `query` until it is ready or the timeout makes the device lost.
    ///
    /// Without a timeout it calls `synchronise`, the driver's own wait.
    pub fn wait(
        &self,
        synchronise: impl Fn() -> CUresult,
        query: impl Fn() -> CUresult,
    ) -> Result<(), Error> {
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
                // A process stopped between the query and the clock (a debugger, a
                // frozen container) sees a long wait though the work may have ended, so
                // it queries once more.
                if !std::mem::replace(&mut over, true) {
                    continue;
                }
                return Err(self.context.lose(Lost {
                    what: format!("a kernel or copy has not ended after {limit:?}"),
                    hint: "restart gristmill to use it; if that happens again, please report it with the command that led here; \
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
            // SAFETY: it was current on this thread; if it has been destroyed since, the
            // call fails without effect.
            unsafe { sys::cuCtxSetCurrent(self.previous) };
        }
    }
}
