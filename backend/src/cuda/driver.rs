//! The CUDA driver through `cudarc`'s raw functions: is it there, its errors in our words, a device's context, handles that free
//! themselves.

use cudarc::driver::sys::{self, CUdevice_attribute, CUresult};
use gristmill_runtime::Error;
use gristmill_runtime::lease::Owner;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::sync::Arc;

/// The oldest driver that has every function used here, as `cuDriverGetVersion` counts: CUDA 12.8.
const OLDEST: i32 = 12080;

/// A device that lacks something.
pub fn lacking(message: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::Lacking { device: "cuda".into(), message: message.into(), hint: hint.into() }
}

/// What the driver said of `what`.
pub fn check(what: &str, result: CUresult) -> Result<(), Error> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let hint = match result {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => "try a smaller --ctx, or a smaller model",
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
        | CUresult::CUDA_ERROR_INVALID_IMAGE
        | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            "the driver does not take what this NVRTC compiles: update the driver, or install an NVRTC that is no newer than it"
        }
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
        | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUresult::CUDA_ERROR_INVALID_VALUE
        | CUresult::CUDA_ERROR_LAUNCH_FAILED => {
            "this is a bug in gristmill: please report it with the command that led here; --device cpu works without the GPU"
        }
        _ => {
            "does `nvidia-smi` list the GPU, and has it memory and no other program's errors? --device cpu works without it"
        }
    };
    Err(Error::Driver { device: "cuda".into(), what: what.into(), message: message(result), hint: hint.into() })
}

/// `CUDA_ERROR_NAME (what it means)`.
fn message(result: CUresult) -> String {
    let text = |get: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: writes the address of a text that is never freed, or null.
        let found = unsafe { get(result, &mut text) } == CUresult::CUDA_SUCCESS && !text.is_null();
        // SAFETY: NUL-terminated.
        found.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    };
    let name = text(sys::cuGetErrorName).unwrap_or_else(|| format!("error {}", result as u32));
    text(sys::cuGetErrorString).map_or(name.clone(), |meaning| format!("{name} ({meaning})"))
}

/// A value that a function of the driver writes.
pub fn get<T>(what: &str, call: impl FnOnce(*mut T) -> CUresult) -> Result<T, Error> {
    let mut value = MaybeUninit::uninit();
    check(what, call(value.as_mut_ptr()))?;
    // SAFETY: every function that is called like this has written the value when it says success.
    Ok(unsafe { value.assume_init() })
}

/// The driver, ready: its version, and how many devices it has.
pub fn start() -> Result<(i32, i32), Error> {
    // SAFETY: looks for a library.
    if !unsafe { sys::is_culib_present() } {
        return Err(lacking(
            "there is no NVIDIA driver (libcuda)",
            "install NVIDIA's driver; in a container, start it with the GPU (for example docker run --gpus all)",
        ));
    }
    // SAFETY: functions of the driver without conditions; what they write lives as long as the call.
    let (version, count) = unsafe {
        let version: i32 = get("cuDriverGetVersion", |out| sys::cuDriverGetVersion(out))?;
        if version < OLDEST {
            let have = format!("the driver is for CUDA {}.{}", version / 1000, version % 1000 / 10);
            let need = format!("update it: CUDA {}.{} or later is needed", OLDEST / 1000, OLDEST % 1000 / 10);
            return Err(lacking(have, need));
        }
        match sys::cuInit(0) {
            CUresult::CUDA_ERROR_NO_DEVICE => (version, 0),
            result => {
                check("cuInit", result)?;
                (version, get("cuDeviceGetCount", |out| sys::cuDeviceGetCount(out))?)
            }
        }
    };
    match count {
        0 => Err(lacking("the driver finds no GPU", "does `nvidia-smi` list one? CUDA_VISIBLE_DEVICES may hide it")),
        _ => Ok((version, count)),
    }
}

/// Is there a GPU, whether or not it can be used?
pub fn present() -> bool {
    start().is_ok()
}

/// One device, opened: everything below keeps it.
pub struct Context {
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
}

