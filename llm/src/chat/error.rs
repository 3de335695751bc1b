//! Errors of chat templates.

use minijinja::ErrorKind;

/// Why a conversation could not be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChatError {
    /// The template's source is longer than is accepted.
    #[error("the chat template has {bytes} bytes, more than {limit}")]
    SourceTooLarge {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The template is not valid Jinja, or uses a construct that is not supported.
    #[error("the chat template does not compile: {0}")]
    Compile(String),
    /// The template called `raise_exception`: it refuses this conversation.
    #[error("the chat template refuses the conversation: {0}")]
    Raised(String),
    /// The template ran for too many steps.
    #[error("the chat template did not finish within {0} steps")]
    OutOfFuel(u64),
    /// The rendered text is longer than is accepted.
    #[error("the rendered conversation is longer than {0} bytes")]
    OutputTooLarge(usize),
    /// Any other failure while rendering.
    #[error("the chat template failed: {0}")]
    Render(String),
}

impl ChatError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::SourceTooLarge { .. } | Self::Compile(_) | Self::OutOfFuel(_) => {
                Some(format!("use a built-in template: {}", super::builtin::names().join(", ")))
            }
            Self::Raised(_) => Some("check the roles and their order, and what the model supports".into()),
            Self::OutputTooLarge(_) => Some("shorten the conversation".into()),
            Self::Render(_) => Some("check that each message has a role and a content".into()),
        }
    }

    pub(super) fn from_render(error: &minijinja::Error, fuel: u64) -> Self {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(e) = cause {
            if let Some(Raised(message)) = e.downcast_ref() {
                return Self::Raised(message.clone());
            }
            if e.downcast_ref::<minijinja::Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
                return Self::OutOfFuel(fuel);
            }
            cause = e.source();
        }
        Self::Render(describe(error))
    }
}

/// Error kind, detail and line.
pub(super) fn describe(error: &minijinja::Error) -> String {
    let detail = error.detail().map(|d| format!(": {d}")).unwrap_or_default();
    let line = error.line().map(|l| format!(" (line {l})")).unwrap_or_default();
    format!("{}{detail}{line}", error.kind())
}

/// What `raise_exception` throws, to tell it from other failures.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub String);
