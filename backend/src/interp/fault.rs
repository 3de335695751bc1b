//! Faults while a kernel is compiled or run, each a bug in the compiler.

use gristmill_runtime::Error;

/// An operation of a kernel that is invalid on any device.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// A node without a meaning at the kernel level.
    #[error("not at the kernel level: {0}")]
    Graph(String),
    /// A load or a store outside its buffer.
    #[error("{what} of {size} bytes at byte {at} of buffer {buffer}, which has {len}")]
    OutOfBounds {
        /// Kind of access: `load`, `store` or `prefetch`.
        what: &'static str,
        /// Bytes of the access.
        size: usize,
        /// Offset of the first of them.
        at: i128,
        /// Index of the buffer: parameters of `Program::params`, then locals.
        buffer: usize,
        /// Its length in bytes.
        len: usize,
    },
    /// A missing barrier between threads, or a missing wait for a copy.
    #[error("{what}, byte {at} of a stage")]
    Race {
        /// Access that needed synchronisation.
        what: &'static str,
        /// Offset of the byte in the stage.
        at: usize,
    },
    /// An operand for which an op is undefined.
    #[error("{op} by {value}")]
    Operand {
        /// Name of the op.
        op: &'static str,
        /// Value of the operand.
        value: i64,
    },
    /// The launch does not fit the kernel.
    #[error("{0}")]
    Launch(String),
}

impl Fault {
    /// Converts to an error of the runtime that names the kernel.
    pub(super) fn into_error(self, kernel: &str) -> Error {
        match self {
            Fault::Graph(message) => Error::Compile {
                kernel: kernel.into(),
                message,
            },
            _ => Error::Io {
                context: format!("kernel {kernel}"),
                source: std::io::Error::other(self),
            },
        }
    }
}
