//! Client of the hub's HTTP API: repository listings and bytes of files.

use crate::error::Error;
use crate::repository::{Repository, escaped_path, is_safe};
use crate::source::{FileBytes, FileSource, range};
use serde_json::Value;
use std::net::IpAddr;
use std::time::Duration;
use ureq::config::ConfigBuilder;
use ureq::http::{Response, StatusCode, header};
use ureq::typestate::AgentScope;
use ureq::{Agent, Body};

/// Endpoint of the hub unless `HF_ENDPOINT` names another.
const DEFAULT: &str = "https://huggingface.co";
const BRANCH: &str = "main";
/// Maximum bytes of a listing's JSON; the hub's largest have some 2 MB.
const LISTING_BYTES: u64 = 64 << 20;
/// Silence after which a connection counts as broken; also the timeout of connecting.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Time in which a connection must bring some bytes; a slow line brings a thousand times as many.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time limit of a whole listing, however slowly it arrives: the hub's largest, some 2
/// MB, take one second.
const LISTING_TIME: Duration = Duration::from_secs(120);

/// A file of a repository as the hub lists it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemoteFile {
    /// Path in the repository, with `/` between folders.
    pub path: String,
    /// Size of the file in bytes.
    pub size: u64,
    /// SHA-256 in hexadecimal; the hub has it for all large (LFS) files, else None.
    pub sha256: Option<String>,
}

/// Files of a repository at one commit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    /// Commit that the listing describes.
    pub commit: String,
    /// Files with paths that pass the safety check.
    pub files: Vec<RemoteFile>,
    /// Number of files left out because their names are unsafe or misleading.
    pub passed_over: usize,
}

/// A hub endpoint with the credentials to use there.
pub struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    allow_http: bool,
    /// Pause before the first retry of a failed request.
    pub(crate) pause: Duration,
    /// Time in which a connection must bring some bytes.
    pub(crate) patience: Duration,
}

/// Files of a repository at a commit.
pub(crate) struct Commit<'a> {
    pub client: &'a Client,
    pub repository: &'a Repository,
    pub commit: &'a str,
}

/// Returns the HTTP settings that all requests share.
pub(crate) fn agent() -> ConfigBuilder<AgentScope> {
    let config = Agent::config_builder();
    let config = config
        .http_status_as_error(false)
        .user_agent(concat!("gristmill/", env!("CARGO_PKG_VERSION")));
    config
        .timeout_connect(Some(READ_TIMEOUT))
        .timeout_recv_response(Some(READ_TIMEOUT))
        .timeout_per_read(Some(READ_TIMEOUT))
}

impl Client {
    /// Creates a client for the hub at `endpoint`, with an optional bearer token.
    pub fn new(endpoint: &str, token: Option<String>) -> Client {
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        // A redirection must not lead from an encrypted connection to an unencrypted one.
        let config = agent()
            .https_only(endpoint.to_ascii_lowercase().starts_with("https://"))
            .build();
        Client {
            agent: config.into(),
            endpoint,
            token,
            allow_http: false,
            pause: Duration::from_secs(1),
            patience: PATIENCE,
        }
    }
    /// Creates a client from the environment: `HF_ENDPOINT`, `HF_TOKEN`, `GRISTMILL_ALLOW_HTTP`.
    ///
    /// Other servers are asked without encryption only where `GRISTMILL_ALLOW_HTTP` is 1.
    pub fn from_environment() -> Client {
        let variable = |name| std::env::var(name).ok().filter(|v| !v.trim().is_empty());
        let client = Client::new(
            &variable("HF_ENDPOINT").unwrap_or(DEFAULT.into()),
            variable("HF_TOKEN"),
        );
        client.allow_http(variable("GRISTMILL_ALLOW_HTTP").as_deref() == Some("1"))
    }
    /// Sets whether servers other than the hub may be asked without encryption.
    ///
    /// Loopback addresses always may be.
    pub fn allow_http(mut self, allow: bool) -> Client {
        self.allow_http = allow;
        self
    }
    pub(crate) fn allows_http(&self) -> bool {
        self.allow_http
    }
    /// Sets the pause before a retry; the default is one second.
    pub fn pause(mut self, pause: Duration) -> Client {
        self.pause = pause;
        self
    }
    /// Sets the time after which a connection that brings hardly any bytes counts as broken; the
    /// default is a minute.
    pub fn patience(mut self, patience: Duration) -> Client {
        self.patience = patience;
        self
    }
    /// Returns the hub's address without a trailing slash.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// Fetches the list of files of a repository at the head of `main`.
    ///
    /// # Errors
    /// When the repository does not exist or is not accessible to this user, or the
    /// hub does not answer.
    pub fn listing(&self, repository: &Repository) -> Result<Listing, Error> {
        let url = format!(
            "{}/api/models/{repository}/revision/{BRANCH}?blobs=true",
            self.endpoint
        );
        let mut response = self.get(&url, None, Some(LISTING_TIME))?;
        self.check(&response, repository)?;
        let body = response
            .body_mut()
            .with_config()
            .limit(LISTING_BYTES)
            .read_to_string();
        let body = body.map_err(|e| self.transport(e))?;
        let listing = serde_json::from_str(&body).ok().as_ref().and_then(parse);
        listing.ok_or_else(|| self.answer("with something that is no listing of a repository"))
    }

