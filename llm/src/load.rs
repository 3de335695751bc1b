//! Loads weights from files into device memory, in the layout that kernels read.
//!
//! With memory shared between device and host, every core reads and packs chunks of its own
//! ([`host_loader`]). A device with its own memory packs one large chunk while the next is read
//! ([`staged_loader`]). Chunks are small relative to the model, so peak memory is little more than
//! the model's size.

mod host_loader;
mod staged_loader;
mod weight_chunk;

use crate::arch::{Bind, BoundCall, Plan};
use crate::error::{Error, Progress};
use crate::gguf::{self, Gguf, TensorInfo};
use gristmill_compiler::Compiled;
use gristmill_compiler::ir::layout::Layout;
use gristmill_runtime::{Buffer, Memory, memory};
use gristmill_tensor::jit::{Jit, Ready};
use rustc_hash::FxHashMap;
use weight_chunk::{LoadOptions, PendingWeight};

/// Weights on a device by name, with their layouts. Clones share the buffers.
#[derive(Clone, Default)]
pub struct Weights(FxHashMap<String, (Layout, Buffer)>);

impl Weights {
    /// Returns the buffer of a weight.
    pub fn get(&self, name: &str) -> Option<&Buffer> {
        self.0.get(name).map(|w| &w.1)
    }
    /// Returns the layout and the buffer of a weight.
    pub(crate) fn in_layout(&self, name: &str) -> Option<(Layout, &Buffer)> {
        self.0.get(name).map(|w| (w.0, &w.1))
    }
    /// Iterates over the buffers of all weights.
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        self.0.values().map(|w| &w.1)
    }
    /// Adds a weight in a layout.
    pub fn insert(&mut self, name: &str, layout: Layout, buffer: Buffer) {
        self.0.insert(name.to_owned(), (layout, buffer));
    }
    /// Returns the total bytes of all weights.
    pub fn bytes(&self) -> u64 {
        self.buffers().map(|b| b.len() as u64).sum()
    }
    /// Returns true if the weight is present in this layout.
    pub(crate) fn has(&self, name: &str, layout: Layout) -> bool {
        self.0.get(name).is_some_and(|w| w.0 == layout)
    }
}

/// Layout of every weight, as compiled functions require it.
pub type Layouts = FxHashMap<String, Layout>;

/// Returns the weight layouts for these plans and compiles their functions.
pub fn layouts(jit: &mut Jit, plans: &[Plan]) -> Result<Layouts, Error> {
    common_layouts(jit, plans).map_err(|name| refused(&name))
}

fn refused(name: &str) -> Error {
    gristmill_runtime::Error::invalid(
        name.to_string(),
        "is read in two layouts by different functions",
    )
    .into()
}

/// Checks that the loaded weights, or else those of `streamed`, have the layouts that a compiled
/// function reads.
pub fn check_layouts(
    [weights, streamed]: [&Weights; 2],
    call: &BoundCall,
    ready: &Ready,
) -> Result<(), Error> {
    let has = |name: &str, layout| weights.has(name, layout) || streamed.has(name, layout);
    let mut of = call
        .binds
        .iter()
        .enumerate()
        .filter_map(|(slot, bind)| match bind {
            Bind::Weight(name) if !has(name, layout_of(&ready.compiled, slot)) => {
                Some(refused(name))
            }
            _ => None,
        });
    of.try_for_each(Err)
}

/// Returns the layout that a compiled function requires for a slot.
fn layout_of(compiled: &Compiled, slot: usize) -> Layout {
    compiled
        .layouts
        .iter()
        .find(|l| l.0 as usize == slot)
        .map_or(Layout::File, |l| l.1)
}

/// Returns the weight layouts for these plans, or the name of a weight that two functions
/// read in different layouts.
pub fn common_layouts(jit: &mut Jit, plans: &[Plan]) -> Result<Layouts, String> {
    let mut out = Layouts::default();
    for call in plans.iter().flat_map(|p| &p.calls) {
        let planned = jit.plan(std::slice::from_ref(&call.function), &|_, _| ());
        for (slot, bind) in call.binds.iter().enumerate() {
            let Bind::Weight(name) = bind else { continue };
            let layout = layout_of(&planned[0].compiled, slot);
            if *out.entry(name.to_string()).or_insert(layout) != layout {
                return Err(name.clone());
            }
        }
    }
    Ok(out)
}

