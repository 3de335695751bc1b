//! Asks a server on this machine or another for its loaded models.

use crate::client::agent;
use serde_json::Value;
use std::time::Duration;

/// Time limit of the whole request; the answer is a small list in memory.
const TIME: Duration = Duration::from_secs(10);
/// Maximum bytes of the answer.
const BYTES: u64 = 4 << 20;

/// Reason why a server's loaded models are not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunningError {
    /// No server answered at the address.
    #[error("no server answers at {0}: {1}")]
    NoServer(String, String),
    /// The server requires an API key, or another one.
    #[error("the server at {0} refuses the API key")]
    Key(String),
    /// The answer is not that of `/api/ps`.
    #[error("the server at {0} does not list loaded models: {1}")]
    NoList(String, String),
}

impl RunningError {
    /// Returns advice for the user.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            RunningError::NoServer(..) => {
                "`gristmill serve MODEL` starts one; --port and --host name another address".into()
            }
            RunningError::Key(_) => "give --api-key, or set GRISTMILL_API_KEY".into(),
            RunningError::NoList(..) => "is another program listening there?".into(),
        })
    }
}

/// Returns the entries of `/api/ps` of the server at `address` (`127.0.0.1:8080`).
///
/// # Errors
/// When no server answers, it refuses the key, or the answer has another form.
pub fn running(address: &str, key: Option<&str>) -> Result<Vec<Value>, RunningError> {
    let refused = |why: String| RunningError::NoList(address.into(), why);
    // Local addresses are never asked through a proxy.
    let config = agent().timeout_global(Some(TIME)).proxy(None).build();
    let mut request = ureq::Agent::from(config).get(format!("http://{address}/api/ps"));
    if let Some(key) = key {
        request = request.header("Authorization", format!("Bearer {key}"));
    }
    let response = request
        .call()
        .map_err(|error| RunningError::NoServer(address.into(), error.to_string()))?;
    match response.status().as_u16() {
        200 => {}
        401 | 403 => return Err(RunningError::Key(address.into())),
        other => return Err(refused(format!("status {other}"))),
    }
    let body = response
        .into_body()
        .into_with_config()
        .limit(BYTES)
        .read_to_vec()
        .map_err(|error| refused(error.to_string()))?;
    let value: Value = serde_json::from_slice(&body).map_err(|error| refused(error.to_string()))?;
    match value["models"].as_array() {
        Some(models) => Ok(models.clone()),
        None => Err(refused("no list of models".into())),
    }
}