    /// Sends a GET for the bytes from `from` on; `most` limits the time of the whole response.
    fn get(
        &self,
        url: &str,
        from: Option<u64>,
        most: Option<Duration>,
    ) -> Result<Response<Body>, Error> {
        let mut request = self.agent.get(url).config().timeout_global(most).build();
        // ureq removes this header where a redirection leads to another host.
        if let Some(token) = &self.token {
            if !is_private(&self.endpoint) {
                return Err(Error::PlainToken(self.endpoint.clone()));
            }
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if let Some(from) = from {
            request = request.header(header::RANGE, format!("bytes={from}-"));
        }
        request.call().map_err(|e| self.transport(e))
    }

    fn check(&self, response: &Response<Body>, repository: &Repository) -> Result<(), Error> {
        match response.status() {
            status if status.is_success() => Ok(()),
            // Without a token the hub does not say which private repositories exist.
            StatusCode::NOT_FOUND | StatusCode::UNAUTHORIZED => {
                Err(Error::NoRepository(repository.clone()))
            }
            StatusCode::FORBIDDEN => Err(Error::Refused(repository.clone())),
            // These may succeed on a retry.
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                Err(self.transport(format!("answers {status}")))
            }
            status => Err(self.answer(&status.to_string())),
        }
    }

    fn transport(&self, error: impl ToString) -> Error {
        Error::Transport {
            endpoint: self.endpoint.clone(),
            message: error.to_string(),
            is_hub: true,
        }
    }
    fn answer(&self, answer: &str) -> Error {
        Error::Answer {
            endpoint: self.endpoint.clone(),
            answer: answer.into(),
        }
    }
}

impl FileSource for Commit<'_> {
    fn bytes(&self, path: &str, from: u64) -> Result<FileBytes, Error> {
        let Commit {
            client,
            repository,
            commit,
        } = self;
        let url = format!(
            "{}/{repository}/resolve/{commit}/{}",
            client.endpoint,
            escaped_path(path)
        );
        let response = client.get(&url, Some(from).filter(|&n| n > 0), None)?;
        client.check(&response, repository)?;
        let from = match response.status() {
            StatusCode::PARTIAL_CONTENT => {
                range(&response)
                    .ok_or_else(|| client.answer("with a part of no range"))?
                    .0
            }
            _ => 0,
        };
        Ok(FileBytes {
            from,
            reader: Box::new(response.into_body().into_reader()),
        })
    }
    fn broken(&self, message: String) -> Error {
        self.client.transport(message)
    }
    fn pause(&self) -> Duration {
        self.client.pause
    }
    fn patience(&self) -> Duration {
        self.client.patience
    }
}

/// Returns whether traffic to `endpoint` is encrypted or stays on this machine.
pub(crate) fn is_private(endpoint: &str) -> bool {
    let endpoint = endpoint.to_ascii_lowercase();
    if endpoint.starts_with("https://") {
        return true;
    }
    let rest = endpoint.strip_prefix("http://").unwrap_or(&endpoint);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // The text before an @ is a user, not a host.
    let host = authority.rsplit('@').next().unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost"
        || name
            .parse::<IpAddr>()
            .is_ok_and(|address| address.is_loopback())
}

fn parse(body: &Value) -> Option<Listing> {
    let file = |file: &Value| {
        let large = &file["lfs"];
        let sha256 = large["sha256"]
            .as_str()
            .map(str::to_ascii_lowercase)
            .filter(|s| is_sha256(s));
        let size = large["size"].as_u64().or(file["size"].as_u64())?;
        Some(RemoteFile {
            path: file["rfilename"].as_str()?.to_owned(),
            size,
            sha256,
        })
    };
    let commit = body["sha"]
        .as_str()
        .filter(|c| c.bytes().all(|b| b.is_ascii_alphanumeric()))?
        .to_owned();
    let siblings = body["siblings"].as_array()?;
    // Paths of the listing become paths in the store and are displayed.
    let files: Vec<RemoteFile> = siblings
        .iter()
        .filter_map(file)
        .filter(|f| is_safe(&f.path))
        .collect();
    Some(Listing {
        commit,
        passed_over: siblings.len() - files.len(),
        files,
    })
}

pub(crate) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tls_and_loopback_endpoints_are_private() {
        for endpoint in [
            "https://hub.example",
            "http://127.0.0.1:80",
            "http://localhost/x",
            "http://[::1]:8080",
            "http://a@127.1.2.3",
        ] {
            assert!(is_private(endpoint), "{endpoint}");
        }
        for endpoint in [
            "http://hub.example",
            "http://127.0.0.1.example:1",
            "HTTP://127.0.0.1@hub.example",
            "hub.example",
            "http://localhost.x",
            "http://[::2]",
        ] {
            assert!(!is_private(endpoint), "{endpoint}");
        }
    }
}
