//! Memory of an adapter: a buffer for each allocation, and copies of whole words.

use super::context::WgpuContext;
use super::readback_cache::ReadbackCache;
use gristmill_runtime::lease::Uses;
use gristmill_runtime::{Buffer, Error, Memory, RawBuffer};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wgpu::{BufferDescriptor, BufferUsages, CommandEncoderDescriptor, MapMode};

/// Granularity of allocations in bytes: the widest load.
const ALIGNMENT: u64 = 16;
/// Bytes of a word, the granularity of copies.
const WORD_BYTES: usize = 4;
/// Bytes of queued writes before a wait; each queued byte is also held in host memory.
const MAX_PENDING_BYTES: u64 = 64 << 20;

/// An allocation on an adapter.
pub struct AdapterMemory {
    /// Buffer, rounded up to the granularity.
    pub buffer: wgpu::Buffer,
    len: usize,
    uses: Uses,
    /// Host copy of the buffer for [`Memory::Readback`], else None.
    pub readback: Option<ReadbackCache>,
}

// SAFETY: it has no address on the host.
unsafe impl RawBuffer for AdapterMemory {
    fn len(&self) -> usize {
        self.len
    }
    fn uses(&self) -> &Uses {
        &self.uses
    }
}

/// Allocates a buffer of `bytes`, filled with zeros.
pub fn alloc(context: &WgpuContext, bytes: usize, memory: Memory) -> Result<Buffer, Error> {
    let size = (bytes.max(1) as u64).next_multiple_of(ALIGNMENT);
    let limits = &context.limits;
    // A buffer beyond the binding limit is bound in pieces or in part. Kernels index in 32 bits.
    let most = limits.max_buffer_size.min(u32::MAX.into());
    if size > most {
        return Err(Error::Lacking {
            device: "wgpu".into(),
            message: format!(
                "{} takes buffers of {most} bytes, and {} want one of {bytes}",
                context.title,
                memory.describe()
            ),
            hint: "try a smaller quantisation, a smaller --ctx, or another device".into(),
        });
    }
    let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
    let descriptor = BufferDescriptor {
        label: None,
        size,
        usage,
        mapped_at_creation: false,
    };
    let made = context.scoped(memory.describe(), || {
        context.device.create_buffer(&descriptor)
    });
    let buffer = made.map_err(|error| match error {
        Error::OutOfMemory {
            what, free, device, ..
        } => Error::OutOfMemory {
            what,
            wanted: bytes,
            free,
            device,
        },
        other => other,
    })?;
    let told = (memory == Memory::Readback).then(ReadbackCache::default);
    Ok(Buffer::whole(Arc::new(AdapterMemory {
        buffer,
        len: bytes,
        uses: Uses::new(&context.owner),
        readback: told,
    })))
}

/// Returns the allocation of a buffer after checking its device and the range.
pub fn memory<'a>(
    context: &WgpuContext,
    what: &str,
    buffer: &'a Buffer,
    [offset, len]: [usize; 2],
) -> Result<&'a AdapterMemory, Error> {
    buffer.check(what, offset, len)?;
    buffer.check_device(what, context.owner.id())?;
    buffer
        .raw::<AdapterMemory>()
        .ok_or_else(|| Error::invalid(what, "the buffer is no memory of an adapter"))
}

/// Copies between host memory and an adapter's memory.
#[derive(Default)]
pub struct WgpuCopies {
    on_their_way: AtomicU64,
}

impl WgpuCopies {
    /// Writes bytes and preserves the other bytes of partially covered words.
    pub fn write(
        &self,
        context: &WgpuContext,
        to: &Buffer,
        offset: usize,
        data: &[u8],
    ) -> Result<(), Error> {
        let memory = memory(context, "write", to, [offset, data.len()])?;
        if data.is_empty() {
            return Ok(());
        }
        memory.readback.iter().for_each(ReadbackCache::invalidate);
        let start = to.offset() + offset;
        let end = start + data.len();
        let (first, last) = (
            start / WORD_BYTES * WORD_BYTES,
            end.next_multiple_of(WORD_BYTES),
        );
        let padded: Vec<u8>;
        let data = if (first, last) == (start, end) {
            data
        } else {
            let mut words = vec![0; last - first];
            // Fetch the first and last word, of which a part stays.
            let size = words.len();
            fetch(context, memory, first, &mut words[..WORD_BYTES])?;
            fetch(
                context,
                memory,
                last - WORD_BYTES,
                &mut words[size - WORD_BYTES..],
            )?;
            words[start - first..end - first].copy_from_slice(data);
            padded = words;
            &padded[..]
        };
        context.scoped("a copy to the GPU", || {
            context
                .queue
                .write_buffer(&memory.buffer, first as u64, data)
        })?;
        let before = self
            .on_their_way
            .fetch_add(data.len() as u64, Ordering::Relaxed);
        if before + data.len() as u64 >= MAX_PENDING_BYTES {
            self.on_their_way.store(0, Ordering::Relaxed);
            let index = context.queue.submit([]);
            context.wait("a copy to the GPU", index)?;
        }
        Ok(())
    }

    /// Reads bytes, from the readback cache if it is valid, else after all submitted work.
    pub fn read(
        &self,
        context: &WgpuContext,
        from: &Buffer,
        offset: usize,
        data: &mut [u8],
    ) -> Result<(), Error> {
        let memory = memory(context, "read", from, [offset, data.len()])?;
        if data.is_empty() {
            return Ok(());
        }
        let start = from.offset() + offset;
        let end = start + data.len();
        if memory
            .readback
            .as_ref()
            .is_some_and(|told| told.read(start, data))
        {
            return Ok(());
        }
        let (first, last) = (
            start / WORD_BYTES * WORD_BYTES,
            end.next_multiple_of(WORD_BYTES),
        );
        if (first, last) == (start, end) {
            return fetch(context, memory, first, data);
        }
        let mut words = vec![0; last - first];
        fetch(context, memory, first, &mut words)?;
        data.copy_from_slice(&words[start - first..end - first]);
        Ok(())
    }
}

/// Reads whole words through a mapped staging buffer.
fn fetch(
    context: &WgpuContext,
    from: &AdapterMemory,
    at: usize,
    words: &mut [u8],
) -> Result<(), Error> {
    const WHAT: &str = "a copy from the GPU";
    let size = words.len() as u64;
    let usage = BufferUsages::MAP_READ | BufferUsages::COPY_DST;
    let descriptor = BufferDescriptor {
        label: None,
        size,
        usage,
        mapped_at_creation: false,
    };
    let (staging, index) = context.scoped(WHAT, || {
        let staging = context.device.create_buffer(&descriptor);
        let mut encoder = context
            .device
            .create_command_encoder(&CommandEncoderDescriptor::default());
        encoder.copy_buffer_to_buffer(&from.buffer, at as u64, &staging, 0, size);
        let index = context.queue.submit([encoder.finish()]);
        staging.map_async(MapMode::Read, .., |_| ());
        (staging, index)
    })?;
    context.wait(WHAT, index)?;
    let view = staging
        .get_mapped_range(..)
        .map_err(|error| Error::Driver {
            device: format!("wgpu, {}", context.title),
            what: WHAT.into(),
            message: error.to_string(),
            hint: "please report this with the driver's version".into(),
        })?;
    words.copy_from_slice(&view);
    Ok(())
}
