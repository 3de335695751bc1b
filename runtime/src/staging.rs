//! Filling buffers from the host a piece at a time, straight into a device's memory where that is the host's.

use crate::{Buffer, Device, Error};

/// A piece of a buffer, to be filled.
pub trait Piece {
    /// Host memory that stands for it; what is in it means nothing.
    fn bytes(&mut self) -> &mut [u8];
    /// Sends the bytes to where they belong. They are there for every step that is started afterwards, whether or not they are when this
    /// returns.
    fn send(self: Box<Self>) -> Result<(), Error>;
}

/// A piece of a buffer in the host's memory: the buffer itself.
pub fn in_place(to: &Buffer, offset: usize, len: usize) -> Result<Box<dyn Piece>, Error> {
    to.check("staging", offset, len)?;
    let host = to.raw.host().ok_or_else(|| Error::invalid("staging", "the buffer is not in the host's memory"))?;
    // SAFETY: inside the buffer, which lies inside its mapping.
    let start = unsafe { host.add(to.offset + offset) };
    Ok(Box::new(InPlace { start, len, _buffer: to.clone() }))
}

/// A piece of any buffer of that device: memory of its own, then `Device::write`.
pub fn through<'a>(
    device: &'a dyn Device,
    to: &Buffer,
    offset: usize,
    len: usize,
) -> Result<Box<dyn Piece + 'a>, Error> {
    to.check("staging", offset, len)?;
    Ok(Box::new(Through { device, to: to.clone(), offset, bytes: vec![0; len] }))
}

struct InPlace {
    start: *mut u8,
    len: usize,
    _buffer: Buffer,
}

impl Piece for InPlace {
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: memory of a buffer that lives; nobody else uses these bytes until they are sent (`Device::stage`).
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
    fn send(self: Box<Self>) -> Result<(), Error> {
        Ok(())
    }
}

struct Through<'a> {
    device: &'a dyn Device,
    to: Buffer,
    offset: usize,
    bytes: Vec<u8>,
}

impl Piece for Through<'_> {
    fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
    fn send(self: Box<Self>) -> Result<(), Error> {
        self.device.write(&self.to, self.offset, &self.bytes)
    }
}
