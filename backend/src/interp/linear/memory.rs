//! Memory of buffers and stages, with element access and asynchronous copies.

use super::super::access::BoundBuffer;
use super::super::fault::Fault;
use super::stages::SharedStage;
use gristmill_uop::fold::Value;
use gristmill_uop::{Id, Scalar};
use half::{bf16, f16};
use std::collections::HashMap;

/// Decodes an element from its bytes.
pub(super) fn decoded(scalar: Scalar, b: &[u8]) -> Value {
    let mut word = [0; 8];
    word[..b.len()].copy_from_slice(b);
    let bits = u64::from_le_bytes(word);
    match scalar {
        Scalar::F64 => Value::Float(f64::from_bits(bits)),
        Scalar::F32 => Value::Float(f32::from_bits(bits as u32).into()),
        Scalar::F16 => Value::Float(f16::from_bits(bits as u16).into()),
        Scalar::BF16 => Value::Float(bf16::from_bits(bits as u16).into()),
        s => Value::Int(bits as i64).stored_as(s),
    }
}

/// Encodes an element; only the first `scalar.bytes()` bytes are used.
pub(super) fn encoded(scalar: Scalar, v: Value) -> [u8; 8] {
    let bits = match scalar {
        Scalar::F64 => v.float().to_bits(),
        Scalar::F32 => u64::from((v.float() as f32).to_bits()),
        // The value has been rounded to the type already.
        Scalar::F16 => u64::from(f16::from_f64(v.float()).to_bits()),
        Scalar::BF16 => u64::from(bf16::from_f64(v.float()).to_bits()),
        _ => v.int() as u64,
    };
    bits.to_le_bytes()
}

/// Kinds of access, for messages.
const LOAD: &str = "load";
const STORE: &str = "store";

/// Memory of a buffer with its index for messages.
///
/// A stage that threads share also tracks their accesses.
struct LinearBuffer {
    buffer: usize,
    view: BoundBuffer,
    stage: Option<SharedStage>,
}

impl LinearBuffer {
    /// Returns the offset of an access after checking that it lies in the buffer.
    fn at(&self, at: i64, size: usize, what: &'static str) -> Result<usize, Fault> {
        let last = self.view.len.checked_sub(size);
        match usize::try_from(at)
            .ok()
            .filter(|&at| last.is_some_and(|last| at <= last))
        {
            Some(at) => Ok(at),
            None => Err(Fault::OutOfBounds {
                what,
                size,
                at: at.into(),
                buffer: self.buffer,
                len: self.view.len,
            }),
        }
    }
    fn read(&mut self, at: i64, to: &mut [u8], thread: usize) -> Result<(), Fault> {
        let at = self.at(at, to.len(), LOAD)?;
        if let Some(stage) = &mut self.stage {
            stage.read(at..at + to.len(), thread)?;
        }
        self.peek(at as i64, to)
    }
    /// Reads bytes without recording the access.
    fn peek(&self, at: i64, to: &mut [u8]) -> Result<(), Fault> {
        let at = self.at(at, to.len(), LOAD)?;
        // SAFETY: as many bytes lie in the buffer.
        unsafe {
            self.view
                .start
                .add(at)
                .copy_to_nonoverlapping(to.as_mut_ptr(), to.len())
        };
        Ok(())
    }
    fn write(&mut self, at: i64, new: &[u8], thread: usize) -> Result<(), Fault> {
        let at = self.at(at, new.len(), STORE)?;
        if let Some(stage) = &mut self.stage {
            let range = at..at + new.len();
            if stage.is_copied(range) {
                return Err(Fault::Race {
                    what: "a write to bytes still being copied",
                    at,
                });
            }
            // SAFETY: as many bytes lie in the buffer, and no other reference to them exists now.
            let old = unsafe { std::slice::from_raw_parts(self.view.start.add(at), new.len()) };
            stage.write(at, new, old, thread)?;
        }
        // SAFETY: as many bytes lie in the buffer.
        unsafe {
            self.view
                .start
                .add(at)
                .copy_from_nonoverlapping(new.as_ptr(), new.len())
        };
        Ok(())
    }
    /// Records bytes of an asynchronous copy, which arrive later.
    fn copy(&mut self, at: i64, new: &[u8], thread: usize, group: i64) -> Result<(), Fault> {
        let at = self.at(at, new.len(), STORE)?;
        let stage = self
            .stage
            .as_mut()
            .ok_or_else(|| Fault::Graph("a copy to a buffer that is not a stage".into()))?;
        // SAFETY: as many bytes lie in the buffer, and no other reference to them exists now.
        let old = unsafe { std::slice::from_raw_parts(self.view.start.add(at), new.len()) };
        stage.write(at, new, old, thread)?;
        stage.copy(at, new, group)
    }
}

/// Buffers and stages of a body.
#[derive(Default)]
pub(super) struct LinearMemory {
    buffers: HashMap<Id, LinearBuffer>,
    /// Memory of the stages.
    stages: Vec<Vec<u64>>,
    /// Number of groups of copies so far, equal in all threads.
    groups: i64,
}

