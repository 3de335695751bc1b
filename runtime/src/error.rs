//! What can go wrong on a device, each with a way out.

/// An error of a device or of the store of compiled kernels.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device cannot provide that much memory.
    #[error("out of memory: {wanted} bytes for {what} on {device}{}", .free.map_or(String::new(), |n| format!(", which has {n} free")))]
    OutOfMemory {
        /// What it was for.
        what: String,
        /// Bytes asked for.
        wanted: usize,
        /// Bytes that are free there, if it says.
        free: Option<u64>,
        /// Which device.
        device: String,
    },
    /// No C compiler was found, or it does not run.
    #[error("no C compiler: {0}")]
    NoCompiler(String),
    /// A C compiler took too long, and was ended.
    #[error("C compiler: {0}")]
    CompilerHangs(String),
    /// There is nowhere to put a compiler's files.
    #[error("no place for a compiler's files: {0}")]
    NoTemporary(String),
    /// The compiler rejected a kernel: a bug of ours, with what it said.
    #[error("kernel {kernel} did not compile:\n{message}")]
    Compile {
        /// Name of the kernel or batch.
        kernel: String,
        /// What the compiler said.
        message: String,
    },
    /// The cache directory cannot be used.
    #[error("kernel cache {path}: {message}")]
    Cache {
        /// The directory.
        path: std::path::PathBuf,
        /// Why.
        message: String,
    },
    /// A warning: what is compiled is not kept, and compiled again the next time.
    #[error("compiled kernels are not kept: {0}")]
    NotKept(Box<Error>),
    /// A warning: what things cost on a device is not known, and plans are made with figures of the table, or with guesses.
    #[error("{device}: its costs are not measured, and plans are made without: {why}")]
    NotMeasured {
        /// Which device.
        device: String,
        /// What failed.
        why: String,
    },
    /// A device that is not there.
    #[error("device {0} is not available: {1}")]
    NoDevice(String, String),
    /// A device that lacks something it takes to use it.
    #[error("{message}: device {device} cannot be used")]
    Lacking {
        /// Which device.
        device: String,
        /// What is missing.
        message: String,
        /// How to get it.
        hint: String,
    },
    /// A device's driver refused or failed.
    #[error("{device}: {what} failed: {message}")]
    Driver {
        /// Which device.
        device: String,
        /// What was asked of it.
        what: String,
        /// The driver's name for the error, and its words.
        message: String,
        /// What to do.
        hint: String,
    },
    /// A device that is of no more use to this process: it failed in a way that nothing on it survives, or did not answer in time. Whatever else is
    /// asked of it gets this error, too.
    #[error("{device} is lost: {what}")]
    Lost {
        /// Which device: its name and model.
        device: String,
        /// What happened to it.
        what: String,
        /// What to do.
        hint: String,
    },
    /// A setting (flag or environment variable) that cannot be honoured.
    #[error("{setting}: {message}")]
    Setting {
        /// The flag or variable with the value it was given: `--isa avx2`.
        setting: String,
        /// Why not.
        message: String,
        /// What would do.
        hint: String,
    },
    /// A request that no correct caller makes: a launch with too few buffers, a copy past a buffer's end.
    #[error("{what}: {message}")]
    Invalid {
        /// The kernel or buffer.
        what: String,
        /// What is wrong with it.
        message: String,
    },
    /// Anything the system said.
    #[error("{context}: {source}")]
    Io {
        /// What was being done.
        context: String,
        /// What the system said.
        source: std::io::Error,
    },
}

impl Error {
    /// A way out, for the user.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Error::OutOfMemory { .. } => "try a smaller --ctx, or a smaller model".into(),
            Error::NoCompiler(_) => "install gcc or clang (Debian: apt install gcc; Fedora: dnf install gcc; macOS: xcode-select --install), and leave CC unset or set it to that; \
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
    /// Is the device lost? Then nothing that is asked of it will succeed again.
    pub fn is_lost(&self) -> bool {
        matches!(self, Error::Lost { .. })
    }
    /// `map_err(Error::io("reading x"))`.
    pub fn io(context: impl Into<String>) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::Io { context: context.into(), source }
    }
    /// An [`Error::Invalid`].
    pub fn invalid(what: impl Into<String>, message: impl Into<String>) -> Error {
        Error::Invalid { what: what.into(), message: message.into() }
    }
}
