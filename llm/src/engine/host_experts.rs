//! Experts in the host's memory, in the layout that its cores read, and copies of them to the main
//! device, which packs them into its own. Those of another GPU are copied to the host first.

use crate::arch::CachedExperts;
use crate::error::Error;
use crate::gguf::{Gguf, TensorInfo};
use crate::load::{self, Weights};
use crate::placement::{Placement, layer_of};
use gristmill_compiler::ir::layout::Layout;
use gristmill_runtime::{Buffer, Device, Error as DeviceError, KeptBytes, Memory, Replay};
use gristmill_tensor::jit::Jit;
use gristmill_tensor::packer::{PackKey, Packer};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of a piece that is packed at once, at most, if it has several experts.
const PIECE_BYTES: usize = 16 << 20;
/// Pieces that are on their way at a time.
const STAGES: usize = 8;

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the name of the weight that slots hold experts of.
pub(super) fn whole(name: &str) -> &str {
    name.strip_prefix(CachedExperts::PREFIX).unwrap_or(name)
}

/// A step that packs a piece.
type PackStep = Arc<Mutex<Box<dyn Replay>>>;

/// Buffers of the main device for pieces in the host's layout, which take turns.
#[derive(Default)]
struct Stages {
    /// Each with the step that packed the last piece.
    all: Vec<(Buffer, Option<PackStep>)>,
    next: usize,
}

/// A weight of experts in the host's memory.
#[derive(Clone)]
struct HostWeight {
    kept: Arc<dyn KeptBytes>,
    layout: Layout,
}

/// All weights of experts in the host's memory.
pub(super) struct HostExperts<'f> {
    file: &'f Gguf,
    /// All devices with their weights, the main one first.
    on: Vec<(Arc<dyn Device>, Weights)>,
    placement: Placement,
    /// Bytes that were kept, by name.
    kept: FxHashMap<String, HostWeight>,
    stages: Arc<Mutex<Stages>>,
}

/// A weight of experts to copy to a buffer of the main device.
pub(super) struct WantedCopy<'n> {
    /// Name in the file.
    pub name: &'n str,
    /// Layout of the buffer.
    pub layout: Layout,
    pub to: Buffer,
    /// Whether single experts are copied, rather than all.
    pub is_single: bool,
}

impl<'f> HostExperts<'f> {
    pub fn new(
        file: &'f Gguf,
        on: Vec<(Arc<dyn Device>, Weights)>,
        placement: Placement,
    ) -> HostExperts<'f> {
        HostExperts {
            file,
            on,
            placement,
            kept: FxHashMap::default(),
            stages: Arc::default(),
        }
    }
    /// Returns the bytes of the main device for pieces of experts of these names.
    pub fn stage_bytes<'n>(file: &Gguf, names: impl Iterator<Item = &'n String>) -> u64 {
        let expert = |name: &String| {
            let info = file.tensor(whole(name))?;
            Some(info.bytes / info.dims.last()?.max(&1))
        };
        let largest = names.filter_map(expert).max();
        largest.map_or(0, |bytes| STAGES as u64 * bytes.max(PIECE_BYTES as u64))
    }
    /// Returns a weight, kept for copies to `main`.
    fn weight(&mut self, main: &dyn Device, name: &str) -> Result<HostWeight, Error> {
        if let Some(known) = self.kept.get(name) {
            return Ok(known.clone());
        }
        let device = layer_of(name).map_or(0, |(layer, _)| self.placement.layer(layer).experts);
        let on = self.on.get(device);
        let found = on.and_then(|on| Some((&on.0, on.1.in_layout(name)?)));
        let Some((owner, (layout, buffer))) = found else {
            return Err(DeviceError::invalid(name, "is on no other device").into());
        };
        let kept = match buffer.host() {
            Some(_) => main.keep_host(buffer)?,
            None => owner.keep(buffer)?,
        };
        let weight = HostWeight { kept, layout };
        self.kept.insert(name.to_owned(), weight.clone());
        Ok(weight)
    }
    /// Prepares copies of weights, and the kernels that pack them.
    ///
    /// # Errors
    /// When a weight is not in the host's memory, memory is short, or the device fails.
    pub fn copies(
        &mut self,
        jit: &mut Jit,
        wanted: &[WantedCopy],
    ) -> Result<Vec<ExpertCopies>, Error> {
        let main = jit.device().clone();
        let pieces: Vec<Piece> = wanted
            .iter()
            .map(|of| Piece::new(self.file, of, self.weight(&*main, of.name)?))
            .collect::<Result<_, _>>()?;
        let keys: Vec<PackKey> = pieces.iter().map(|piece| piece.key).collect();
        jit.prepare_packers(&keys)?;
        let packed = pieces.iter().filter(|piece| !piece.key.is_copy());
        self.widen_stages(&*main, packed.map(|piece| piece.from).max())?;
        let copies = pieces.into_iter().zip(wanted).map(|(piece, of)| {
            let packs = match piece.key.is_copy() {
                true => None,
                false => Some(Packs::new(jit.packer(piece.key)?, &self.stages, &of.to)?),
            };
            Ok(ExpertCopies {
                device: main.clone(),
                to: of.to.clone(),
                piece,
                packs,
            })
        });
        copies.collect()
    }
    /// Makes stages of `bytes` bytes, if there are none yet that are as large. Copies that were
    /// prepared before keep their own.
    fn widen_stages(&mut self, main: &dyn Device, bytes: Option<usize>) -> Result<(), Error> {
        let has = |stages: &Stages| stages.all.first().map_or(0, |of| of.0.len());
        let Some(bytes) = bytes.filter(|&bytes| bytes > has(&locked(&self.stages))) else {
            return Ok(());
        };
        let stage = |_| Ok::<_, Error>((main.alloc(bytes, Memory::Scratch)?, None));
        let all = (0..STAGES).map(stage).collect::<Result<_, _>>()?;
        self.stages = Arc::new(Mutex::new(Stages { all, next: 0 }));
        Ok(())
    }
}

