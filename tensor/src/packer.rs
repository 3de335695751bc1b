//! Repacking of weights from one layout into another, on the device.

use gristmill_compiler::Dialect;
use gristmill_compiler::ir::layout::{Layout, Packing};
use gristmill_compiler::prepack::{PackedRows, prepack};
use gristmill_runtime::{Buffer, Device, Error, Kernel, Launch, Replay};
use gristmill_uop::encoding::EncodingRef;
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use std::sync::Arc;

/// Kind of rows that a kernel repacks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PackKey {
    /// Format of the file.
    pub encoding: EncodingRef,
    /// Layout of the rows.
    pub from: Layout,
    /// Layout of the result.
    pub layout: Layout,
    /// Elements of a row.
    pub columns: usize,
    /// Rows to repack, and rows of the buffer that they are a part of; `None` for any number of
    /// rows that are the whole result.
    pub part: Option<[usize; 2]>,
}

impl From<(EncodingRef, Layout, usize)> for PackKey {
    /// Rows in the file's layout, the layout of the result, and the elements of a row.
    fn from((encoding, layout, columns): (EncodingRef, Layout, usize)) -> PackKey {
        PackKey {
            encoding,
            from: Layout::File,
            layout,
            columns,
            part: None,
        }
    }
}

impl PackKey {
    /// Returns whether the rows stay as they are.
    pub fn is_copy(&self) -> bool {
        self.from == self.layout
    }
    /// Rows that are repacked together.
    fn group(&self) -> usize {
        PackedRows::group(self.from, self.layout) as usize
    }
    /// Builds the kernel.
    ///
    /// # Errors
    /// [`Error::Invalid`] when the format has one layout alone.
    pub(crate) fn program(
        &self,
        target: &Target,
        dialect: Option<&dyn Dialect>,
    ) -> Result<Program, Error> {
        let packing = Packing::for_encoding(self.encoding).ok_or_else(|| {
            Error::invalid(self.encoding.name, "has no other layout than its file's")
        })?;
        let rows = PackedRows {
            encoding: self.encoding,
            packing: &packing,
            from: self.from,
            layout: self.layout,
            columns: self.columns,
            part: self.part,
        };
        Ok(prepack(&rows, target, dialect))
    }
}

/// Repacks rows of a weight from one layout into another.
pub struct Packer {
    device: Arc<dyn Device>,
    kernel: Arc<dyn Kernel>,
    key: PackKey,
}

impl Packer {
    pub(crate) fn new(device: Arc<dyn Device>, kernel: Arc<dyn Kernel>, key: PackKey) -> Packer {
        Packer {
            device,
            kernel,
            key,
        }
    }
    /// Packs `rows` rows and waits for the result.
    ///
    /// # Errors
    /// When a buffer is too short, or the device fails.
    pub fn pack(&self, from: &Buffer, packed: &Buffer, rows: usize) -> Result<(), Error> {
        self.start(from, packed, rows)?.wait()
    }
    /// Starts packing and returns a step to wait for; `from` must not change until it ends.
    ///
    /// # Errors
    /// When a buffer is too short, or the device fails.
    pub fn start(
        &self,
        from: &Buffer,
        packed: &Buffer,
        rows: usize,
    ) -> Result<Box<dyn Replay>, Error> {
        let mut step = self.capture(from, packed)?;
        step.start(&self.groups(rows))?;
        Ok(step)
    }
    /// Packs the rows on the calling thread; other threads may do the same concurrently.
    ///
    /// # Errors
    /// When a buffer is too short, or the device fails.
    pub fn pack_alone(&self, from: &Buffer, packed: &Buffer, rows: usize) -> Result<(), Error> {
        self.device
            .capture_alone(self.launch(from, packed))?
            .replay(&self.groups(rows))
    }
    /// Captures a step that packs the rows of `from`; its variables are those of
    /// [`Packer::first`] for a part of `packed`.
    ///
    /// # Errors
    /// When a buffer is too short, or the device fails.
    pub fn capture(&self, from: &Buffer, packed: &Buffer) -> Result<Box<dyn Replay>, Error> {
        self.device.capture(self.launch(from, packed))
    }
    /// Returns the variables of a step for the part that begins at a row of the result.
    pub fn first(&self, row: usize) -> [(&'static str, i64); 1] {
        [("first", (row / self.key.group()) as i64)]
    }
    fn launch(&self, from: &Buffer, packed: &Buffer) -> Vec<Launch> {
        let params = self.kernel.program().params.iter();
        let buffer = |slot: u32| if slot == 0 { from } else { packed }.clone();
        vec![Launch {
            kernel: self.kernel.clone(),
            buffers: params.map(|p| buffer(p.slot)).collect(),
            level: 0,
        }]
    }
    fn groups(&self, rows: usize) -> [(&'static str, i64); 1] {
        [("groups", (rows / self.key.group()) as i64)]
    }
}
