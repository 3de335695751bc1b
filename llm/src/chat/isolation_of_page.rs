//! Isolation of chat templates in a page: they run in its worker.

use super::error::ChatError;
use super::render;
use super::request::{ChatRequest, Rendered};

/// Process in which a template runs.
#[derive(Debug, Clone)]
pub enum Isolation {
    /// Runs in this worker, which the browser isolates from the page and the system.
    InProcess,
}

impl Isolation {
    pub(super) fn answer(&self, request: &ChatRequest) -> Result<Rendered, ChatError> {
        match self {
            Self::InProcess => render::answer(request),
        }
    }
}
