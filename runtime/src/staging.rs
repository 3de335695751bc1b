//! Staged writes: filling buffers from the host range by range, in place where the memory
//! is the host's.

use crate::lease::{Lease, Use};
use crate::{Buffer, Device, DeviceId, Error};

pub use crate::device::StagedWrite;

/// Returns a staged write directly into a buffer in host memory.
pub fn staged_in_place(
    device: DeviceId,
    to: &Buffer,
    offset: usize,
    len: usize,
) -> Result<Box<dyn StagedWrite>, Error> {
    let (lease, start) = to.on_host("staging", device, (offset, len), Use::Write)?;
    Ok(Box::new(InPlace {
        start,
        len,
        _lease: lease,
    }))
}

/// Returns a staged write through a temporary host allocation and `Device::write`;
/// works for any device.
pub fn through<'a>(
    device: &'a dyn Device,
    to: &Buffer,
    offset: usize,
    len: usize,
) -> Result<Box<dyn StagedWrite + 'a>, Error> {
    to.check_device("staging", device.id())?;
    let lease = to.lease("staging", offset, len, Use::Write)?;
    Ok(Box::new(Through {
        device,
        to: to.clone(),
        offset,
        bytes: vec![0; len],
        lease,
    }))
}

struct InPlace {
    start: *mut u8,
    len: usize,
    _lease: Lease,
}

impl StagedWrite for InPlace {
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: `len` initialised bytes of an allocation that the lease keeps alive, and that
        // nothing else uses while the lease lives.
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

impl StagedWrite for Through<'_> {
    fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
    fn send(self: Box<Self>) -> Result<(), Error> {
        let Through {
            device,
            to,
            offset,
            bytes,
            lease,
        } = *self;
        // The write takes a lease of its own.
        drop(lease);
        device.write(&to, offset, &bytes)
    }
}
