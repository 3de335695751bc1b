//! Availability of the CUDA driver and conversion of its errors, on `cudarc`'s raw functions.

use cudarc::driver::sys::{self, CUresult};
use gristmill_runtime::Error;
use std::ffi::CStr;
use std::mem::MaybeUninit;

/// Oldest driver with all functions used here, as `cuDriverGetVersion` counts: CUDA 12.8.
const MIN_DRIVER_VERSION: i32 = 12080;

const BUG_HINT: &str = "this is a bug in gristmill: please report it with the command that led here; --device cpu works without the GPU";
const BROKEN_HINT: &str = "check with `nvidia-smi` that the GPU is listed, has free memory and reports no errors; --device cpu works without it";

/// Returns the error of a device that lacks something.
pub fn lacking(message: impl Into<String>, hint: impl Into<String>) -> Error {
    Error::Lacking {
        device: "cuda".into(),
        message: message.into(),
        hint: hint.into(),
    }
}

/// Returns whether a result means that the context is unusable from now on.
pub fn is_fatal(result: CUresult) -> bool {
    matches!(
        result,
        CUresult::CUDA_ERROR_DEINITIALIZED
            | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUresult::CUDA_ERROR_CONTAINED
            | CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_LAUNCH_FAILED
            | CUresult::CUDA_ERROR_TENSOR_MEMORY_LEAK
            | CUresult::CUDA_ERROR_MPS_RPC_FAILURE
            | CUresult::CUDA_ERROR_MPS_CLIENT_TERMINATED
            | CUresult::CUDA_ERROR_EXTERNAL_DEVICE
            | CUresult::CUDA_ERROR_UNKNOWN
    )
}

/// Returns advice for a result.
pub fn hint(result: CUresult) -> &'static str {
    match result {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => "try a smaller --ctx, or a smaller model",
        CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU
        | CUresult::CUDA_ERROR_INVALID_IMAGE
        | CUresult::CUDA_ERROR_UNSUPPORTED_PTX_VERSION => {
            "the driver rejects the code of this NVRTC: update the driver, or install an NVRTC that is no newer than it"
        }
        CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
        | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
        | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
        | CUresult::CUDA_ERROR_INVALID_VALUE
        | CUresult::CUDA_ERROR_LAUNCH_FAILED => BUG_HINT,
        _ => BROKEN_HINT,
    }
}

/// Returns the error of a failed call `what` on a device.
pub fn refused(device: &str, what: &str, result: CUresult) -> Error {
    let (device, what) = (device.into(), what.into());
    Error::Driver {
        device,
        what,
        message: message(result),
        hint: hint(result).into(),
    }
}

/// Formats a result: `CUDA_ERROR_NAME (meaning)`.
pub fn message(result: CUresult) -> String {
    let text = |get: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: writes the address of a static text, or null.
        let found = unsafe { get(result, &mut text) } == CUresult::CUDA_SUCCESS && !text.is_null();
        // SAFETY: NUL-terminated.
        found.then(|| {
            unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned()
        })
    };
    let name = text(sys::cuGetErrorName).unwrap_or_else(|| format!("error {}", result as u32));
    text(sys::cuGetErrorString).map_or(name.clone(), |meaning| format!("{name} ({meaning})"))
}

/// Calls a driver function and returns the value that it writes.
///
/// # Safety
/// When `call` returns success, it has written a valid `T` to its argument.
pub unsafe fn written<T>(call: impl FnOnce(*mut T) -> CUresult) -> Result<T, CUresult> {
    let mut value = MaybeUninit::uninit();
    match call(value.as_mut_ptr()) {
        // SAFETY: written, as the caller guarantees.
        CUresult::CUDA_SUCCESS => Ok(unsafe { value.assume_init() }),
        result => Err(result),
    }
}

/// Calls [`written`] before a device is open; errors name no device.
///
/// # Safety
/// The same as for [`written`].
pub unsafe fn get<T>(what: &str, call: impl FnOnce(*mut T) -> CUresult) -> Result<T, Error> {
    // SAFETY: guaranteed by the caller.
    unsafe { written(call) }.map_err(|result| refused("cuda", what, result))
}

/// Initialises the driver. Returns its version and the number of devices.
pub fn start() -> Result<(i32, i32), Error> {
    // SAFETY: only looks for a library.
    if !unsafe { sys::is_culib_present() } {
        return Err(lacking(
            "there is no NVIDIA driver (libcuda)",
            "install NVIDIA's driver; in a container, start it with the GPU (for example docker run --gpus all)",
        ));
    }
    // SAFETY: functions without preconditions; their outputs live during the call.
    let (version, count) = unsafe {
        let version = get("cuDriverGetVersion", |out: *mut i32| {
            sys::cuDriverGetVersion(out)
        })?;
        if version < MIN_DRIVER_VERSION {
            let have = format!(
                "the driver supports only CUDA {}.{}",
                version / 1000,
                version % 1000 / 10
            );
            let need = format!(
                "update it: CUDA {}.{} or later is needed",
                MIN_DRIVER_VERSION / 1000,
                MIN_DRIVER_VERSION % 1000 / 10
            );
            return Err(lacking(have, need));
        }
        match sys::cuInit(0) {
            CUresult::CUDA_ERROR_NO_DEVICE => (version, 0),
            CUresult::CUDA_SUCCESS => (
                version,
                get("cuDeviceGetCount", |out| sys::cuDeviceGetCount(out))?,
            ),
            result => return Err(refused("cuda", "cuInit", result)),
        }
    };
    match count {
        0 => Err(lacking(
            "the driver finds no GPU",
            "check that `nvidia-smi` lists one; CUDA_VISIBLE_DEVICES may hide it",
        )),
        _ => Ok((version, count)),
    }
}

/// Returns whether the driver finds a GPU, usable or not.
pub fn present() -> bool {
    start().is_ok()
}
