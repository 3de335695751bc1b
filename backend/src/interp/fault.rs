//! What can go wrong while a kernel is compiled or run. Every one of them is a bug of the kernel's maker.

use gristmill_runtime::Error;

/// A kernel that does what no device could do.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// A node that has no meaning at the kernel level.
    #[error("not at the kernel level: {0}")]
    Graph(String),
    /// A load or a store outside its buffer.
    #[error("{what} of {size} bytes at byte {at} of buffer {buffer}, which has {len}")]
    OutOfBounds {
        /// `load` or `store`.
        what: &'static str,
        /// Bytes accessed.
        size: usize,
        /// First of them.
        at: i128,
        /// Which buffer: position in `Program::params`, then locals.
        buffer: usize,
        /// Its length in bytes.
        len: usize,
    },
    /// Threads that do not wait for one another, or for what is under way.
    #[error("{what}, byte {at} of a stage")]
    Race {
        /// What a thread does that it had to wait with.
        what: &'static str,
        /// Which byte.
        at: usize,
    },
    /// An operand for which an op is not defined.
    #[error("{op} by {value}")]
    Operand {
        /// Name of the op.
        op: &'static str,
        /// The operand.
        value: i64,
    },
    /// The launch does not fit the kernel.
    #[error("{0}")]
    Launch(String),
}

impl Fault {
    /// As an error of the runtime, which names the kernel.
    pub(super) fn into_error(self, kernel: &str) -> Error {
        match self {
            Fault::Graph(message) => Error::Compile { kernel: kernel.into(), message },
            _ => Error::Io { context: format!("kernel {kernel}"), source: std::io::Error::other(self) },
        }
    }
}
