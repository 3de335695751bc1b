//! What steps tell the host ([`Memory::Readback`](gristmill_runtime::Memory)): each step ends with a copy to memory that the host maps, so that reading it waits for no step behind.

use super::context::WgpuContext;
use super::memory::AdapterMemory;
use super::readback_cache::Told;
use gristmill_runtime::lease::Use;
use gristmill_runtime::{Error, Launch, RawBuffer};
use std::sync::Arc;
use wgpu::{BufferDescriptor, BufferUsages, CommandEncoder, MapMode};

/// Memory that the host maps, one for each buffer that a step tells.
pub type HostCopies = Vec<wgpu::Buffer>;

/// The buffers that a step tells.
pub struct Readback {
    of: Vec<Arc<dyn RawBuffer>>,
    /// Memory that no step in flight copies to.
    spare: Vec<HostCopies>,
}

fn memory(of: &Arc<dyn RawBuffer>) -> Option<(&AdapterMemory, &Told)> {
    let any: &dyn std::any::Any = of.as_ref();
    let memory: &AdapterMemory = any.downcast_ref()?;
    Some((memory, memory.told.as_ref()?))
}

impl Readback {
    /// Of a step's launches.
    pub fn new(launches: &[Launch]) -> Readback {
        let mut of: Vec<Arc<dyn RawBuffer>> = Vec::new();
        for (buffer, _, how) in launches.iter().flat_map(Launch::uses) {
            let known = of.iter().any(|other| Arc::ptr_eq(other, buffer));
            if how == Use::Write && !known && memory(buffer).is_some() {
                of.push(buffer.clone());
            }
        }
        Readback { of, spare: Vec::new() }
    }
    fn all(&self) -> impl Iterator<Item = (&AdapterMemory, &Told)> {
        self.of.iter().filter_map(memory)
    }
    /// Memory for the copies of a step that starts.
    pub fn take(&mut self, context: &WgpuContext) -> HostCopies {
        let make = |(memory, _): (&AdapterMemory, &Told)| {
            let (size, usage) = (memory.buffer.size(), BufferUsages::MAP_READ | BufferUsages::COPY_DST);
            context.device.create_buffer(&BufferDescriptor { label: None, size, usage, mapped_at_creation: false })
        };
        self.spare.pop().unwrap_or_else(|| self.all().map(make).collect())
    }
    /// Records the copies, behind the step.
    pub fn record(&self, encoder: &mut CommandEncoder, copy: &HostCopies) {
        for ((memory, _), to) in self.all().zip(copy) {
            encoder.copy_buffer_to_buffer(&memory.buffer, 0, to, 0, to.size());
        }
    }
    /// The copies are submitted: they are to be mapped once they are made.
    pub fn map(copy: &HostCopies) {
        copy.iter().for_each(|buffer| buffer.map_async(MapMode::Read, .., |_| ()));
    }
    /// The step has ended: what it tells is known.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the copies were not made.
    pub fn keep(&mut self, copy: HostCopies) -> Result<(), Error> {
        for ((_, told), from) in self.all().zip(&copy) {
            let view = from.get_mapped_range(..).map_err(|e| Error::invalid("what a step tells", e.to_string()))?;
            told.set(&view);
            drop(view);
            from.unmap();
        }
        self.spare.push(copy);
        Ok(())
    }
    /// The step has run without copies.
    pub fn forget(&self) {
        self.all().for_each(|(_, told)| told.forget());
    }
}
