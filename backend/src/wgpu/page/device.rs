//! The [`Device`] implementation for a page's GPU.

use super::super::dialect::{module, narrowed, words_of_tables};
use super::gpu::{self, BindingKind, GpuLimits};
use super::memory::{GpuMemory, GpuPipeline, memory, out_of_memory};
use super::replay::PageReplay;
use crate::text::{KernelText, Libraries};
use gristmill_runtime::lease::{Owner, Use};
use gristmill_runtime::staging::{self, StagedWrite};
use gristmill_runtime::{
    Buffer, Device, DeviceId, Error, Kernel, Launch, LoadedProgram, Memory, Replay,
};
use gristmill_uop::adapter::{Adapter, AdapterKind};
use gristmill_uop::costs::Costs;
use gristmill_uop::program::{Access, Param, Program};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Op};
use std::sync::Arc;

/// Granularity of allocations, bytes: the widest load.
const ALIGNMENT: u64 = 16;
/// Bytes of a word, the granularity of copies.
const WORD_BYTES: usize = 4;

/// The GPU of a page.
pub struct WebGpuDevice {
    owner: Owner,
    limits: GpuLimits,
    name: String,
    target: Target,
    loaded: Libraries<Arc<GpuPipeline>>,
}

impl WebGpuDevice {
    /// Creates the device that the page has opened.
    ///
    /// # Errors
    /// [`Error::Lacking`] when the browser has no WebGPU.
    pub fn new() -> Result<WebGpuDevice, Error> {
        let (limits, name) = gpu::opened()?;
        let adapter = Adapter {
            kind: match limits.software > 0.0 {
                true => AdapterKind::Software(limits.cores as usize),
                false => AdapterKind::Integrated,
            },
            name: name.clone(),
            subgroup: None,
            widest: 1,
            cooperative: None,
            vector_parts: false,
            threads: limits.threads as usize,
            shared: limits.shared as usize,
            largest_binding: limits.binding.min(f64::from(i32::MAX)) as usize,
            bindings: limits.bindings as usize,
            alignment: limits.alignment.max(16.0) as usize,
            measured: Costs::default(),
        };
        Ok(WebGpuDevice {
            owner: Owner::new(),
            target: Target::new(adapter.machine()),
            limits,
            name,
            loaded: Libraries::default(),
        })
    }
    /// Returns the memory of a buffer, after checking its device and the range.
    fn memory<'a>(
        &self,
        what: &str,
        buffer: &'a Buffer,
        [offset, len]: [usize; 2],
    ) -> Result<&'a GpuMemory, Error> {
        buffer.check(what, offset, len)?;
        memory(self.id(), what, buffer)
    }
    /// Reads bytes, of whole words around them.
    fn fetch(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        let memory = self.memory("read", from, [offset, data.len()])?;
        if data.is_empty() {
            return Ok(());
        }
        let start = from.offset() + offset;
        let first = start / WORD_BYTES * WORD_BYTES;
        let last = (start + data.len()).next_multiple_of(WORD_BYTES);
        if last - first == data.len() {
            return gpu::read(&memory.object, first, data);
        }
        let mut words = vec![0; last - first];
        gpu::read(&memory.object, first, &mut words)?;
        data.copy_from_slice(&words[start - first..][..data.len()]);
        Ok(())
    }
    /// Starts to compile a kernel.
    fn pipeline(&self, text: &KernelText, program: &Program) -> Result<GpuPipeline, Error> {
        let piece = self.target.machine.max_binding_chunk();
        let pieces: Vec<usize> = program.params.iter().map(|p| p.pieces(piece)).collect();
        let words = words_of_tables(&text.source);
        let kinds = kinds(program, &pieces, words.is_some());
        let storage = kinds.iter().filter(|k| **k != BindingKind::Uniform).count();
        if storage > self.limits.bindings as usize {
            return Err(Error::Lacking {
                device: "webgpu".into(),
                message: format!(
                    "{} binds {} buffers, and {} has {storage}",
                    self.name, self.limits.bindings, program.name
                ),
                hint: "open the page with ?device=wasm".into(),
            });
        }
        let source = narrowed(&text.source).ok_or_else(|| Error::Lacking {
            device: "webgpu".into(),
            message: format!("WebGPU has no integers of 64 bits, as in {}", program.title),
            hint: "open the page with ?device=wasm".into(),
        })?;
        let tables = words.map(|words| {
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
            let object = gpu::buffer(bytes.len() as u64, false);
            let object = object.ok_or_else(|| out_of_memory("a table", bytes.len()))?;
            gpu::write(&object, 0, &bytes);
            Ok::<_, Error>((object, bytes.len()))
        });
        Ok(GpuPipeline {
            object: gpu::pipeline(&module(&source), &text.symbol, &kinds),
            pieces,
            piece,
            tables: tables.transpose()?,
        })
    }
}

