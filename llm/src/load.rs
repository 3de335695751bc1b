//! Loading: weights from their file into the device's memory, in the layout that kernels read.
//!
//! Where the device's memory is the host's, every core reads and packs pieces of its own ([`here`]). A device with memory of its own packs one
//! large piece while the next is read ([`apart`]). Pieces are small beside the model, so its memory is the model once and a little.

mod apart;
mod here;

use crate::arch::{Bind, Plan};
use crate::engine::{Error, Progress};
use crate::gguf::{self, Gguf, TensorInfo};
use gristmill_compiler::layout::Layout;
use gristmill_runtime::{Buffer, Memory};
use gristmill_tensor::jit::{Jit, Packer};
use gristmill_uop::encoding::EncodingRef;
use rustc_hash::FxHashMap;
use std::ops::Range;

/// A weight on its way.
struct Weight<'a> {
    info: &'a TensorInfo,
    buffer: Buffer,
    /// What packs it, and how many rows together, unless it stays as in the file.
    packed: Option<(Packer, u64)>,
}

/// Bytes of the file that are packed together, and where they come to lie.
struct Piece {
    file: Range<u64>,
    to: Buffer,
    rows: usize,
}

impl Weight<'_> {
    fn rows(&self) -> u64 {
        self.info.dims[1..].iter().product()
    }
    /// Its pieces of about so many bytes of the file, in order; of whole groups of rows where it is packed.
    fn pieces(&self, about: u64) -> Vec<Range<u64>> {
        let step = match &self.packed {
            None => about.max(1),
            Some((_, group)) => {
                let group = group * (self.info.bytes / self.rows());
                (about / group).max(1) * group
            }
        };
        let bytes = self.info.bytes;
        (0..bytes.div_ceil(step)).map(|i| i * step..bytes.min((i + 1) * step)).collect()
    }
    /// What becomes of one of them.
    fn piece(&self, file: Range<u64>) -> Piece {
        let (len, whole) = (self.buffer.len as u64, self.info.bytes);
        if self.packed.is_none() {
            let to = self.buffer.slice(file.start as usize, (file.end - file.start) as usize);
            return Piece { file, to, rows: 0 };
        }
        let (row, packed) = (whole / self.rows(), len / self.rows());
        let (first, rows) = (file.start / row, (file.end - file.start) / row);
        Piece { file, to: self.buffer.slice((first * packed) as usize, (rows * packed) as usize), rows: rows as usize }
    }
}

/// Layout of every weight, as the functions that it is bound to have it. Without a layout in one of them it is the file's in all.
fn layouts(jit: &mut Jit, plans: &[Plan]) -> Result<FxHashMap<String, Layout>, Error> {
    let mut out: FxHashMap<String, Layout> = FxHashMap::default();
    for call in plans.iter().flat_map(|p| &p.calls) {
        let ready = jit.prepare(std::slice::from_ref(&call.function), &|_, _| ())?;
        for (slot, bind) in call.binds.iter().enumerate() {
            let Bind::Weight(name) = bind else { continue };
            let layouts = &ready[0].compiled.layouts;
            let layout = layouts.iter().find(|l| l.0 as usize == slot).map_or(Layout::File, |l| l.1);
            if *out.entry(name.to_string()).or_insert(layout) != layout {
                let message = "is read in two layouts by different functions";
                return Err(gristmill_runtime::Error::invalid(name.to_string(), message).into());
            }
        }
    }
    Ok(out)
}

/// Loads every weight of the plans, whose functions the jit has compiled.
pub fn weights(
    file: &Gguf,
    jit: &mut Jit,
    plans: &[Plan],
    progress: &dyn Fn(Progress),
) -> Result<FxHashMap<String, Buffer>, Error> {
    let layouts = layouts(jit, plans)?;
    let device = jit.device().clone();
    let mut wanted: Vec<(&String, &TensorInfo, Layout)> = Vec::new();
    for (name, &layout) in &layouts {
        wanted.push((name, file.tensor(name).ok_or_else(|| gguf::Error::Missing(name.to_string()))?, layout));
    }
    // In the order of the files.
    wanted.sort_by_key(|w| (w.1.shard, w.1.offset));
    let kind =
        |info: &TensorInfo, layout| -> (EncodingRef, Layout, usize) { (info.encoding, layout, info.dims[0] as usize) };
    let kinds: Vec<_> = wanted.iter().filter(|w| w.2 != Layout::File).map(|w| kind(w.1, w.2)).collect();
    jit.prepare_packers(&kinds)?;
    let mut all = Vec::new();
    for (_, info, layout) in &wanted {
        let dims: Vec<i64> = info.dims.iter().rev().map(|&d| d as i64).collect();
        let bytes = layout.bytes(info.encoding, &dims).unwrap_or(info.bytes as usize);
        let packed = match layout {
            Layout::File => None,
            _ => Some((jit.packer(kind(info, *layout))?, layout.lanes() as u64)),
        };
        all.push(Weight { info, buffer: device.alloc(bytes, Memory::Weights)?, packed });
    }
    let total: u64 = all.iter().map(|w| w.info.bytes).sum();
    let mut done = 0;
    progress(Progress::Loading(0, total));
    if device.holds_data() {
        let mut done = |bytes| {
            done += bytes;
            progress(Progress::Loading(done, total));
        };
        match all.iter().all(|w| w.buffer.raw.host().is_some()) {
            true => here::load(file, &device, &all, here::PIECE, &mut done)?,
            false => apart::load(file, &device, &all, apart::PIECE, &mut done)?,
        }
    }
    progress(Progress::Loading(total, total));
    Ok(wanted.iter().zip(all).map(|(w, weight)| (w.0.clone(), weight.buffer)).collect())
}
