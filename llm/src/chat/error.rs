//! Errors of chat templates.

use minijinja::ErrorKind;

/// Most characters of what minijinja says of an error.
const MAX_DETAIL: usize = 500;

/// Why a conversation could not be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
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
    /// An expression or statement of the template is longer than is accepted.
    #[error("line {line} of the chat template has a tag of more than {limit} words and signs")]
    TagTooLong {
        /// The line.
        line: usize,
        /// The limit.
        limit: usize,
    },
    /// The template has too many `elif`s within one another.
    #[error("line {line} of the chat template is within more than {limit} branches of conditions")]
    TooManyBranches {
        /// The line.
        line: usize,
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
    /// The template took more memory than a rendering of this conversation may.
    #[error("the chat template ran out of memory")]
    OutOfMemory,
    /// The template took longer than a rendering may.
    #[error("the chat template ran out of time")]
    OutOfTime,
    /// The template recursed, or nested values, too deeply.
    #[error("the chat template ran out of stack")]
    OutOfStack,
    /// The rendered text is longer than is accepted of this conversation.
    #[error("the rendered conversation is longer than {0} bytes")]
    OutputTooLarge(usize),
    /// A message, a tool or a variable is nested too deeply.
    #[error("the conversation has values within more than {0} others")]
    ConversationTooDeep(usize),
    /// The texts of the control tokens cannot be searched for, so that nothing could tell a message from a marker.
    #[error("the texts of the control tokens cannot be searched for: {0}")]
    Specials(String),
    /// The process that renders could not be started, or ended without an answer for a reason that is not the template's.
    #[error("the process that renders chat templates {0}")]
    Helper(String),
    /// Any other failure while rendering.
    #[error("the chat template failed: {0}")]
    Render(String),
}

impl ChatError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::SourceTooLarge { .. }
            | Self::TagTooLong { .. }
            | Self::TooManyBranches { .. }
            | Self::Compile(_)
            | Self::OutOfFuel(_) => Some(format!("use a built-in template: {}", super::builtin::names().join(", "))),
            Self::OutOfMemory | Self::OutOfTime | Self::OutOfStack => Some(
                "templates in use take milliseconds and little memory: get the model file from a source that you trust, \
                 or shorten a conversation of many megabytes"
                    .into(),
            ),
            Self::Raised(_) => Some("check the roles and their order, and what the model supports".into()),
            Self::OutputTooLarge(_) => Some("shorten the conversation".into()),
            Self::ConversationTooDeep(_) => Some("flatten the arguments and descriptions of tools".into()),
            Self::Render(_) => Some("check that each message has a role and a content".into()),
            Self::Specials(_) => Some("the vocabulary is damaged: get the model file from a source that you trust".into()),
            Self::Helper(_) => Some("check that this program may start processes, and that there is memory for one".into()),
        }
    }

    /// Would another conversation do better? If not, the template is at fault, or this machine.
    pub fn blames_conversation(&self) -> bool {
        matches!(self, Self::Raised(_) | Self::Render(_) | Self::OutputTooLarge(_) | Self::ConversationTooDeep(_))
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
    // Names and values of the template may be of any length.
    let detail =
        error.detail().map(|d| format!(": {}", d.chars().take(MAX_DETAIL).collect::<String>())).unwrap_or_default();
    let line = error.line().map(|l| format!(" (line {l})")).unwrap_or_default();
    format!("{}{detail}{line}", error.kind())
}

/// What `raise_exception` throws, to tell it from other failures.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub String);
