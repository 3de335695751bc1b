//! The page's WebGPU objects and the functions that make and use them.

use gristmill_runtime::Error;

#[link(wasm_import_module = "gristmill")]
unsafe extern "C" {
    /// Writes the limits of the open device in the order of [`GpuLimits`]; 0 if none is open.
    fn gpu_limits(to: *mut f64) -> u32;
    /// Writes the name of the adapter, at most `len` bytes; returns its length.
    fn gpu_name(to: *mut u8, len: usize) -> usize;
    /// Creates a buffer of zeros; 0 if there is no memory.
    safe fn gpu_buffer(bytes: f64, uniform: u32) -> u32;
    /// Frees an object, whose number is used again.
    safe fn gpu_free(object: u32);
    fn gpu_write(buffer: u32, offset: f64, data: *const u8, len: usize);
    /// Waits for all steps and copies bytes of a buffer; 0 after an error.
    fn gpu_read(buffer: u32, offset: f64, to: *mut u8, len: usize) -> u32;
    /// Starts to compile a module's function; `kinds` are those of its bindings.
    fn gpu_pipeline(
        text: *const u8,
        len: usize,
        name: *const u8,
        name_len: usize,
        kinds: *const u32,
        count: usize,
    ) -> u32;
    /// Waits until a pipeline is compiled; 0 after an error.
    safe fn gpu_compiled(pipeline: u32) -> u32;
    /// Binds parts of buffers to a pipeline.
    fn gpu_bind(pipeline: u32, parts: *const BufferPart, count: usize) -> u32;
    /// Starts dispatches in this order.
    fn gpu_run(dispatches: *const GpuDispatch, count: usize);
    /// Writes the text of the last error, at most `len` bytes; returns its length, 0 for none.
    fn take_message(to: *mut u8, len: usize) -> usize;
}

/// Longest text of an error, bytes.
const MESSAGE: usize = 4 << 10;
/// Longest name of an adapter, bytes.
const NAME: usize = 256;

/// GpuLimits of the open device.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct GpuLimits {
    /// Largest size of a buffer, bytes.
    pub buffer: f64,
    /// Largest part of a buffer that is bound, bytes.
    pub binding: f64,
    /// Storage buffers of a kernel.
    pub bindings: f64,
    /// Threads of a workgroup.
    pub threads: f64,
    /// Shared memory of a workgroup, bytes.
    pub shared: f64,
    /// Alignment of a bound part, bytes.
    pub alignment: f64,
    /// 1 for a software implementation.
    pub software: f64,
    /// Cores of the processor.
    pub cores: f64,
}

/// A part of a buffer.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct BufferPart {
    pub buffer: u32,
    pub offset: u32,
    pub bytes: u32,
}

/// A dispatch of a step.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct GpuDispatch {
    pub pipeline: u32,
    pub bindings: u32,
    pub x: u32,
    pub y: u32,
}

/// How a kernel uses a binding.
#[repr(u32)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BindingKind {
    Storage = 0,
    ReadOnly = 1,
    Uniform = 2,
}

/// An object of the page, freed on drop.
#[derive(Debug)]
pub struct GpuObject(u32);

impl GpuObject {
    /// Returns the number by which the page knows it.
    pub fn number(&self) -> u32 {
        self.0
    }
}

impl Drop for GpuObject {
    fn drop(&mut self) {
        gpu_free(self.0);
    }
}

/// Returns the limits of the open device and the name of its adapter.
pub fn opened() -> Result<(GpuLimits, String), Error> {
    let mut limits = GpuLimits::default();
    // SAFETY: the struct has as many numbers.
    if unsafe { gpu_limits((&raw mut limits).cast()) } == 0 {
        return Err(Error::Lacking {
            device: "webgpu".into(),
            message: "this browser has no WebGPU, or its GPU is not supported".into(),
            hint: "use the device wasm".into(),
        });
    }
    let mut name = vec![0; NAME];
    // SAFETY: as many bytes are there.
    let len = unsafe { gpu_name(name.as_mut_ptr(), NAME) };
    name.truncate(len);
    Ok((limits, String::from_utf8_lossy(&name).into_owned()))
}

/// Returns the error since the last call, if there was one.
pub fn check(what: &str) -> Result<(), Error> {
    let mut message = vec![0; MESSAGE];
    // SAFETY: as many bytes are there.
    let len = unsafe { take_message(message.as_mut_ptr(), MESSAGE) };
    if len == 0 {
        return Ok(());
    }
    message.truncate(len);
    Err(Error::Driver {
        device: "webgpu".into(),
        what: what.into(),
        message: String::from_utf8_lossy(&message).into_owned(),
        hint: "open the page with ?device=wasm".into(),
    })
}

fn failed(what: &str) -> Error {
    let unknown = || Error::invalid(what, "the browser gave no reason");
    check(what).err().unwrap_or_else(unknown)
}

/// Creates a buffer of zeros, for variables if `uniform`.
pub fn buffer(bytes: u64, uniform: bool) -> Option<GpuObject> {
    let number = gpu_buffer(bytes as f64, uniform.into());
    (number != 0).then_some(GpuObject(number))
}

/// Writes whole words, before the steps that are started later.
pub fn write(to: &GpuObject, offset: usize, words: &[u8]) {
    // SAFETY: the bytes are only read.
    unsafe { gpu_write(to.0, offset as f64, words.as_ptr(), words.len()) };
}

/// Waits for all steps and reads whole words.
pub fn read(from: &GpuObject, offset: usize, words: &mut [u8]) -> Result<(), Error> {
    // SAFETY: as many bytes are there.
    match unsafe { gpu_read(from.0, offset as f64, words.as_mut_ptr(), words.len()) } {
        0 => Err(failed("reading a buffer")),
        _ => Ok(()),
    }
}

/// Starts to compile the function `name` of a module.
pub fn pipeline(text: &str, name: &str, kinds: &[BindingKind]) -> GpuObject {
    // SAFETY: the texts and the kinds are only read.
    GpuObject(unsafe {
        gpu_pipeline(
            text.as_ptr(),
            text.len(),
            name.as_ptr(),
            name.len(),
            kinds.as_ptr().cast(),
            kinds.len(),
        )
    })
}

/// Waits until a pipeline is compiled.
pub fn compiled(pipeline: &GpuObject) -> Result<(), Error> {
    match gpu_compiled(pipeline.0) {
        0 => Err(failed("compiling a kernel")),
        _ => Ok(()),
    }
}

/// Binds parts of buffers to a pipeline.
pub fn bind(pipeline: &GpuObject, parts: &[BufferPart]) -> GpuObject {
    // SAFETY: the parts are only read.
    GpuObject(unsafe { gpu_bind(pipeline.0, parts.as_ptr(), parts.len()) })
}

/// Starts dispatches, each after the end of those before it.
pub fn run(dispatches: &[GpuDispatch]) {
    // SAFETY: the dispatches are only read.
    unsafe { gpu_run(dispatches.as_ptr(), dispatches.len()) };
}
