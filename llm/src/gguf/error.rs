//! What can be wrong with a GGUF file, and what to do about it.

use std::path::PathBuf;

/// Why a GGUF file was refused, could not be read, or could not be written.
///
/// A file is untrusted input: every variant is an answer to a malformed or unreadable file, and none is a panic.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error in one named file (of several, for split models).
    #[error("{}: {error}", path.display())]
    InFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        error: Box<Error>,
    },
    /// The operating system refused a read, a write or an open.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// A directory, pipe or device instead of a file.
    #[error("not a regular file")]
    NotAFile,
    /// Memory for a part of the header could not be had.
    #[error("no memory for {bytes} bytes of {what}")]
    OutOfMemory {
        /// What was to be stored.
        what: &'static str,
        /// Its size in bytes.
        bytes: u64,
    },
    /// The file does not start with `GGUF`.
    #[error("not a GGUF file: it starts with bytes {0:02x?}")]
    BadMagic([u8; 4]),
    /// The file was written for a machine of the other byte order.
    #[error("a big-endian GGUF file (version field {0:#010x})")]
    OtherEndian(u32),
    /// A version other than 2 and 3.
    #[error("GGUF version {0} is not supported")]
    Version(u32),
    /// A negative count, or one that the rest of the file cannot hold.
    #[error("the header declares {count} {what}, but the file has room for at most {limit}")]
    Count {
        /// What is counted.
        what: &'static str,
        /// The declared count.
        count: i64,
        /// The largest count that could be true.
        limit: u64,
    },
    /// The file ends inside its header.
    #[error("the file ends inside {what}: {need} bytes needed at offset {offset}, {remaining} left")]
    Truncated {
        /// What was being read.
        what: &'static str,
        /// Byte offset of it.
        offset: u64,
        /// Bytes it takes.
        need: u64,
        /// Bytes left in the file.
        remaining: u64,
    },
    /// A string over the limit for its kind.
    #[error("{what} of {len} bytes at offset {offset} (limit {limit})")]
    TooLong {
        /// What kind of string.
        what: &'static str,
        /// Byte offset of its length field.
        offset: u64,
        /// Its declared length in bytes.
        len: u64,
        /// The longest accepted.
        limit: u64,
    },
    /// A key, tensor name or required text that is not UTF-8.
    #[error("{what} is not UTF-8: {text}")]
    NotUtf8 {
        /// What kind of string.
        what: &'static str,
        /// A lossy rendering of it.
        text: String,
    },
    /// A metadata key or a tensor name of zero length.
    #[error("{what} is empty")]
    Empty {
        /// What kind of string.
        what: &'static str,
    },
    /// The same metadata key twice.
    #[error("metadata key {0} appears twice")]
    DuplicateKey(String),
    /// A value type id outside the table.
    #[error("metadata key {key}: {id} is not a value type")]
    ValueType {
        /// The key.
        key: String,
        /// The id found.
        id: i32,
    },
    /// An array whose elements are arrays.
    #[error("metadata key {key}: an array of arrays")]
    NestedArray {
        /// The key.
        key: String,
    },
    /// An array longer than the rest of the file, or than any real one.
    #[error("metadata key {key}: an array of {count} elements cannot be in this file (at most {limit})")]
    ArrayLength {
        /// The key.
        key: String,
        /// The declared length.
        count: u64,
        /// The largest length that could be true.
        limit: u64,
    },
    /// `general.alignment` is not a `u32` power of two.
    #[error("general.alignment must be a u32 power of two, found {0}")]
    Alignment(String),
    /// The same tensor name twice, in one file or across shards.
    #[error("tensor {0} appears twice")]
    DuplicateTensor(String),
    /// Fewer than one or more than four dimensions.
    #[error("tensor {tensor} has {rank} dimensions (1 to 4 are possible)")]
    Rank {
        /// The tensor.
        tensor: String,
        /// Dimensions declared.
        rank: u32,
    },
    /// A dimension below one.
    #[error("tensor {tensor}: dimension {axis} is {size}")]
    Dimension {
        /// The tensor.
        tensor: String,
        /// Index of the dimension, 0 the contiguous one.
        axis: usize,
        /// Its declared size.
        size: i64,
    },
    /// The number of elements or bytes does not fit 63 bits.
    #[error("tensor {tensor} is too large: the number of {what} overflows")]
    Overflow {
        /// The tensor.
        tensor: String,
        /// `elements` or `bytes`.
        what: &'static str,
    },
    /// A tensor type id that no file may contain: negative, removed or unknown.
    #[error("tensor {tensor}: {id} is not a tensor type")]
    TypeId {
        /// The tensor.
        tensor: String,
        /// The id found.
        id: i32,
    },
    /// A tensor type that exists but has no description here.
    #[error("tensor {tensor} has the unsupported encoding {encoding}")]
    Unsupported {
        /// The tensor.
        tensor: String,
        /// Name of the type.
        encoding: &'static str,
    },
    /// A row that is not a whole number of blocks.
    #[error("tensor {tensor}: rows of {row} elements are not whole blocks of {encoding}")]
    PartialBlock {
        /// The tensor.
        tensor: String,
        /// Elements of a row (`ne0`).
        row: u64,
        /// The encoding.
        encoding: &'static str,
    },
    /// Tensor data that does not lie where the previous tensor's data ends.
    #[error("tensor {tensor} lies at data offset {found}, not at {expected} where the one before it ends")]
    Offset {
        /// The tensor.
        tensor: String,
        /// The offset declared, in bytes from the start of the data section.
        found: u64,
        /// The only offset possible.
        expected: u64,
    },
    /// Tensor data beyond the end of the file.
    #[error("tensor {tensor} ends at byte {end} of a file of {len} bytes")]
    DataTruncated {
        /// The tensor.
        tensor: String,
        /// Where its data would end, in bytes from the start of the file.
        end: u64,
        /// Length of the file in bytes.
        len: u64,
    },
    /// A metadata key that is needed and absent.
    #[error("metadata key {0} is missing")]
    Missing(String),
    /// A metadata value of another type than its meaning demands.
    #[error("metadata key {key} should be {expected}, found {found}")]
    WrongType {
        /// The key.
        key: String,
        /// What was asked for.
        expected: &'static str,
        /// What the file holds.
        found: String,
    },
    /// `general.type` says that the file is something other than a model.
    #[error("the file holds a {0}, not a model")]
    NotAModel(String),
    /// The shards of a split model do not fit together.
    #[error("split model: {0}")]
    Split(String),
    /// A buffer or range that does not fit the tensor read or written.
    #[error("tensor {tensor} has {bytes} bytes; bytes {start}..{end} were asked for")]
    Range {
        /// The tensor.
        tensor: String,
        /// Its size in bytes.
        bytes: u64,
        /// First byte asked for.
        start: u64,
        /// One past the last byte asked for.
        end: u64,
    },
    /// A writer was finished before, or fed after, its last tensor byte.
    #[error("the tensors declared take {declared} bytes, {given} were written")]
    DataLength {
        /// Bytes the declarations demand.
        declared: u64,
        /// Bytes given so far.
        given: u64,
    },
}

/// Result of this module.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::Io { what, source }
    }

    /// What the user can do about it, where that is known.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Error::InFile { error, .. } => return error.hint(),
            Error::BadMagic(_) => {
                "models must be in the GGUF format; safetensors and PyTorch files need conversion".into()
            }
            Error::OtherEndian(_) | Error::Version(1) => "convert the model again with a current converter".into(),
            Error::Version(_) => "versions 2 and 3 are read; the file may be newer than this program".into(),
            Error::Truncated { .. } | Error::DataTruncated { .. } => {
                "the download may be incomplete: compare the file's size with the publisher's".into()
            }
            Error::Unsupported { .. } => {
                let names: Vec<_> = gristmill_encodings::TABLE.iter().map(|e| e.name).collect();
                format!("choose a file in one of: {}", names.join(", "))
            }
            Error::TypeId { .. } => "the file uses a removed or unknown tensor type: get a current one".into(),
            Error::NotAModel(_) => "adapters, projectors and importance matrices cannot be run by themselves".into(),
            Error::Split(_) => "open the file named -00001-of-N.gguf, with all the others in the same folder".into(),
            Error::NotAFile => "give the path of a .gguf file; pipes and folders cannot be read".into(),
            _ => return None,
        })
    }
}
