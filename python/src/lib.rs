//! The Python module `gristmill`: a model with generation, chat, embeddings, scores and logits.
//!
//! `gristmill/__init__.py` exports the classes; `gristmill/_gristmill.pyi` has their types and
//! documentation.

mod error;
mod generation;
mod model;
mod model_thread;
mod pooled;
mod source;
mod stream;

use error::GristmillError;
use pyo3::types::{PyModule, PyModuleMethods};
use pyo3::{Bound, PyResult, pyfunction, pymodule, wrap_pyfunction};

/// Names the folder of packages, in which the packages `ziglang` and `nvidia-cuda-nvrtc` are found.
#[pyfunction]
fn set_packages(folder: std::path::PathBuf) {
    gristmill_backend::installation::set_packages(folder);
}

/// Renders a chat template in a process that does nothing else; returns its exit status.
#[pyfunction]
fn render_template() -> u8 {
    match gristmill_llm::chat::helper() == std::process::ExitCode::SUCCESS {
        true => 0,
        false => 1,
    }
}

#[pymodule]
fn _gristmill(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("GristmillError", module.py().get_type::<GristmillError>())?;
    module.add_class::<model::PyModel>()?;
    module.add_class::<stream::TextStream>()?;
    module.add_function(wrap_pyfunction!(set_packages, module)?)?;
    module.add_function(wrap_pyfunction!(render_template, module)?)
}
