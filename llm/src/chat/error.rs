//! Errors of chat templates.

use minijinja::ErrorKind;

/// Maximum characters kept of a minijinja error detail.
const MAX_DETAIL: usize = 500;

/// Reason why a template or a conversation was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum ChatError {
    /// The template source exceeds the length limit.
    #[error("the chat template has {bytes} bytes, more than {limit}")]
    SourceTooLarge {
        /// Length of the source in bytes.
        bytes: usize,
        /// Maximum length in bytes.
        limit: usize,
    },
    /// An expression or statement of the template has too many tokens.
    #[error("line {line} of the chat template has a tag of more than {limit} words and signs")]
    TagTooLong {
        /// Line number in the template source.
        line: usize,
        /// Maximum number of tokens of a tag.
        limit: usize,
    },
    /// Nested conditions of the template have too many `elif`s.
    #[error("line {line} of the chat template is within more than {limit} branches of conditions")]
    TooManyBranches {
        /// Line number in the template source.
        line: usize,
        /// Maximum number of branches.
        limit: usize,
    },
    /// The template is not valid Jinja, or uses a construct that is not supported.
    #[error("the chat template does not compile: {0}")]
    Compile(String),
    /// The template called `raise_exception` to refuse the conversation.
    #[error("the chat template refuses the conversation: {0}")]
    Raised(String),
    /// The template exceeded the instruction limit, given here.
    #[error("the chat template did not finish within {0} steps")]
    OutOfFuel(u64),
    /// The template exceeded the memory limit for this conversation.
    #[error("the chat template ran out of memory")]
    OutOfMemory,
    /// The template exceeded the time limit.
    #[error("the chat template ran out of time")]
    OutOfTime,
    /// The template recursed, or nested values, too deeply.
    #[error("the chat template ran out of stack")]
    OutOfStack,
    /// The rendered text exceeds the limit for this conversation, in bytes.
    #[error("the rendered conversation is longer than {0} bytes")]
    OutputTooLarge(usize),
    /// A message, a tool or a variable exceeds the nesting limit, given here.
    #[error("the conversation has values within more than {0} others")]
    ConversationTooDeep(usize),
    /// The search automaton for control tokens could not be built, so message text cannot
    /// be separated from markers.
    #[error("the texts of the control tokens cannot be searched for: {0}")]
    Specials(String),
    /// The helper process could not be started, or ended without an answer for a reason
    /// other than the template.
    #[error("the process that renders chat templates {0}")]
    Helper(String),
    /// The helper process had not finished after the wall-clock limit, given here in seconds.
    #[error("the process that renders chat templates did not answer within {0} seconds")]
    HelperTimeout(u64),
    /// The template has an expression that the renderer cannot evaluate.
    #[error("the chat template has an expression that cannot be evaluated")]
    Panicked,
    /// Any other failure while rendering.
    #[error("the chat template failed: {0}")]
    Render(String),
}

impl ChatError {
    /// Returns advice for the user, if there is any.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::SourceTooLarge { .. }
            | Self::TagTooLong { .. }
            | Self::TooManyBranches { .. }
            | Self::Compile(_)
            | Self::Panicked
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
            Self::HelperTimeout(_) => Some(
                "this machine is overloaded: a template has two seconds of processor time; try again, or stop other \
                 programs"
                    .into(),
            ),
            Self::Helper(_) => Some("check that this program may start processes, and that there is memory for one".into()),
        }
    }

    /// Returns true if the conversation caused the error, false for the template or this machine.
    pub fn blames_conversation(&self) -> bool {
        matches!(
            self,
            Self::Raised(_)
                | Self::Render(_)
                | Self::OutputTooLarge(_)
                | Self::ConversationTooDeep(_)
        )
    }

    pub(super) fn from_render(error: &minijinja::Error, fuel: u64) -> Self {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(e) = cause {
            if let Some(Raised(message)) = e.downcast_ref() {
                return Self::Raised(message.clone());
            }
            if e.downcast_ref::<minijinja::Error>()
                .is_some_and(|e| e.kind() == ErrorKind::OutOfFuel)
            {
                return Self::OutOfFuel(fuel);
            }
            cause = e.source();
        }
        Self::Render(describe(error))
    }
}

/// Formats kind, detail and line of a minijinja error.
pub(super) fn describe(error: &minijinja::Error) -> String {
    // Names and values of the template can have any length.
    let detail = error
        .detail()
        .map(|d| format!(": {}", d.chars().take(MAX_DETAIL).collect::<String>()))
        .unwrap_or_default();
    let line = error
        .line()
        .map(|l| format!(" (line {l})"))
        .unwrap_or_default();
    format!("{}{detail}{line}", error.kind())
}

/// Error source of `raise_exception`, which distinguishes it from other failures.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Raised(pub String);
