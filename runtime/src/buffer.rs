//! Ranges of device memory. A [`Buffer`] always lies inside its allocation; any access to its
//! bytes requires a lease.

use crate::Error;
use crate::lease::{DeviceId, Lease, RawBuffer, Use};
use std::any::Any;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A range of a device allocation.
///
/// Cheap to clone; the allocation is freed with its last buffer. Two buffers are equal if they are
/// the same bytes of the same allocation.
#[derive(Clone)]
pub struct Buffer {
    memory: Arc<dyn RawBuffer>,
    offset: usize,
    len: usize,
}

impl Buffer {
    /// Returns the buffer of `len` bytes at `offset` of an allocation.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the range does not lie inside the allocation.
    pub fn new(memory: Arc<dyn RawBuffer>, offset: usize, len: usize) -> Result<Buffer, Error> {
        Buffer::whole(memory).slice(offset, len)
    }
    /// Returns the buffer that covers a whole allocation.
    pub fn whole(memory: Arc<dyn RawBuffer>) -> Buffer {
        let len = memory.len();
        Buffer {
            memory,
            offset: 0,
            len,
        }
    }
    /// Returns the sub-range of `len` bytes at `offset` of this buffer.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the range does not lie inside.
    pub fn slice(&self, offset: usize, len: usize) -> Result<Buffer, Error> {
        self.check("a piece", offset, len)?;
        // This buffer ends inside the allocation, so neither sum overflows.
        Ok(Buffer {
            memory: self.memory.clone(),
            offset: self.offset + offset,
            len,
        })
    }
    /// Checks that `offset + len` lies inside; `what` names the operation in the error.
    pub fn check(&self, what: &str, offset: usize, len: usize) -> Result<(), Error> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(()),
            _ => Err(Error::invalid(
                what,
                format!("{len} bytes at {offset} of a buffer of {}", self.len),
            )),
        }
    }

    /// Length of the buffer, bytes.
    pub fn len(&self) -> usize {
        self.len
    }
    /// Returns whether the length is 0.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// Offset in its allocation, bytes.
    pub fn offset(&self) -> usize {
        self.offset
    }
    /// Byte range within its allocation.
    pub fn range(&self) -> Range<usize> {
        self.offset..self.offset + self.len
    }
    /// Device that owns the memory.
    pub fn device(&self) -> DeviceId {
        self.memory.uses().device()
    }
    /// Downcasts the allocation to `T`; `None` if it has another type.
    pub fn raw<T: RawBuffer>(&self) -> Option<&T> {
        (&*self.memory as &dyn Any).downcast_ref()
    }
    /// Host address of the first byte; `None` for memory that the host cannot address.
    pub fn host(&self) -> Option<*mut u8> {
        // SAFETY: the buffer lies inside its allocation, which starts at this address.
        self.memory
            .host()
            .map(|start| unsafe { start.add(self.offset) })
    }
    pub(crate) fn memory(&self) -> &Arc<dyn RawBuffer> {
        &self.memory
    }
    /// Address of the allocation object, which identifies it.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.memory).cast::<()>().addr()
    }

    /// Leases `len` bytes at `offset` until the lease is dropped.
    ///
    /// # Errors
    /// [`Error::Invalid`], naming `what`, when the range does not lie inside, or another lease or
    /// an in-flight step conflicts.
    pub fn lease(&self, what: &str, offset: usize, len: usize, how: Use) -> Result<Lease, Error> {
        self.check(what, offset, len)?;
        let start = self.offset + offset;
        Lease::take(what, &self.memory, start..start + len, how)
    }

    /// Copies `data` into host memory: `Device::write` of devices that use host memory.
    pub fn copy_in(&self, device: DeviceId, offset: usize, data: &[u8]) -> Result<(), Error> {
        let (_lease, at) = self.on_host("write", device, (offset, data.len()), Use::Write)?;
        // SAFETY: `at` points to `data.len()` bytes of host memory, used by nothing else while the
        // lease lives. `data` does not overlap them, since a borrow of them would need a lease or a
        // view.
        unsafe { at.copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        Ok(())
    }
    /// Copies out of host memory: `Device::read` of devices that use host memory.
    pub fn copy_out(&self, device: DeviceId, offset: usize, data: &mut [u8]) -> Result<(), Error> {
        let (_lease, at) = self.on_host("read", device, (offset, data.len()), Use::Read)?;
        // SAFETY: as in `copy_in`; nothing writes these bytes while the lease lives.
        unsafe { at.copy_to_nonoverlapping(data.as_mut_ptr(), data.len()) };
        Ok(())
    }
    /// Leases `(offset, length)` of host memory that `device` owns; returns the
    /// lease and the address.
    pub(crate) fn on_host(
        &self,
        what: &str,
        device: DeviceId,
        (offset, len): (usize, usize),
        how: Use,
    ) -> Result<(Lease, *mut u8), Error> {
        self.check(what, offset, len)?;
        self.check_device(what, device)?;
        let start = self
            .host()
            .ok_or_else(|| Error::invalid(what, "the buffer is not in the host's memory"))?;
        let lease = self.lease(what, offset, len, how)?;
        // SAFETY: inside the buffer, as checked above.
        Ok((lease, unsafe { start.add(offset) }))
    }
    /// Checks that the buffer belongs to `device`; `what` names the operation in the error.
    pub fn check_device(&self, what: &str, device: DeviceId) -> Result<(), Error> {
        if self.device() == device {
            Ok(())
        } else {
            Err(Error::invalid(what, "the buffer is another device's"))
        }
    }

    /// Returns its bytes for reading in place; host memory only.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the host cannot address the memory, or something
    /// is writing these bytes.
    pub fn view(&self) -> Result<View, Error> {
        let (lease, start) = self.on_host("a view", self.device(), (0, self.len), Use::Read)?;
        Ok(View {
            start,
            len: self.len,
            _lease: lease,
        })
    }
}

/// Read access to a buffer's bytes. Nothing may write them while it lives.
pub struct View {
    start: *const u8,
    len: usize,
    _lease: Lease,
}

impl Deref for View {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialised bytes of an allocation that the lease keeps alive, and that
        // nothing writes while the lease lives.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(
            f,
            "{:?} of {:#x} on {:?}",
            self.range(),
            self.address(),
            self.device()
        )
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