/// A piece of a weight that is copied at once, and how it is packed.
struct Piece {
    weight: HostWeight,
    key: PackKey,
    /// Bytes of a piece in host memory, and in the buffer.
    from: usize,
    to: usize,
    /// Rows of a piece.
    rows: usize,
}

impl Piece {
    fn new(file: &Gguf, of: &WantedCopy, weight: HostWeight) -> Result<Piece, Error> {
        let no_order = || Error::from(DeviceError::invalid(of.name, "has experts in no order"));
        let info = file.tensor(of.name).ok_or_else(no_order)?;
        let (experts, rows) = (experts(info), rows(info));
        let whole = weight.kept.bytes().len();
        let is_apart = |layout: Layout| (rows / experts).is_multiple_of(layout.lanes() as usize);
        let is_apart = is_apart(weight.layout) && is_apart(of.layout);
        let experts_at_once = match of.is_single {
            _ if !is_apart => experts,
            true => 1,
            false => (1..=experts)
                .rev()
                .find(|n| experts % n == 0 && n * (whole / experts) <= PIECE_BYTES)
                .unwrap_or(1),
        };
        let part = rows / experts * experts_at_once;
        let packed = load::packed_bytes(file, of.name, of.layout) / experts * experts_at_once;
        if of.is_single && !is_apart || packed == 0 || !of.to.len().is_multiple_of(packed) {
            return Err(no_order());
        }
        Ok(Piece {
            from: whole / experts * experts_at_once,
            to: packed,
            rows: part,
            key: PackKey {
                encoding: info.encoding,
                from: weight.layout,
                layout: of.layout,
                columns: info.dims.first().map_or(1, |&n| n as usize),
                part: Some([part, of.to.len() / packed * part]),
            },
            weight,
        })
    }
}

fn experts(info: &TensorInfo) -> usize {
    info.dims.last().map_or(1, |&n| n.max(1) as usize)
}

fn rows(info: &TensorInfo) -> usize {
    info.dims.iter().skip(1).product::<u64>() as usize
}

/// Packs pieces from the stages.
struct Packs {
    packer: Packer,
    stages: Arc<Mutex<Stages>>,
    /// A step for each stage.
    steps: Vec<PackStep>,
}

impl Packs {
    fn new(packer: Packer, stages: &Arc<Mutex<Stages>>, to: &Buffer) -> Result<Packs, Error> {
        let of = locked(stages);
        let step = |stage: &(Buffer, _)| Ok(Arc::new(Mutex::new(packer.capture(&stage.0, to)?)));
        let steps = of.all.iter().map(step).collect::<Result<_, Error>>()?;
        Ok(Packs {
            packer,
            stages: stages.clone(),
            steps,
        })
    }
}

/// Copies of a weight's experts from the host's memory to a buffer of the main device.
pub(super) struct ExpertCopies {
    device: Arc<dyn Device>,
    to: Buffer,
    piece: Piece,
    packs: Option<Packs>,
}

impl ExpertCopies {
    /// Returns the buffer of the main device that experts are copied to.
    pub fn buffer(&self) -> &Buffer {
        &self.to
    }
    /// Returns the bytes of a piece in host memory.
    pub fn piece_bytes(&self) -> usize {
        self.piece.from
    }
    /// Copies all pieces to their places. Steps that are started afterwards see them; steps that
    /// read the buffer must have ended.
    ///
    /// # Errors
    /// When the device fails.
    pub fn copy_all(&self) -> Result<(), DeviceError> {
        let pieces = self.to.len() / self.piece.to;
        (0..pieces).try_for_each(|number| self.copy(number, number))
    }
    /// Copies a piece to the place of piece `at`: see [`ExpertCopies::copy_all`].
    ///
    /// # Errors
    /// When the device fails.
    pub fn copy(&self, number: usize, at: usize) -> Result<(), DeviceError> {
        let Piece { weight, from, .. } = &self.piece;
        let range = number * from..(number + 1) * from;
        let Some(packs) = &self.packs else {
            let to = at * self.piece.to;
            return self.device.restore(&*weight.kept, range, &self.to, to);
        };
        let mut stages = locked(&packs.stages);
        let turn = stages.next;
        stages.next = (turn + 1) % stages.all.len();
        let (buffer, packed) = &mut stages.all[turn];
        if let Some(step) = packed.take() {
            locked(&step).wait()?;
        }
        self.device.restore(&*weight.kept, range, buffer, 0)?;
        let step = packs.steps[turn].clone();
        locked(&step).start(&packs.packer.first(at * self.piece.rows))?;
        *packed = Some(step);
        Ok(())
    }
}
