//! Errors as Python exceptions: the cause, and a way out.

use gristmill_llm::{arch, chat, engine, file, language, sampling, sched, synth, tokenizer};
use pyo3::PyErr;
use pyo3::create_exception;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use std::fmt::Display;

create_exception!(
    gristmill,
    GristmillError,
    PyRuntimeError,
    "A model cannot be opened or run. The message names the cause, and a way out after `hint:`."
);

/// Result of the module's functions.
pub type Result<T, E = Failure> = std::result::Result<T, E>;

/// Hint of errors in a model file.
const DAMAGED: &str =
    "the file is damaged or was written by a faulty tool: download or convert it again";

/// An error, before it becomes an exception.
#[derive(Debug)]
pub struct Failure {
    text: String,
    /// Whether an argument is wrong, on any model and machine.
    usage: bool,
}

impl Failure {
    /// Creates the error of a model or a machine.
    pub fn new(message: impl Display, hint: impl Display) -> Failure {
        Failure {
            text: format!("{message}\nhint: {hint}"),
            usage: false,
        }
    }
    /// Creates the error of a wrong argument, a `ValueError`.
    pub fn usage(message: impl Display, hint: impl Display) -> Failure {
        Failure {
            usage: true,
            ..Failure::new(message, hint)
        }
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> PyErr {
        match failure.usage {
            true => PyValueError::new_err(failure.text),
            false => GristmillError::new_err(failure.text),
        }
    }
}

/// Errors with hints, and the hint for those without one.
macro_rules! failures { ($($error:ty, $otherwise:expr;)*) => { $(
    impl From<$error> for Failure {
        fn from(error: $error) -> Failure {
            let hint = error.hint().unwrap_or_else(|| String::from($otherwise));
            Failure::new(error, hint)
        }
    }
)* } }
failures! {
    file::Error, DAMAGED;
    arch::Error, DAMAGED;
    language::Error, DAMAGED;
    tokenizer::TokenizerError, DAMAGED;
    chat::ChatError, DAMAGED;
    synth::Error, "check the name";
    engine::Error, "check the arguments of Model";
    sched::Error, "check the arguments of the call";
    sampling::SamplingError, "check the sampling parameters";
    gristmill_runtime::Error, "check the disk and the permissions";
    gristmill_hub::Error, "give the path of a file";
}
