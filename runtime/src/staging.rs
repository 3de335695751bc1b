//! Filling buffers from the host a piece at a time, straight into a device's memory where that is the host's.

use crate::lease::{Lease, Use};
use crate::{Buffer, Device, DeviceId, Error};

pub use crate::device::Piece;

/// A piece of a buffer of that device, whose memory is the host's: the buffer itself.
pub fn in_place(device: DeviceId, to: &Buffer, offset: usize, len: usize) -> Result<Box<dyn Piece>, Error> {
    let (lease, start) = to.on_host("staging", device, (offset, len), Use::Write)?;
    Ok(Box::new(InPlace { start, len, _lease: lease }))
}

/// A piece of any buffer of that device: memory of its own, then `Device::write`.
pub fn through<'a>(
    device: &'a dyn Device,
    to: &Buffer,
    offset: usize,
    len: usize,
) -> Result<Box<dyn Piece + 'a>, Error> {
    to.check_device("staging", device.id())?;
    let lease = to.lease("staging", offset, len, Use::Write)?;
    Ok(Box::new(Through { device, to: to.clone(), offset, bytes: vec![0; len], lease }))
}

struct InPlace {
    start: *mut u8,
    len: usize,
    _lease: Lease,
}

impl Piece for InPlace {
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: so many initialised bytes of an allocation that the lease keeps, and that nothing else uses while the lease lives.
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
    lease: Lease,
}

impl Piece for Through<'_> {
    fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
    fn send(self: Box<Self>) -> Result<(), Error> {
        let Through { device, to, offset, bytes, lease } = *self;
        // The write takes its own.
        drop(lease);
        device.write(&to, offset, &bytes)
    }
}
