//! Events of a `/v1/completions` stream.

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

/// One event of the stream.
#[derive(Debug, Default)]
pub struct CompletionEvent {
    /// Text that the event appends to the answer; may be empty.
    pub text: String,
    /// The `finish_reason`, if the event ends the answer.
    pub finish: Option<String>,
    /// The `usage` object; null if the event has none.
    pub usage: Value,
}

impl CompletionEvent {
    /// Parses the data of an event.
    ///
    /// # Errors
    /// If the data is not JSON, or reports an error.
    pub fn read(data: &str) -> Result<CompletionEvent> {
        let mut said: Value = serde_json::from_str(data).context("an event that is no JSON")?;
        if let Some(error) = said.get("error") {
            return Err(anyhow!(
                "an error in the stream: {}",
                error["message"].as_str().unwrap_or("without a message")
            ));
        }
        let usage = said.get_mut("usage").map(Value::take).unwrap_or_default();
        let choice = &said["choices"][0];
        let text = |name: &str| choice[name].as_str().map(str::to_owned);
        Ok(CompletionEvent { text: text("text").unwrap_or_default(), finish: text("finish_reason"), usage })
    }
    /// Returns a count of `usage`, such as `completion_tokens`.
    pub fn count(&self, name: &str) -> Option<usize> {
        self.usage[name].as_u64().map(|count| count as usize)
    }
}
