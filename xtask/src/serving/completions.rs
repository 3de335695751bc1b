//! What an event of a stream of `/v1/completions` says.

use anyhow::{Context, Result, anyhow};
use serde_json::Value;

/// One event.
#[derive(Debug, Default)]
pub struct CompletionEvent {
    /// What it adds to the answer.
    pub text: String,
    /// Why the answer ends with it, if it does.
    pub finish: Option<String>,
    /// What the answer took, where it says so: an object.
    pub usage: Value,
}

impl CompletionEvent {
    /// Reads the data of an event.
    ///
    /// # Errors
    /// When it is no JSON, or tells of an error.
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
    /// A number of what the answer took.
    pub fn count(&self, name: &str) -> Option<usize> {
        self.usage[name].as_u64().map(|count| count as usize)
    }
}
