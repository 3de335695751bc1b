//! Roles of messages, which all interfaces share.

use serde::Deserialize;

/// Author of a message. Names of older interfaces and of templates are taken, too.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions of the operator; `developer` is OpenAI's newer name.
    #[serde(alias = "developer", alias = "System")]
    System,
    /// The person or program that the model answers.
    #[serde(alias = "User", alias = "human")]
    User,
    /// The model, in earlier answers and tool calls.
    #[serde(alias = "Assistant", alias = "model")]
    Assistant,
    /// A tool's result; `function` is the name of the time when calls were of functions only.
    #[serde(
        alias = "Tool",
        alias = "function",
        alias = "ipython",
        alias = "observation"
    )]
    Tool,
}

impl Role {
    /// Returns the name that chat templates know.
    pub fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}