fn bytes(info: &TensorInfo, layout: Layout) -> usize {
    let dims: Vec<i64> = info.dims.iter().rev().map(|&d| d as i64).collect();
    layout
        .bytes(info.encoding, &dims)
        .unwrap_or(info.bytes as usize)
}

/// Returns the bytes of a weight of the file in a layout; 0 if there is none.
pub fn packed_bytes(file: &Gguf, name: &str, layout: Layout) -> usize {
    file.tensor(name).map_or(0, |info| bytes(info, layout))
}

/// Returns the bytes of the weights in these layouts, without those already loaded.
pub fn missing(file: &Gguf, layouts: &Layouts, there: &Weights) -> u64 {
    let absent = layouts
        .iter()
        .filter(|(name, layout)| !there.has(name, **layout));
    absent
        .filter_map(|(name, layout)| Some(bytes(file.tensor(name)?, *layout) as u64))
        .sum()
}

/// Loads the weights of a file in these layouts.
///
/// `there` holds weights of the same file on the same device: those with the right layout are kept,
/// the others are freed first.
pub fn weights(
    file: &Gguf,
    jit: &mut Jit,
    layouts: &Layouts,
    there: Weights,
    progress: &dyn Fn(Progress),
) -> Result<Weights, Error> {
    weights_as(
        &LoadOptions {
            chunk_bytes: None,
            free: memory::free,
        },
        file,
        jit,
        layouts,
        there,
        progress,
    )
}

fn weights_as(
    how: &LoadOptions,
    file: &Gguf,
    jit: &mut Jit,
    layouts: &Layouts,
    mut there: Weights,
    progress: &dyn Fn(Progress),
) -> Result<Weights, Error> {
    there
        .0
        .retain(|name, weight| layouts.get(name) == Some(&weight.0));
    let device = jit.device().clone();
    let mut wanted: Vec<(&String, &TensorInfo, Layout)> = Vec::new();
    for (name, &layout) in layouts
        .iter()
        .filter(|(name, layout)| !there.has(name, **layout))
    {
        wanted.push((
            name,
            file.tensor(name)
                .ok_or_else(|| gguf::Error::Missing(name.to_string()))?,
            layout,
        ));
    }
    // Devices allocate small weights from larger blocks, which are freed only as a whole. Similar
    // weights are usually freed together, so they are allocated together.
    wanted.sort_by_key(|w| (w.1.type_id, &w.1.dims, w.1.shard, w.1.offset));
    let kind = |info: &TensorInfo, layout| (info.encoding, layout, info.dims[0] as usize);
    let kinds: Vec<_> = wanted
        .iter()
        .filter(|w| w.2 != Layout::File)
        .map(|w| kind(w.1, w.2))
        .collect();
    jit.prepare_packers(&kinds)?;
    let mut all = Vec::new();
    for &(name, info, layout) in &wanted {
        let packed = match layout {
            Layout::File => None,
            _ => Some((jit.packer(kind(info, layout))?, layout.lanes() as u64)),
        };
        let buffer = device.alloc(bytes(info, layout), Memory::Weights)?;
        there.0.insert(name.clone(), (layout, buffer.clone()));
        let alignment = device.target().machine.alignment as u64;
        all.push(PendingWeight {
            info,
            buffer,
            packed,
            alignment,
        });
    }
    // Read in file order.
    all.sort_by_key(|w| (w.info.shard, w.info.offset));
    let total: u64 = all.iter().map(|w| w.info.bytes).sum();
    let mut done = 0;
    progress(Progress::Loading(0, total));
    if device.holds_data() {
        let mut done = |bytes| {
            done += bytes;
            progress(Progress::Loading(done, total));
        };
        match all.iter().all(|w| w.buffer.host().is_some()) {
            true => host_loader::load(how, file, &device, &all, &mut done)?,
            false => staged_loader::load(how, file, &device, &all, &mut done)?,
        }
    }
    progress(Progress::Loading(total, total));
    Ok(there)
}

#[cfg(test)]
mod tests;
