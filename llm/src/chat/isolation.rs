//! Isolation of chat templates.

use super::error::ChatError;
#[cfg(not(target_family = "wasm"))]
use super::helper_client::Helper;
use super::render;
use super::request::{ChatRequest, Rendered};

/// Process in which a template runs.
#[derive(Debug, Clone)]
pub enum Isolation {
    /// Runs in this process, for trusted templates only. A hostile template can exhaust memory, or
    /// overflow the stack and so end the process.
    InProcess,
    /// Runs in a new helper process for each conversation. A page has none: its worker isolates
    /// the template.
    #[cfg(not(target_family = "wasm"))]
    Helper(Helper),
}

impl Isolation {
    pub(super) fn answer(&self, request: &ChatRequest) -> Result<Rendered, ChatError> {
        match self {
            Self::InProcess => render::answer(request),
            #[cfg(not(target_family = "wasm"))]
            Self::Helper(helper) => helper.request(request),
        }
    }
}