// SAFETY: a context may be current on any number of threads; the driver locks what it must.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The device of that number, with the context that all users of it in this process share.
    pub fn open(number: usize) -> Result<Arc<Context>, Error> {
        let (driver, count) = start()?;
        if number >= count as usize {
            let names = (0..count).map(|n| format!("cuda:{n}")).collect::<Vec<_>>().join(", ");
            return Err(lacking(format!("there is no GPU {number}"), format!("there is {names}")));
        }
        // SAFETY: the number is a device's; the name's buffer is as long as is said.
        unsafe {
            let device = get("cuDeviceGet", |out| sys::cuDeviceGet(out, number as i32))?;
            let mut name = [0u8; 128];
            check("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr().cast(), name.len() as i32, device))?;
            let model = CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned();
            let raw = get("cuDevicePrimaryCtxRetain", |out| sys::cuDevicePrimaryCtxRetain(out, device))?;
            let mut context = Context { owner: Owner::new(), number, model, sm: 0, driver, device, raw };
            let major = context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
            let minor = context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
            context.sm = (major * 10 + minor) as u32;
            Ok(Arc::new(context))
        }
    }
    /// Makes it the calling thread's current one, as every call that follows needs.
    pub fn enter(&self) -> Result<(), Error> {
        // SAFETY: retained until this is dropped.
        check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.raw) })
    }
    /// A number of the device.
    pub fn attribute(&self, attribute: CUdevice_attribute) -> Result<i32, Error> {
        // SAFETY: an open device.
        get("cuDeviceGetAttribute", |out| unsafe { sys::cuDeviceGetAttribute(out, attribute, self.device) })
    }
    /// Bytes free and in all.
    pub fn memory(&self) -> Result<(usize, usize), Error> {
        self.enter()?;
        let mut total = 0;
        // SAFETY: both are written.
        let free = get("cuMemGetInfo", |out| unsafe { sys::cuMemGetInfo_v2(out, &mut total) })?;
        Ok((free, total))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained once, released once; handles in it hold it.
        unsafe { sys::cuDevicePrimaryCtxRelease_v2(self.device) };
    }
}

/// A handle of the driver, destroyed when dropped.
pub struct Handle<T: Copy> {
    raw: T,
    destroy: unsafe fn(T) -> CUresult,
    context: Arc<Context>,
}

// SAFETY: handles belong to a context, not to a thread. Those that must not be used from two threads at once (graphs) are behind `&mut`.
unsafe impl<T: Copy> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T: Copy> Sync for Handle<T> {}

impl<T: Copy> Handle<T> {
    /// What `make` writes; `destroy` ends it.
    pub fn new(
        context: &Arc<Context>,
        what: &str,
        destroy: unsafe fn(T) -> CUresult,
        make: impl FnOnce(*mut T) -> CUresult,
    ) -> Result<Handle<T>, Error> {
        context.enter()?;
        Ok(Handle { raw: get(what, make)?, destroy, context: context.clone() })
    }
    /// The handle itself, for as long as this lives.
    pub fn raw(&self) -> T {
        self.raw
    }
    /// Its device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl<T: Copy> Drop for Handle<T> {
    fn drop(&mut self) {
        if self.context.enter().is_ok() {
            // SAFETY: made in this context, and nobody has it any more. Nothing can be done about an error.
            unsafe { (self.destroy)(self.raw) };
        }
    }
}

/// A queue of work.
pub type Stream = Handle<sys::CUstream>;
/// A mark in a queue.
pub type Event = Handle<sys::CUevent>;

/// A stream of its own, that does not wait for the default one.
pub fn stream(context: &Arc<Context>) -> Result<Stream, Error> {
    let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
    // SAFETY: writes a handle.
    Handle::new(context, "cuStreamCreate", sys::cuStreamDestroy_v2, |out| unsafe { sys::cuStreamCreate(out, flags) })
}

/// An event without a time.
pub fn event(context: &Arc<Context>) -> Result<Event, Error> {
    let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
    // SAFETY: writes a handle.
    Handle::new(context, "cuEventCreate", sys::cuEventDestroy_v2, |out| unsafe { sys::cuEventCreate(out, flags) })
}

impl Stream {
    /// Waits for all that is in it. Errors of kernels that ran are found here.
    pub fn wait(&self) -> Result<(), Error> {
        self.context.enter()?;
        // SAFETY: a stream that lives.
        check("a kernel or copy", unsafe { sys::cuStreamSynchronize(self.raw) })
    }
    /// Marks where it is.
    pub fn mark(&self, event: &Event) -> Result<(), Error> {
        // SAFETY: both live, in one context, which is current wherever work was queued.
        check("cuEventRecord", unsafe { sys::cuEventRecord(event.raw, self.raw) })
    }
    /// What is queued from now on waits for that mark.
    pub fn follow(&self, event: &Event) -> Result<(), Error> {
        // SAFETY: as above.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.raw, event.raw, 0) })
    }
}

impl Event {
    /// Waits until its mark is passed.
    pub fn wait(&self) -> Result<(), Error> {
        self.context.enter()?;
        // SAFETY: an event that lives.
        check("a kernel or copy", unsafe { sys::cuEventSynchronize(self.raw) })
    }
}
