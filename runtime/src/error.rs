//! Errors of devices and of the kernel store, with a hint for each.

/// An error of a device or of the store of compiled kernels.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A memory allocation failed.
    #[error("out of memory: {} for {what} on {device}{}", memory_size(*.wanted as u64), .free.map_or(String::new(), |n| format!(", which has {} free", memory_size(n))))]
    OutOfMemory {
        /// Purpose of the allocation.
        what: String,
        /// Size of the request, bytes.
        wanted: usize,
        /// Free bytes on the device, if known.
        free: Option<u64>,
        /// Name of the device.
        device: String,
    },
    /// No C compiler was found, or it does not run.
    #[error("no C compiler: {0}")]
    NoCompiler(String),
    /// A C compiler exceeded its time limit and was killed.
    #[error("C compiler: {0}")]
    CompilerHangs(String),
    /// No directory is usable for a compiler's temporary files.
    #[error("no place for a compiler's files: {0}")]
    NoTemporary(String),
    /// The compiler rejected a kernel, which is a bug of this project.
    #[error("kernel {kernel} did not compile:\n{message}")]
    Compile {
        /// Name of the kernel or batch.
        kernel: String,
        /// Output of the compiler.
        message: String,
    },
    /// The cache directory cannot be used.
    #[error("kernel cache {path}: {message}")]
    Cache {
        /// Path of the directory.
        path: std::path::PathBuf,
        /// Reason it cannot be used.
        message: String,
    },
    /// Warning: compiled kernels are not stored and will be compiled again at the next start.
    #[error("compiled kernels are not kept: {0}")]
    NotKept(Box<Error>),
    /// Warning: the device was not calibrated; plans use tabulated or assumed costs.
    #[error("{device}: its costs are not measured, and plans are made without: {why}")]
    NotMeasured {
        /// Name of the device.
        device: String,
        /// Reason that calibration failed.
        why: String,
    },
    /// The device does not exist: its name and the reason.
    #[error("device {0} is not available: {1}")]
    NoDevice(String, String),
    /// The device lacks a component that is required to use it.
    #[error("{message}: device {device} cannot be used")]
    Lacking {
        /// Name of the device.
        device: String,
        /// Description of the missing component.
        message: String,
        /// Instruction for obtaining it.
        hint: String,
    },
    /// A device's driver refused or failed.
    #[error("{device}: {what} failed: {message}")]
    Driver {
        /// Name of the device.
        device: String,
        /// The operation that failed.
        what: String,
        /// The driver's error name and message.
        message: String,
        /// Suggested remedy for the user.
        hint: String,
    },
    /// The device is unusable for this process, after a fatal fault or a timeout. Every later
    /// operation on it returns this error.
    #[error("{device} is lost: {what}")]
    Lost {
        /// Name and model of the device.
        device: String,
        /// Description of the fault.
        what: String,
        /// Suggested remedy for the user.
        hint: String,
    },
    /// A setting (flag or environment variable) that cannot be honoured.
    #[error("{setting}: {message}")]
    Setting {
        /// Flag or variable with its value: `--isa avx2`.
        setting: String,
        /// Reason it cannot be honoured.
        message: String,
        /// Example of a valid setting.
        hint: String,
    },
    /// A request that no correct caller makes, such as a launch with too few buffers or an
    /// out-of-bounds copy.
    #[error("{what}: {message}")]
    Invalid {
        /// Kernel, buffer or operation concerned.
        what: String,
        /// Description of the violation.
        message: String,
    },
    /// An error reported by the operating system.
    #[error("{context}: {source}")]
    Io {
        /// The operation that failed.
        context: String,
        /// Error reported by the operating system.
        source: std::io::Error,
    },
}

impl Error {
    /// Returns a suggested remedy for the user.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Error::OutOfMemory { .. } => "try a smaller --ctx, a quantised KV cache (--kv), fewer sequences (--parallel), or a smaller model or quantisation".into(),
            Error::NoCompiler(_) => "install gcc or clang (Debian: apt install gcc; Fedora: dnf install gcc; macOS: xcode-select --install), and leave CC unset or set it to that; \
                 or `pip install ziglang` in the Python environment that has gristmill; \
                 or set GRISTMILL_CACHE to a folder of kernels that was filled on a machine like this one, and that you may read; \
                 `--device interp` needs neither and can still try the demo model"
                .into(),
            Error::CompilerHangs(_) => "set CC to another compiler; if that one hangs, too, please report it with the kernel's name".into(),
            Error::NoTemporary(_) => "set TMPDIR to a directory that only you can write to".into(),
            Error::Compile { .. } => "this is a bug in gristmill: please report it with the kernel's text".into(),
            Error::Cache { .. } => "set GRISTMILL_CACHE to a directory that you own and can write to".into(),
            Error::NotKept(why) => return why.hint(),
            Error::NotMeasured { .. } => "`gristmill devices --measure` measures them again".into(),
            Error::NoDevice(..) => "`gristmill devices` lists what there is".into(),
            Error::Setting { hint, .. }
            | Error::Lacking { hint, .. }
            | Error::Driver { hint, .. }
            | Error::Lost { hint, .. } => hint.clone(),
            Error::Invalid { .. } => "this is a bug in gristmill: please report it with the command that led here".into(),
            Error::Io { .. } => return None,
        })
    }
    /// Returns whether the device is lost; no later operation on it will succeed.
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Lost { .. })
    }
    /// Adapter for `map_err`: `map_err(Error::io("reading x"))`.
    pub fn io(context: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::Io {
            context: context.into(),
            source,
        }
    }
    /// Builds an [`Error::Invalid`] about `what`.
    pub fn invalid(what: impl Into<String>, message: impl Into<String>) -> Error {
        Error::Invalid {
            what: what.into(),
            message: message.into(),
        }
    }
}

/// Formats a size of memory with decimal prefixes (1 MB = 1,000,000 B).
fn memory_size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{} kB", bytes.div_ceil(1_000)),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_shortage_has_units_and_a_way_out() {
        let error = |free| Error::OutOfMemory {
            what: "a KV cache".into(),
            wanted: 5_200_000_000,
            free,
            device: "cuda:0".into(),
        };
        assert_eq!(
            error(Some(730_000_000)).to_string(),
            "out of memory: 5.20 GB for a KV cache on cuda:0, which has 730.0 MB free"
        );
        assert!(!error(None).to_string().contains("free"));
        let hint = error(None).hint().unwrap();
        assert!(hint.contains("--ctx") && hint.contains("--kv"), "{hint}");
    }
}