impl LinearMemory {
    /// Binds a buffer of the launch.
    pub(super) fn bind(&mut self, id: Id, buffer: usize, view: BoundBuffer) {
        self.buffers.insert(
            id,
            LinearBuffer {
                buffer,
                view,
                stage: None,
            },
        );
    }
    /// Allocates a stage of `len` bytes, filled with NaN in all float types.
    ///
    /// `shared` enables the tracking of accesses by threads.
    pub(super) fn stage(&mut self, id: Id, buffer: usize, len: usize, shared: bool) {
        let mut memory = vec![u64::MAX; len.div_ceil(8)];
        let view = BoundBuffer {
            start: memory.as_mut_ptr().cast(),
            len,
        };
        self.buffers.insert(
            id,
            LinearBuffer {
                buffer,
                view,
                stage: shared.then(|| SharedStage::new(len)),
            },
        );
        self.stages.push(memory);
    }
    fn buffer(&mut self, id: Id) -> Result<&mut LinearBuffer, Fault> {
        self.buffers
            .get_mut(&id)
            .ok_or_else(|| Fault::Launch(format!("%{} is no buffer of the launch", id.0)))
    }
    /// Loads an element in a thread.
    pub(super) fn load(&mut self, at: At, scalar: Scalar, thread: usize) -> Result<Value, Fault> {
        let mut bytes = [0; 8];
        self.buffer(at.buffer)?
            .read(at.byte, &mut bytes[..scalar.bytes()], thread)?;
        Ok(decoded(scalar, &bytes[..scalar.bytes()]))
    }
    /// Stores an element in a thread.
    pub(super) fn store(
        &mut self,
        at: At,
        scalar: Scalar,
        v: Value,
        thread: usize,
    ) -> Result<(), Fault> {
        self.buffer(at.buffer)?
            .write(at.byte, &encoded(scalar, v)[..scalar.bytes()], thread)
    }
    /// Reads an element for an update in a thread, without recording the access.
    pub(super) fn word(&mut self, at: At, scalar: Scalar) -> Result<Value, Fault> {
        let (buffer, mut bytes) = (self.buffer(at.buffer)?, [0; 8]);
        buffer.peek(at.byte, &mut bytes[..1])?;
        for (byte, to) in (at.byte..).zip(&mut bytes[..scalar.bytes()]).skip(1) {
            // The last word may reach beyond the buffer; the bytes there stay unchanged.
            buffer
                .peek(byte, std::slice::from_mut(to))
                .unwrap_or_default();
        }
        Ok(decoded(scalar, &bytes[..scalar.bytes()]))
    }
    /// Writes the bytes that an update changes.
    pub(super) fn update(
        &mut self,
        at: At,
        scalar: Scalar,
        v: [Value; 2],
        thread: usize,
    ) -> Result<(), Fault> {
        let [old, new] = v.map(|v| encoded(scalar, v));
        let buffer = self.buffer(at.buffer)?;
        let mut changed = (0..scalar.bytes()).filter(|&i| old[i] != new[i]);
        changed.try_for_each(|i| buffer.write(at.byte + i as i64, &new[i..=i], thread))
    }
    /// Starts an asynchronous copy of bytes to a stage.
    pub(super) fn copy(
        &mut self,
        to: At,
        from: At,
        bytes: usize,
        thread: usize,
    ) -> Result<(), Fault> {
        let mut data = vec![0; bytes];
        self.buffer(from.buffer)?
            .read(from.byte, &mut data, thread)?;
        let group = self.groups;
        self.buffer(to.buffer)?.copy(to.byte, &data, thread, group)
    }
    /// Closes the current group of copies.
    pub(super) fn group(&mut self) {
        self.groups += 1;
    }
    /// Completes all copies except those of the last `but` groups.
    pub(super) fn arrived(&mut self, but: i64) {
        let before = if but == 0 {
            i64::MAX
        } else {
            self.groups - but
        };
        for buffer in self.buffers.values_mut() {
            for (at, byte) in buffer
                .stage
                .as_mut()
                .map(|s| s.arrived(before))
                .unwrap_or_default()
            {
                // SAFETY: the byte lies in the stage.
                unsafe { buffer.view.start.add(at).write(byte) };
            }
        }
    }
    /// Starts a new nest in all shared stages.
    pub(super) fn begin(&mut self) {
        self.buffers
            .values_mut()
            .filter_map(|p| p.stage.as_mut())
            .for_each(SharedStage::begin);
    }
    /// Records a barrier in all shared stages.
    pub(super) fn barrier(&mut self) {
        self.buffers
            .values_mut()
            .filter_map(|p| p.stage.as_mut())
            .for_each(SharedStage::barrier);
    }
    /// Checks that bytes lie in the buffer.
    pub(super) fn has(&mut self, at: At, bytes: usize) -> Result<(), Fault> {
        self.buffer(at.buffer)?
            .at(at.byte, bytes, "prefetch")
            .map(drop)
    }
    /// Resets shared stages for the next workgroup, to NaN in all float types.
    pub(super) fn forget(&mut self) {
        for buffer in self.buffers.values_mut() {
            if let Some(stage) = &mut buffer.stage {
                stage.forget();
                // SAFETY: a stage's view is of memory owned here, of that length.
                unsafe { buffer.view.start.write_bytes(0xff, buffer.view.len) };
            }
        }
    }
}

/// Address of a byte in a buffer.
#[derive(Clone, Copy)]
pub(super) struct At {
    pub buffer: Id,
    pub byte: i64,
}
