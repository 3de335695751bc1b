//! Results of steps for the host ([`Memory::Readback`](gristmill_runtime::Memory)).
//!
//! Each step ends with a copy to mapped memory, so that reading the result does not
//! wait for later steps.

use super::context::WgpuContext;
use super::memory::AdapterMemory;
use super::readback_cache::ReadbackCache;
use gristmill_runtime::lease::Use;
use gristmill_runtime::{Error, Launch, RawBuffer};
use std::sync::Arc;
use wgpu::{BufferDescriptor, BufferUsages, CommandEncoder, MapMode};

/// Mappable buffers, one for each readback buffer of a step.
pub type HostCopies = Vec<wgpu::Buffer>;

/// Readback buffers of a step.
pub struct Readback {
    of: Vec<Arc<dyn RawBuffer>>,
    /// Mappable buffers that no step in flight uses.
    spare: Vec<HostCopies>,
}

fn memory(of: &Arc<dyn RawBuffer>) -> Option<(&AdapterMemory, &ReadbackCache)> {
    let any: &dyn std::any::Any = of.as_ref();
    let memory: &AdapterMemory = any.downcast_ref()?;
    Some((memory, memory.readback.as_ref()?))
}

impl Readback {
    /// Collects the readback buffers that the launches write.
    pub fn new(launches: &[Launch]) -> Readback {
        let mut of: Vec<Arc<dyn RawBuffer>> = Vec::new();
        for (buffer, _, how) in launches.iter().flat_map(Launch::uses) {
            let known = of.iter().any(|other| Arc::ptr_eq(other, buffer));
            if how == Use::Write && !known && memory(buffer).is_some() {
                of.push(buffer.clone());
            }
        }
        Readback {
            of,
            spare: Vec::new(),
        }
    }
    fn cached_buffers(&self) -> impl Iterator<Item = (&AdapterMemory, &ReadbackCache)> {
        self.of.iter().filter_map(memory)
    }
    /// Returns mappable buffers for a step that starts.
    pub fn take(&mut self, context: &WgpuContext) -> HostCopies {
        let make = |(memory, _): (&AdapterMemory, &ReadbackCache)| {
            let (size, usage) = (
                memory.buffer.size(),
                BufferUsages::MAP_READ | BufferUsages::COPY_DST,
            );
            context.device.create_buffer(&BufferDescriptor {
                label: None,
                size,
                usage,
                mapped_at_creation: false,
            })
        };
        self.spare
            .pop()
            .unwrap_or_else(|| self.cached_buffers().map(make).collect())
    }
    /// Records the copies at the end of the step.
    pub fn record(&self, encoder: &mut CommandEncoder, copy: &HostCopies) {
        for ((memory, _), to) in self.cached_buffers().zip(copy) {
            encoder.copy_buffer_to_buffer(&memory.buffer, 0, to, 0, to.size());
        }
    }
    /// Requests the mapping of the submitted copies.
    pub fn map(copy: &HostCopies) {
        copy.iter()
            .for_each(|buffer| buffer.map_async(MapMode::Read, .., |_| ()));
    }
    /// Publishes the results of a finished step.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the copies cannot be mapped.
    pub fn finish(&mut self, copy: HostCopies) -> Result<(), Error> {
        for ((_, told), from) in self.cached_buffers().zip(&copy) {
            let view = from
                .get_mapped_range(..)
                .map_err(|e| Error::invalid("results of a step", e.to_string()))?;
            told.set(&view);
            drop(view);
            from.unmap();
        }
        self.spare.push(copy);
        Ok(())
    }
    /// Invalidates the results after a step without copies.
    pub fn invalidate(&self) {
        self.cached_buffers()
            .for_each(|(_, told)| told.invalidate());
    }
}
