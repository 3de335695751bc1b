//! What threads know of a stage: who has written and read each of its bytes since the last barrier, and which are still on their way. What one thread
//! writes another may read, or write, only behind a barrier, and nobody before a copy has arrived.

use super::super::fault::Fault;
use std::ops::Range;

/// In place of a thread's number: several.
const SEVERAL_THREADS: u32 = 0xffff;

/// A thread and the barrier that it came after; none where nobody has been there.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Mark(u32);

impl Mark {
    fn new(epoch: u32, thread: u32) -> Mark {
        Mark((epoch + 1) << 16 | thread)
    }
    /// Is it another thread's, since that barrier?
    fn is_of_another(self, epoch: u32, thread: u32) -> bool {
        self.0 >> 16 == epoch + 1 && self.0 & 0xffff != thread
    }
    /// With a thread more.
    fn and(self, epoch: u32, thread: u32) -> Mark {
        Mark::new(epoch, if self.is_of_another(epoch, thread) { SEVERAL_THREADS } else { thread })
    }
}

/// A stage that threads share.
pub(super) struct SharedStage {
    /// Barriers of the workgroup so far.
    epoch: u32,
    written: Vec<Mark>,
    read: Vec<Mark>,
    /// Nests of the workgroup so far, and of each byte the one that has written it.
    nest: u32,
    nests: Vec<u32>,
    /// Bytes on their way, and of which group of copies they are.
    copied: Vec<Option<(u8, i64)>>,
    /// Where some may be.
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
    /// Nothing is known of another workgroup's.
    pub(super) fn forget(&mut self) {
        self.epoch = 0;
        self.written.fill(Mark::default());
        self.read.fill(Mark::default());
        self.nest = 0;
        self.nests.fill(0);
        self.copied.fill(None);
        self.under_way.clear();
    }
    /// Another nest begins.
    pub(super) fn begin(&mut self) {
        self.nest += 1;
    }
    pub(super) fn barrier(&mut self) {
        self.epoch += 1;
    }
    /// A thread reads these bytes, which lie in the stage.
    pub(super) fn read(&mut self, bytes: Range<usize>, thread: usize) -> Result<(), Fault> {
        let thread = thread as u32;
        for i in bytes {
            if self.copied[i].is_some() {
                return Err(Fault::Race { what: "a read of what is still being copied", at: i });
            }
            if self.written[i].is_of_another(self.epoch, thread) {
                return Err(Fault::Race {
                    what: "a read of what another thread has written since the last barrier",
                    at: i,
                });
            }
            self.read[i] = self.read[i].and(self.epoch, thread);
        }
        Ok(())
    }
    /// A thread writes these bytes, now or by a copy; `old` are there. That threads of one nest repeat an element is no race.
    pub(super) fn write(&mut self, at: usize, new: &[u8], old: &[u8], thread: usize) -> Result<(), Fault> {
        let thread = thread as u32;
        for (i, (new, old)) in (at..).zip(new.iter().zip(old)) {
            let repeated = self.nests[i] == self.nest;
            if self.copied[i].is_some() && !repeated {
                return Err(Fault::Race { what: "a copy to where another is still under way", at: i });
            }
            let there = self.copied[i].map_or(*old, |c| c.0);
            if self.read[i].is_of_another(self.epoch, thread) {
                return Err(Fault::Race {
                    what: "a write to what another thread has read since the last barrier",
                    at: i,
                });
            }
            if self.written[i].is_of_another(self.epoch, thread) && !(repeated && there == *new) {
                return Err(Fault::Race {
                    what: "a write to what another thread has written since the last barrier",
                    at: i,
                });
            }
            self.written[i] = self.written[i].and(self.epoch, thread);
            self.nests[i] = self.nest;
        }
        Ok(())
    }
    /// These bytes are on their way, after a write of them.
    pub(super) fn copy(&mut self, at: usize, new: &[u8], group: i64) -> Result<(), Fault> {
        for (i, &byte) in (at..).zip(new) {
            if self.copied[i].is_some_and(|c| c.1 != group) {
                return Err(Fault::Race { what: "a copy to where another is still under way", at: i });
            }
            self.copied[i] = Some((byte, group));
            self.under_way.push(i);
        }
        Ok(())
    }
    /// Is one of these bytes on its way?
    pub(super) fn is_copied(&self, bytes: Range<usize>) -> bool {
        self.copied[bytes].iter().any(Option::is_some)
    }
    /// Every thread's copies of the groups before that one have arrived: places and bytes. Other threads see them behind the next barrier.
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
