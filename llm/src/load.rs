//! Loading: weights from their file into the device's memory, in the layout that kernels read.
//!
//! A piece of the file at a time: all cores read it, then the device packs it. What follows is asked for ahead, so that a disk reads while
//! the cores pack; pieces are small beside the model, so its memory is the model once and a little. A device with memory of its own packs
//! one piece while the next is read.

use crate::arch::{Bind, Plan};
use crate::engine::{Error, Progress};
use crate::gguf::{self, Gguf, TensorInfo};
use gristmill_compiler::layout::Layout;
use gristmill_runtime::{Buffer, Device, Memory, Replay};
use gristmill_tensor::jit::Jit;
use gristmill_uop::encoding::EncodingRef;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Bytes read by one thread at a time: small enough for progress, large enough for the disk.
const READ: u64 = 4 << 20;
/// Bytes packed at a time.
const PIECE: u64 = 32 << 20;

/// A weight on its way.
struct Weight<'a> {
    info: &'a TensorInfo,
    buffer: Buffer,
    /// Format, layout and columns, unless it stays as in the file.
    packed: Option<(EncodingRef, Layout, usize)>,
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
    let mut names: Vec<&String> = layouts.keys().collect();
    names.sort_unstable();
    let mut all = Vec::new();
    let mut kinds = Vec::new();
    for name in names {
        let info = file.tensor(name).ok_or_else(|| gguf::Error::Missing(name.to_string()))?;
        let layout = layouts[name];
        let packed = match layout {
            Layout::File => None,
            layout => Some((info.encoding, layout, info.dims[0] as usize)),
        };
        kinds.extend(packed);
        let dims: Vec<i64> = info.dims.iter().rev().map(|&d| d as i64).collect();
        let bytes = layout.bytes(info.encoding, &dims).unwrap_or(info.bytes as usize);
        all.push((name.clone(), Weight { info, buffer: device.alloc(bytes, Memory::Weights)?, packed }));
    }
    jit.prepare_packers(&kinds)?;
    // In the order of the file.
    all.sort_by_key(|w| w.1.info.offset);
    let total: u64 = all.iter().map(|w| w.1.info.bytes).sum();
    progress(Progress::Loading(0, total));
    if device.holds_data() {
        let mut done = 0;
        let mut staging = Staging::new(&device)?;
        for (_, weight) in &all {
            load(file, jit, &device, weight, &mut staging, &mut |bytes| {
                done += bytes;
                progress(Progress::Loading(done, total));
            })?;
        }
        staging.wait()?;
    }
    progress(Progress::Loading(total, total));
    Ok(all.into_iter().map(|(name, w)| (name, w.buffer)).collect())
}

/// The device's memory for a piece as it is in the file, and what still packs from it.
struct Piece {
    buffer: Buffer,
    packs: Option<Box<dyn Replay>>,
}

impl Piece {
    fn new(device: &Arc<dyn Device>) -> Result<Piece, Error> {
        Ok(Piece { buffer: device.alloc(PIECE as usize, Memory::Scratch)?, packs: None })
    }
    /// Waits until nothing packs from it.
    fn wait(&mut self) -> Result<(), Error> {
        Ok(self.packs.take().map_or(Ok(()), |mut step| step.wait())?)
    }
}

/// Pieces, in turn.
struct Staging {
    pieces: Vec<Piece>,
    turn: usize,
}

impl Staging {
    /// One, where the host's memory is the device's and it packs while the host waits; else two.
    fn new(device: &Arc<dyn Device>) -> Result<Staging, Error> {
        let mut pieces = vec![Piece::new(device)?];
        if pieces[0].buffer.raw.host().is_none() {
            pieces.push(Piece::new(device)?);
        }
        Ok(Staging { pieces, turn: 0 })
    }
    /// The next, of at least that size, free.
    fn next(&mut self, device: &Arc<dyn Device>, bytes: usize) -> Result<&mut Piece, Error> {
        self.turn = (self.turn + 1) % self.pieces.len();
        let piece = &mut self.pieces[self.turn];
        piece.wait()?;
        if piece.buffer.len < bytes {
            piece.buffer = device.alloc(bytes, Memory::Scratch)?;
        }
        Ok(piece)
    }
    /// Waits until everything is packed.
    fn wait(&mut self) -> Result<(), Error> {
        self.pieces.iter_mut().try_for_each(Piece::wait)
    }
}

fn load(
    file: &Gguf,
    jit: &Jit,
    device: &Arc<dyn Device>,
    weight: &Weight,
    staging: &mut Staging,
    done: &mut dyn FnMut(u64),
) -> Result<(), Error> {
    let info = weight.info;
    let Some((e, layout, columns)) = weight.packed else {
        let mut at = 0;
        while at < info.bytes {
            let n = PIECE.min(info.bytes - at);
            read(file, device, info, at, &weight.buffer.slice(at as usize, n as usize))?;
            at += n;
            done(n);
        }
        return Ok(());
    };
    let rows: u64 = info.dims[1..].iter().product();
    let row = info.bytes / rows;
    // Whole groups of rows.
    let group = layout.lanes() as u64;
    let step = (PIECE / row / group).max(1) * group;
    let packed_row = weight.buffer.len as u64 / rows;
    let mut first = 0;
    while first < rows {
        let n = step.min(rows - first);
        let bytes = (n * row) as usize;
        let piece = staging.next(device, bytes)?;
        let from = piece.buffer.slice(0, bytes);
        read(file, device, info, first * row, &from)?;
        let to = weight.buffer.slice((first * packed_row) as usize, (n * packed_row) as usize);
        piece.packs = Some(jit.start_pack((e, layout, columns), &from, &to, n as usize)?);
        first += n;
        done(n * row);
    }
    Ok(())
}

/// Bytes `at..` of a tensor into a buffer, with all cores.
fn read(file: &Gguf, device: &Arc<dyn Device>, info: &TensorInfo, at: u64, to: &Buffer) -> Result<(), Error> {
    let total = to.len as u64;
    let workers = std::thread::available_parallelism().map_or(1, |n| n.get()).min(8).min(total.div_ceil(READ) as usize);
    let next = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let part = || -> Result<(), Error> {
        loop {
            let from = next.fetch_add(READ, Ordering::Relaxed);
            if from >= total || failed.load(Ordering::Relaxed) {
                return Ok(());
            }
            let n = READ.min(total - from) as usize;
            let mut piece = device.stage(to, from as usize, n)?;
            file.read_range(info, at + from, piece.bytes())?;
            piece.send()?;
        }
    };
    std::thread::scope(|scope| {
        let run = || part().inspect_err(|_| failed.store(true, Ordering::Relaxed));
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(run)).collect();
        threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}
