//! Elements in memory, as values.

use super::super::access::View;
use super::super::fault::Fault;
use gristmill_uop::Scalar;
use gristmill_uop::fold::Value;
use half::{bf16, f16};

/// The value of an element's bytes.
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

/// The bytes of an element: the first so many as it has.
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

/// A buffer by its number, for messages, and its memory.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub buffer: usize,
    pub view: View,
}

impl Place {
    fn start(&self, at: i64, size: usize, what: &'static str) -> Result<*mut u8, Fault> {
        let last = self.view.len.checked_sub(size);
        match usize::try_from(at).ok().filter(|&at| last.is_some_and(|last| at <= last)) {
            // SAFETY: these bytes lie in the buffer.
            Some(at) => Ok(unsafe { self.view.start.add(at) }),
            None => Err(Fault::OutOfBounds { what, size, at: at.into(), buffer: self.buffer, len: self.view.len }),
        }
    }
    pub(super) fn load(&self, at: i64, scalar: Scalar) -> Result<Value, Fault> {
        let start = self.start(at, scalar.bytes(), "load")?;
        let mut bytes = [0; 8];
        // SAFETY: as many bytes lie in the buffer.
        unsafe { start.copy_to_nonoverlapping(bytes.as_mut_ptr(), scalar.bytes()) };
        Ok(decoded(scalar, &bytes[..scalar.bytes()]))
    }
    pub(super) fn store(&self, at: i64, scalar: Scalar, v: Value) -> Result<(), Fault> {
        let start = self.start(at, scalar.bytes(), "store")?;
        // SAFETY: as many bytes lie in the buffer.
        unsafe { start.copy_from_nonoverlapping(encoded(scalar, v).as_ptr(), scalar.bytes()) };
        Ok(())
    }
}
