//! Tensor data that is generated when it is read.

use super::{TensorPlan, fill};
use crate::gguf::{TensorData, TensorDecl};
use std::io;

impl TensorData for TensorPlan {
    fn declaration(&self) -> TensorDecl<'_> {
        TensorDecl {
            name: &self.name,
            dims: &self.dims,
            encoding: self.encoding,
        }
    }
    fn bytes(&self) -> u64 {
        self.bytes
    }
    fn fill(&self, block: u64, out: &mut [u8]) -> io::Result<()> {
        fill(self, block, out).map_err(io::Error::other)
    }
}
