//! Loading: weights from their file into the device's memory, in the layout that kernels read.
//!
//! Where the device's memory is the host's, every core reads and packs pieces of its own ([`here`]). A device with memory of its own packs one
//! large piece while the next is read ([`apart`]). Pieces are small beside the model, so its memory is the model once and a little.

mod apart;
mod here;
mod piece;

use crate::arch::{Bind, Call, Plan};
use crate::error::{Error, Progress};
use crate::gguf::{self, Gguf, TensorInfo};
use gristmill_compiler::ir::layout::Layout;
use gristmill_runtime::{Buffer, Memory, memory};
use gristmill_tensor::jit::{Jit, Ready};
use piece::{How, Weight};
use rustc_hash::FxHashMap;

/// Weights on a device, by name, and how they lie there. A clone shares them; their memory goes with the last that has them.
#[derive(Clone, Default)]
pub struct Weights(FxHashMap<String, (Layout, Buffer)>);

impl Weights {
    /// That of this name.
    pub fn get(&self, name: &str) -> Option<&Buffer> {
        self.0.get(name).map(|w| &w.1)
    }
    /// All of them.
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        self.0.values().map(|w| &w.1)
    }
    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.buffers().map(|b| b.len() as u64).sum()
    }
    /// Is it there, in that layout?
    fn has(&self, name: &str, layout: Layout) -> bool {
        self.0.get(name).is_some_and(|w| w.0 == layout)
    }
}

/// Layout of every weight, as the functions that it is bound to have it. Without a layout in one of them it is the file's in all.
pub type Layouts = FxHashMap<String, Layout>;

/// The layouts for these plans, whose functions the jit has compiled.
pub fn layouts(jit: &mut Jit, plans: &[Plan]) -> Result<Layouts, Error> {
    common_layouts(jit, plans)?.map_err(|name| refused(&name))
}

fn refused(name: &str) -> Error {
    gristmill_runtime::Error::invalid(name.to_string(), "is read in two layouts by different functions").into()
}

/// Steps whose functions are compiled once weights are loaded read them as they lie.
pub fn check_layouts(weights: &Weights, call: &Call, ready: &Ready) -> Result<(), Error> {
    let mut of = call.binds.iter().enumerate().filter_map(|(slot, bind)| match bind {
        Bind::Weight(name) if !weights.has(name, layout_of(ready, slot)) => Some(refused(name)),
        _ => None,
    });
    of.try_for_each(Err)
}

/// How a compiled function reads what is bound to that slot.
fn layout_of(ready: &Ready, slot: usize) -> Layout {
    ready.compiled.layouts.iter().find(|l| l.0 as usize == slot).map_or(Layout::File, |l| l.1)
}

/// The same, or the name of a weight that functions have in two layouts.
pub fn common_layouts(jit: &mut Jit, plans: &[Plan]) -> Result<Result<Layouts, String>, Error> {
    let mut out = Layouts::default();
    for call in plans.iter().flat_map(|p| &p.calls) {
        let ready = jit.prepare(std::slice::from_ref(&call.function), &|_, _| ())?;
        for (slot, bind) in call.binds.iter().enumerate() {
            let Bind::Weight(name) = bind else { continue };
            let layout = layout_of(&ready[0], slot);
            if *out.entry(name.to_string()).or_insert(layout) != layout {
                return Ok(Err(name.clone()));
            }
        }
    }
    Ok(Ok(out))
}

fn bytes(info: &TensorInfo, layout: Layout) -> usize {
    let dims: Vec<i64> = info.dims.iter().rev().map(|&d| d as i64).collect();
    layout.bytes(info.encoding, &dims).unwrap_or(info.bytes as usize)
}

/// Bytes that the weights of a file take in these layouts, without those that are there.
pub fn missing(file: &Gguf, layouts: &Layouts, there: &Weights) -> u64 {
    let absent = layouts.iter().filter(|(name, layout)| !there.has(name, **layout));
    absent.filter_map(|(name, layout)| Some(bytes(file.tensor(name)?, *layout) as u64)).sum()
}

/// Loads the weights of a file in these layouts. Those that are `there`, from the same file on the same device, are taken over where they lie
/// the same; the others go first.
pub fn weights(
    file: &Gguf,
    jit: &mut Jit,
    layouts: &Layouts,
    there: Weights,
    progress: &dyn Fn(Progress),
) -> Result<Weights, Error> {
    weights_as(&How { piece: None, free: memory::free }, file, jit, layouts, there, progress)
}

fn weights_as(
    how: &How,
    file: &Gguf,
    jit: &mut Jit,
    layouts: &Layouts,
    mut there: Weights,
    progress: &dyn Fn(Progress),
) -> Result<Weights, Error> {
    there.0.retain(|name, weight| layouts.get(name) == Some(&weight.0));
    let device = jit.device().clone();
    let mut wanted: Vec<(&String, &TensorInfo, Layout)> = Vec::new();
    for (name, &layout) in layouts.iter().filter(|(name, layout)| !there.has(name, **layout)) {
        wanted.push((name, file.tensor(name).ok_or_else(|| gguf::Error::Missing(name.to_string()))?, layout));
    }
    // Devices carve small weights from larger pieces, which go with the last in them: what will go together is what is alike.
    wanted.sort_by_key(|w| (w.1.type_id, &w.1.dims, w.1.shard, w.1.offset));
    let kind = |info: &TensorInfo, layout| (info.encoding, layout, info.dims[0] as usize);
    let kinds: Vec<_> = wanted.iter().filter(|w| w.2 != Layout::File).map(|w| kind(w.1, w.2)).collect();
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
        all.push(Weight { info, buffer, packed, alignment });
    }
    // In the order of the files.
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
            true => here::load(how, file, &device, &all, &mut done)?,
            false => apart::load(how, file, &device, &all, &mut done)?,
        }
    }
    progress(Progress::Loading(total, total));
    Ok(there)
}

#[cfg(test)]
mod tests;
