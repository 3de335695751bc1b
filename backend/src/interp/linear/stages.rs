//! Race detector of the linear interpreter for stages, which are buffers in shared memory.
//!
//! For each byte it tracks the writer and readers since the last barrier, and copies in
//! flight. Other threads may access a written byte only after a barrier, and no thread before
//! a copy has arrived.

use super::super::fault::Fault;
use std::ops::Range;

/// Thread number that stands for several threads.
const SEVERAL_THREADS: u32 = 0xffff;

/// A thread and the barrier count of its access; zero means no access.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Mark(u32);

impl Mark {
    fn new(epoch: u32, thread: u32) -> Mark {
        Mark((epoch + 1) << 16 | thread)
    }
    /// Returns whether it is an access of another thread since that barrier.
    fn is_of_another(self, epoch: u32, thread: u32) -> bool {
        self.0 >> 16 == epoch + 1 && self.0 & 0xffff != thread
    }
    /// Adds an access of a thread.
    fn and(self, epoch: u32, thread: u32) -> Mark {
        Mark::new(
            epoch,
            if self.is_of_another(epoch, thread) {
                SEVERAL_THREADS
            } else {
                thread
            },
        )
    }
}

/// Tracked accesses to a stage that threads share.
pub(super) struct SharedStage {
    /// Barriers of the workgroup so far.
    epoch: u32,
    written: Vec<Mark>,
    read: Vec<Mark>,
    /// Nests of the workgroup so far, then the nest that wrote each byte.
    nest: u32,
    nests: Vec<u32>,
    /// Value and copy group of each byte in flight.
    copied: Vec<Option<(u8, i64)>>,
    /// Indices of bytes that may be in flight.
    under_way: Vec<usize>,
}

impl SharedStage {
    pub(super) fn new(bytes: usize) -> SharedStage {
        let marks = vec![Mark::default(); bytes];
        SharedStage {
            epoch: 0,
            written: marks.clone(),
            read: marks,
            nest: 0,
            nests: vec![0; bytes],
            copied: vec![None; bytes],
            under_way: vec![],
        }
    }
    /// Resets the state for another workgroup.
    pub(super) fn forget(&mut self) {
        self.epoch = 0;
        self.written.fill(Mark::default());
        self.read.fill(Mark::default());
        self.nest = 0;
        self.nests.fill(0);
        self.copied.fill(None);
        self.under_way.clear();
    }
    /// Starts a new nest.
    pub(super) fn begin(&mut self) {
        self.nest += 1;
    }
    pub(super) fn barrier(&mut self) {
        self.epoch += 1;
    }
    /// Records a read of bytes, which lie in the stage, by a thread.
    pub(super) fn read(&mut self, bytes: Range<usize>, thread: usize) -> Result<(), Fault> {
        let thread = thread as u32;
        for i in bytes {
            if self.copied[i].is_some() {
                return Err(Fault::Race {
                    what: "a read of bytes still being copied",
                    at: i,
                });
            }
            if self.written[i].is_of_another(self.epoch, thread) {
                return Err(Fault::Race {
                    what: "a read of bytes that another thread wrote since the last barrier",
                    at: i,
                });
            }
            self.read[i] = self.read[i].and(self.epoch, thread);
        }
        Ok(())
    }
    /// Records a write of bytes by a thread, directly or by a copy; `old` are the present bytes.
    ///
    /// Threads of one nest may write equal values to the same element.
    pub(super) fn write(
        &mut self,
        at: usize,
        new: &[u8],
        old: &[u8],
        thread: usize,
    ) -> Result<(), Fault> {
        let thread = thread as u32;
        for (i, (new, old)) in (at..).zip(new.iter().zip(old)) {
            let repeated = self.nests[i] == self.nest;
            if self.copied[i].is_some() && !repeated {
                return Err(Fault::Race {
                    what: "a copy to the destination of another copy in flight",
                    at: i,
                });
            }
            let there = self.copied[i].map_or(*old, |c| c.0);
            if self.read[i].is_of_another(self.epoch, thread) {
                return Err(Fault::Race {
                    what: "a write to bytes that another thread read since the last barrier",
                    at: i,
                });
            }
            if self.written[i].is_of_another(self.epoch, thread) && !(repeated && there == *new) {
                return Err(Fault::Race {
                    what: "a write to bytes that another thread wrote since the last barrier",
                    at: i,
                });
            }
            self.written[i] = self.written[i].and(self.epoch, thread);
            self.nests[i] = self.nest;
        }
        Ok(())
    }
    /// Marks written bytes as in flight in a group of copies.
    pub(super) fn copy(&mut self, at: usize, new: &[u8], group: i64) -> Result<(), Fault> {
        for (i, &byte) in (at..).zip(new) {
            if self.copied[i].is_some_and(|c| c.1 != group) {
                return Err(Fault::Race {
                    what: "a copy to the destination of another copy in flight",
                    at: i,
                });
            }
            self.copied[i] = Some((byte, group));
            self.under_way.push(i);
        }
        Ok(())
    }
    /// Returns whether one of the bytes is in flight.
    pub(super) fn is_copied(&self, bytes: Range<usize>) -> bool {
        self.copied[bytes].iter().any(Option::is_some)
    }
    /// Completes the copies of groups before `before`. Returns their indices and bytes.
    ///
    /// Other threads may read them after the next barrier.
    pub(super) fn arrived(&mut self, before: i64) -> Vec<(usize, u8)> {
        let mut out = Vec::new();
        self.under_way.retain(|&i| match self.copied[i] {
            Some((byte, group)) if group < before => {
                self.copied[i] = None;
                self.written[i] = Mark::new(self.epoch, self.written[i].0 & 0xffff);
                out.push((i, byte));
                false
            }
            left => left.is_some(),
        });
        out
    }
}
