//! Errors of GGUF files, with advice for the user.

use super::kind::OtherKind;
use std::path::PathBuf;

/// Reason why a GGUF file was refused, could not be read, or could not be written.
///
/// A file is untrusted input: a malformed or unreadable file gives an error, never a panic.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error in one named file (of several, for split models).
    #[error("{}: {error}", path.display())]
    InFile {
        /// Path of the file.
        path: PathBuf,
        /// The error in this file.
        #[source]
        error: Box<Error>,
    },
    /// The operating system refused a read, a write or an open.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// Error of the operating system.
        #[source]
        source: std::io::Error,
    },
    /// A file with a block for draft tokens does not fit the model.
    #[error("the block for draft tokens cannot be used: {0}")]
    DraftBlock(String),
    /// A directory, pipe or device instead of a file.
    #[error("not a regular file")]
    NotAFile,
    /// A memory allocation for the header failed.
    #[error("no memory for {bytes} bytes of {what}")]
    OutOfMemory {
        /// Part of the header to be stored.
        what: &'static str,
        /// Requested size in bytes.
        bytes: u64,
    },
    /// The file does not start with `GGUF`.
    #[error("not a GGUF file: it starts with bytes {0:02x?}")]
    BadMagic([u8; 4]),
    /// The file has the other byte order.
    #[error("a big-endian GGUF file (version field {0:#010x})")]
    OtherEndian(u32),
    /// A version other than 2 and 3.
    #[error("GGUF version {0} is not supported")]
    Version(u32),
    /// A negative count, or one that the rest of the file cannot hold.
    #[error("the header declares {count} {what}, but the file has room for at most {limit}")]
    Count {
        /// The counted items, for messages.
        what: &'static str,
        /// Count in the file.
        count: i64,
        /// Largest count that the file has room for.
        limit: u64,
    },
    /// The file ends inside its header.
    #[error(
        "the file ends inside {what}: {need} bytes needed at offset {offset}, {remaining} left"
    )]
    Truncated {
        /// Part of the header to be read.
        what: &'static str,
        /// Byte offset of that part.
        offset: u64,
        /// Bytes that the part takes.
        need: u64,
        /// Bytes left in the file.
        remaining: u64,
    },
    /// A string over the limit for its kind.
    #[error("{what} of {len} bytes at offset {offset} (limit {limit})")]
    TooLong {
        /// Kind of the string.
        what: &'static str,
        /// Byte offset of its length field.
        offset: u64,
        /// Its declared length in bytes.
        len: u64,
        /// Maximum length in bytes.
        limit: u64,
    },
    /// A key, tensor name or required text that is not UTF-8.
    #[error("{what} is not UTF-8: {text}")]
    NotUtf8 {
        /// Kind of the string.
        what: &'static str,
        /// The string with invalid bytes replaced.
        text: String,
    },
    /// A metadata key or a tensor name of zero length.
    #[error("{what} is empty")]
    Empty {
        /// Kind of the string.
        what: &'static str,
    },
    /// The same metadata key twice.
    #[error("metadata key {0} appears twice")]
    DuplicateKey(String),
    /// A value type id outside the table.
    #[error("metadata key {key}: {id} is not a value type")]
    ValueType {
        /// Metadata key of the value.
        key: String,
        /// Value type id in the file.
        id: i32,
    },
    /// An array of arrays, which the format forbids.
    #[error("metadata key {key}: an array of arrays")]
    NestedArray {
        /// Metadata key of the array.
        key: String,
    },
    /// An array longer than the rest of the file, or than the general limit.
    #[error(
        "metadata key {key}: an array of {count} elements cannot be in this file (at most {limit})"
    )]
    ArrayLength {
        /// Metadata key of the array.
        key: String,
        /// Declared number of elements.
        count: u64,
        /// Largest possible number of elements.
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
        /// Name of the tensor.
        tensor: String,
        /// Declared number of dimensions.
        rank: u32,
    },
    /// A dimension below one.
    #[error("tensor {tensor}: dimension {axis} is {size}")]
    Dimension {
        /// Name of the tensor.
        tensor: String,
        /// Index of the dimension, 0 for the contiguous one.
        axis: usize,
        /// Declared size of the dimension.
        size: i64,
    },
    /// The number of elements or bytes does not fit 63 bits.
    #[error("tensor {tensor} is too large: the number of {what} overflows")]
    Overflow {
        /// Name of the tensor.
        tensor: String,
        /// Overflowing number: `elements` or `bytes`.
        what: &'static str,
    },
    /// A tensor type id that no file may contain: negative, removed or unknown.
    #[error("tensor {tensor}: {id} is not a tensor type")]
    TypeId {
        /// Name of the tensor.
        tensor: String,
        /// Tensor type id in the file.
        id: i32,
    },
    /// A GGUF tensor type that is not supported.
    #[error("tensor {tensor} has the unsupported encoding {encoding}")]
    Unsupported {
        /// Name of the tensor.
        tensor: String,
        /// Name of the type.
        encoding: &'static str,
    },
    /// A row that is not a whole number of blocks.
    #[error("tensor {tensor}: rows of {row} elements are not whole blocks of {encoding}")]
    PartialBlock {
        /// Name of the tensor.
        tensor: String,
        /// Elements per row (`ne0`).
        row: u64,
        /// Name of the encoding.
        encoding: &'static str,
    },
    /// Tensor data that does not start at the end of the previous tensor's data.
    #[error(
        "tensor {tensor} lies at data offset {found}, not at {expected} where the one before it ends"
    )]
    Offset {
        /// Name of the tensor.
        tensor: String,
        /// Declared offset in bytes from the start of the data section.
        found: u64,
        /// Required offset in bytes from the start of the data section.
        expected: u64,
    },
    /// Tensor data beyond the end of the file.
    #[error("tensor {tensor} ends at byte {end} of a file of {len} bytes")]
    DataTruncated {
        /// Name of the tensor.
        tensor: String,
        /// End of its data in bytes from the start of the file.
        end: u64,
        /// Length of the file in bytes.
        len: u64,
    },
    /// A required metadata key is absent.
    #[error("metadata key {0} is missing")]
    Missing(String),
    /// A metadata value has the wrong type for its key.
    #[error("metadata key {key} should be {expected}, found {found}")]
    WrongType {
        /// Metadata key of the value.
        key: String,
        /// Description of the required type.
        expected: &'static str,
        /// Type and value in the file.
        found: String,
    },
    /// The metadata says that the file is something other than a model.
    #[error("the file is {0}")]
    NotAModel(OtherKind),
    /// The shards of a split model do not fit together.
    #[error("split model: {0}")]
    Split(String),
    /// A buffer or range does not fit the tensor.
    #[error("tensor {tensor} has {bytes} bytes; bytes {start}..{end} were asked for")]
    Range {
        /// Name of the tensor.
        tensor: String,
        /// Size of the tensor in bytes.
        bytes: u64,
        /// Start of the requested range.
        start: u64,
        /// End of the requested range, exclusive.
        end: u64,
    },
    /// The bytes given to a writer do not match the declared tensors.
    #[error("the tensors declared take {declared} bytes, {given} were written")]
    DataLength {
        /// Bytes of the declared tensors.
        declared: u64,
        /// Bytes written so far.
        given: u64,
    },
}

