//! What a file says of a tensor.

use gristmill_uop::encoding::EncodingRef;

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, unique over all shards.
    pub name: String,
    /// One to four sizes, each at least 1, the contiguous one first.
    pub dims: Vec<u64>,
    /// How the data is encoded; rows are whole blocks of it.
    pub encoding: EncodingRef,
    /// The type id in the file.
    pub type_id: i32,
    /// Index of the file that holds the data.
    pub shard: usize,
    /// Offset of the data in that file, in bytes from its start.
    pub offset: u64,
    /// Size of the data in bytes.
    pub bytes: u64,
}

impl TensorInfo {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.dims.iter().product()
    }
}
