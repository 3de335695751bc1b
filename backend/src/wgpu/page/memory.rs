//! Buffers and kernels of a page's GPU.

use super::gpu::GpuObject;
use gristmill_runtime::lease::{Owner, Uses};
use gristmill_runtime::{Buffer, DeviceId, Error, RawBuffer};

/// A kernel that the browser compiles, with the layout of its bindings.
pub(super) struct GpuPipeline {
    pub object: GpuObject,
    /// Number of pieces of each buffer, and the bytes of a piece.
    pub pieces: Vec<usize>,
    pub piece: usize,
    /// Buffer of the constant tables, with its bytes.
    pub tables: Option<(GpuObject, usize)>,
}

/// Memory of the GPU.
pub(super) struct GpuMemory {
    pub object: GpuObject,
    pub size: u64,
    len: usize,
    uses: Uses,
}

// SAFETY: it has no address on the host.
unsafe impl RawBuffer for GpuMemory {
    fn len(&self) -> usize {
        self.len
    }
    fn uses(&self) -> &Uses {
        &self.uses
    }
}

impl GpuMemory {
    /// Wraps a buffer of `size` bytes, of which `len` were asked for.
    pub fn new(owner: &Owner, object: GpuObject, size: u64, len: usize) -> GpuMemory {
        GpuMemory {
            object,
            size,
            len,
            uses: Uses::new(owner),
        }
    }
}

/// Returns the memory of a buffer of that device.
pub(super) fn memory<'a>(
    device: DeviceId,
    what: &str,
    buffer: &'a Buffer,
) -> Result<&'a GpuMemory, Error> {
    buffer.check_device(what, device)?;
    let memory = buffer.raw::<GpuMemory>();
    memory.ok_or_else(|| Error::invalid(what, "the buffer is no memory of a GPU"))
}

pub(super) fn out_of_memory(what: &str, wanted: usize) -> Error {
    Error::OutOfMemory {
        what: what.into(),
        wanted,
        free: None,
        device: "webgpu".into(),
    }
}