/// Result with the error of GGUF files.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn io(what: &'static str) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::Io { what, source }
    }

    /// Returns advice for the user, if there is any.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Error::InFile { error, .. } => return error.hint(),
            Error::BadMagic(_) => {
                "models must be in the GGUF format; safetensors and PyTorch files need conversion"
                    .into()
            }
            Error::OtherEndian(_) | Error::Version(1) => {
                "convert the model again with a current converter".into()
            }
            Error::Version(_) => {
                "versions 2 and 3 are read; the file may be newer than this program".into()
            }
            Error::Truncated { .. } | Error::DataTruncated { .. } => {
                "the download may be incomplete: compare the file's size with the publisher's"
                    .into()
            }
            Error::Unsupported { .. } => {
                let names: Vec<_> = gristmill_encodings::TABLE.iter().map(|e| e.name).collect();
                format!("choose a file in one of: {}", names.join(", "))
            }
            Error::TypeId { .. } => {
                "the file uses a removed or unknown tensor type: get a current one".into()
            }
            Error::NotAModel(kind) => kind.hint().into(),
            Error::Split(_) => {
                "open the file named -00001-of-N.gguf, with all the others in the same folder"
                    .into()
            }
            Error::Io { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                "check the path".into()
            }
            Error::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
                "check the permissions of the file and its folder".into()
            }
            Error::NotAFile => {
                "give the path of a .gguf file; pipes and folders cannot be read".into()
            }
            _ => return None,
        })
    }
}

impl From<OtherKind> for Error {
    fn from(kind: OtherKind) -> Error {
        Error::NotAModel(kind)
    }
}
