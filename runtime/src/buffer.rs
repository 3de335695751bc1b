//! Pieces of a device's memory. A [`Buffer`] always lies inside its allocation; whoever touches its bytes has a lease of them.

use crate::Error;
use crate::lease::{DeviceId, Lease, RawBuffer, Use};
use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A piece of a device's memory. Cheap to clone; the memory is freed with its last piece. Two are equal if they are the same bytes.
#[derive(Clone)]
pub struct Buffer {
    memory: Arc<dyn RawBuffer>,
    offset: usize,
    len: usize,
}

impl Buffer {
    /// `len` bytes at `offset` of an allocation.
    ///
    /// # Errors
    /// [`Error::Invalid`] when they do not lie inside it.
    pub fn new(memory: Arc<dyn RawBuffer>, offset: usize, len: usize) -> Result<Buffer, Error> {
        Buffer::whole(memory).slice(offset, len)
    }
    /// All of an allocation.
    pub fn whole(memory: Arc<dyn RawBuffer>) -> Buffer {
        let len = memory.len();
        Buffer { memory, offset: 0, len }
    }
    /// A piece of this piece.
    ///
    /// # Errors
    /// [`Error::Invalid`] when it does not lie inside.
    pub fn slice(&self, offset: usize, len: usize) -> Result<Buffer, Error> {
        self.check("a piece", offset, len)?;
        // This piece ends inside the allocation, so neither sum overflows.
        Ok(Buffer { memory: self.memory.clone(), offset: self.offset + offset, len })
    }
    /// Is `offset + len` inside? As an error, for devices' copies and launches.
    pub fn check(&self, what: &str, offset: usize, len: usize) -> Result<(), Error> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Error::invalid(what, format!("{len} bytes at {offset} of a buffer of {}", self.len))),
        }
    }

    /// Its length, bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Has it no bytes?
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Where it begins in its allocation, bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }
    /// Its bytes within its allocation.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len
    }
    /// Whose memory it is.
    pub fn device(&self) -> DeviceId {
        self.memory.uses().device()
    }
    /// The allocation, if a device made it whose allocations have that type.
    pub fn raw<T: RawBuffer>(&self) -> Option<&T> {
        (&*self.memory as &dyn Any).downcast_ref()
    }
    /// Address of its first byte, where the memory is the host's.
    pub fn host(&self) -> Option<*mut u8> {
        // SAFETY: the piece lies inside its allocation, whose address this is.
        self.memory.host().map(|start| unsafe { start.add(self.offset) })
    }
    pub(crate) fn memory(&self) -> &Arc<dyn RawBuffer> {
        &self.memory
    }
    /// Which allocation, as a number.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.memory).cast::<()>().addr()
    }

    /// The right to use `len` bytes at `offset`, until it is dropped.
    ///
    /// # Errors
    /// [`Error::Invalid`], naming `what`, when they do not lie inside, or another lease or a step in flight conflicts.
    pub fn lease(&self, what: &str, offset: usize, len: usize, how: Use) -> Result<Lease, Error> {
        self.check(what, offset, len)?;
        let start = self.offset + offset;
        Lease::take(what, &self.memory, start..start + len, how)
    }

    /// Copies to it, where its memory is the host's: `Device::write` of such devices.
    pub fn copy_in(&self, device: DeviceId, offset: usize, data: &[u8]) -> Result<(), Error> {
        let (_lease, at) = self.on_host("write", device, (offset, data.len()), Use::Write)?;
        // SAFETY: so many bytes of the host's memory, which nobody else uses while the lease lives. `data` is none of them: it would be borrowed from
        // a lease or a view.
        unsafe { at.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        Ok(())
    }
    /// Copies from it, where its memory is the host's: `Device::read` of such devices.
    pub fn copy_out(&self, device: DeviceId, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        let (_lease, at) = self.on_host("read", device, (offset, data.len()), Use::Read)?;
        // SAFETY: as in `copy_in`; nobody writes these bytes while the lease lives.
        unsafe { at.copy_to_nonoverlapping(data.as_mut_ptr(), data.len()) };
        Ok(())
    }
    /// A lease of `(offset, length)` of a device's memory on the host, and the address.
    pub(crate) fn on_host(
        &self,
        what: &str,
        device: DeviceId,
        (offset, len): (usize, usize),
        how: Use,
    ) -> Result<(Lease, *mut u8), Error> {
        self.check(what, offset, len)?;
        self.check_device(what, device)?;
        let start = self.host().ok_or_else(|| Error::invalid(what, "the buffer is not in the host's memory"))?;
        let lease = self.lease(what, offset, len, how)?;
        // SAFETY: inside the piece, as was just checked.
        Ok((lease, unsafe { start.add(offset) }))
    }
    /// Is it that device's? As an error.
    pub fn check_device(&self, what: &str, device: DeviceId) -> Result<(), Error> {
        if self.device() == device { Ok(()) } else { Err(Error::invalid(what, "the buffer is another device's")) }
    }

    /// Its bytes, where its memory is the host's, for reading in place.
    ///
    /// # Errors
    /// [`Error::Invalid`] when its memory is a device's own, or something writes these bytes now.
    pub fn view(&self) -> Result<View, Error> {
        let (lease, start) = self.on_host("a view", self.device(), (0, self.len), Use::Read)?;
        Ok(View { start, len: self.len, _lease: lease })
    }
}

/// A buffer's bytes. Nothing may write them while it lives.
pub struct View {
    start: *const u8,
    len: usize,
    _lease: Lease,
}

impl Deref for View {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: so many initialised bytes of an allocation that the lease keeps, and that nothing writes while the lease lives.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{:?} of {:#x} on {:?}", self.range(), self.address(), self.device())
    }
}

impl PartialEq for Buffer {
    fn eq(&self, other: &Buffer) -> bool {
        (self.address(), self.offset, self.len) == (other.address(), other.offset, other.len)
    }
}
impl Eq for Buffer {}
impl Hash for Buffer {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.address(), self.offset, self.len).hash(state);
    }
}