/// Returns the kinds of a kernel's bindings: buffers, variables, further pieces, tables.
fn kinds(program: &Program, pieces: &[usize], tables: bool) -> Vec<BindingKind> {
    let g = &program.graph;
    let kind = |p: &Param| {
        let packed = |arg: &Arg| matches!(arg, Arg::Packed(slot, _) if *slot == p.slot);
        let is_weight = p.access == Access::Read
            && g.any(program.root, |_, n| n.op == Op::Param && packed(&n.arg));
        match is_weight {
            true => BindingKind::ReadOnly,
            false => BindingKind::Storage,
        }
    };
    let params = program.params.iter().zip(pieces);
    let further = params.flat_map(|(p, &n)| std::iter::repeat_n(kind(p), n - 1));
    program
        .params
        .iter()
        .map(kind)
        .chain((!program.vars.is_empty()).then_some(BindingKind::Uniform))
        .chain(further)
        .chain(tables.then_some(BindingKind::ReadOnly))
        .collect()
}

impl Device for WebGpuDevice {
    fn name(&self) -> &str {
        "webgpu"
    }
    fn id(&self) -> DeviceId {
        self.owner.id()
    }
    fn target(&self) -> &Target {
        &self.target
    }
    fn describe(&self) -> Vec<String> {
        vec![format!("WebGPU: {}", self.name)]
    }
    fn available(&self) -> Option<u64> {
        None
    }
    fn alloc(&self, bytes: usize, memory: Memory) -> Result<Buffer, Error> {
        let size = (bytes.max(1) as u64).next_multiple_of(ALIGNMENT);
        let object = match size as f64 <= self.limits.buffer {
            true => gpu::buffer(size, false),
            false => None,
        };
        let object = object.ok_or_else(|| out_of_memory(memory.describe(), bytes))?;
        let memory = GpuMemory::new(&self.owner, object, size, bytes);
        Ok(Buffer::whole(Arc::new(memory)))
    }
    fn write(&self, to: &Buffer, offset: usize, data: &[u8]) -> Result<(), Error> {
        let memory = self.memory("write", to, [offset, data.len()])?;
        let _lease = to.lease("write", offset, data.len(), Use::Write)?;
        if data.is_empty() {
            return Ok(());
        }
        let start = to.offset() + offset;
        let first = start / WORD_BYTES * WORD_BYTES;
        let last = (start + data.len()).next_multiple_of(WORD_BYTES);
        if last - first == data.len() {
            gpu::write(&memory.object, first, data);
            return gpu::check("a copy to the GPU");
        }
        // A part of the first and of the last word stays.
        let mut words = vec![0; last - first];
        gpu::read(&memory.object, first, &mut words)?;
        words[start - first..][..data.len()].copy_from_slice(data);
        gpu::write(&memory.object, first, &words);
        gpu::check("a copy to the GPU")
    }
    fn read(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        let _lease = from.lease("read", offset, data.len(), Use::Read)?;
        self.fetch(from, offset, data)
    }
    fn read_settled(&self, from: &Buffer, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        self.fetch(from, offset, data)
    }
    fn stage<'a>(
        &'a self,
        to: &Buffer,
        offset: usize,
        len: usize,
    ) -> Result<Box<dyn StagedWrite + 'a>, Error> {
        staging::through(self, to, offset, len)
    }
    fn load(
        &self,
        programs: &[Program],
        progress: &dyn Fn(usize, usize),
    ) -> Result<Vec<Arc<dyn Kernel>>, Error> {
        let texts = KernelText::all(programs)?;
        let (mut pipelines, missing) = self.loaded.find(&texts);
        let mut done = pipelines.len();
        let total = done + missing.len();
        // The browser compiles as many at once as it can.
        let started = missing.into_iter().map(|text| {
            let of = texts.iter().position(|other| other.key == text.key);
            let program = &programs[of.expect("a text of one of the programs")];
            Ok((text.key, self.pipeline(text, program)?))
        });
        for (key, pipeline) in started.collect::<Result<Vec<_>, Error>>()? {
            gpu::compiled(&pipeline.object)?;
            pipelines.insert(key, Arc::new(Arc::new(pipeline)));
            done += 1;
            progress(done, total);
        }
        self.loaded.remember(&pipelines);
        let kernel = |(text, program): (&KernelText, &Program)| -> Arc<dyn Kernel> {
            let pipeline: Arc<GpuPipeline> = (*pipelines[&text.key]).clone();
            Arc::new(LoadedProgram::new(program.clone(), self.id(), pipeline))
        };
        Ok(texts.iter().zip(programs).map(kernel).collect())
    }
    fn capture(&self, launches: Vec<Launch>) -> Result<Box<dyn Replay>, Error> {
        Ok(Box::new(PageReplay::new(
            &self.owner,
            &self.limits,
            launches,
        )?))
    }
}
