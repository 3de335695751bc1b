//! What the hub is asked: what a repository holds, and the bytes of its files.

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

/// The hub that is meant unless `HF_ENDPOINT` names another.
const DEFAULT: &str = "https://huggingface.co";
/// Branch of a repository.
const BRANCH: &str = "main";
/// More than any listing.
const LISTING_BYTES: u64 = 64 << 20;
/// Silence after which a connection counts as broken.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for a whole listing, however slowly its bytes drip: the largest of the hub's, some 2 MB, take a second.
const LISTING_TIME: Duration = Duration::from_secs(120);

/// A file of the hub.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemoteFile {
    /// Its path in the repository.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// SHA-256 in hexadecimal, where the hub knows it: of all large files.
    pub sha256: Option<String>,
}

/// What a repository holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listing {
    /// The commit that this is true of.
    pub commit: String,
    /// Its files: those whose names show what they are.
    pub files: Vec<RemoteFile>,
    /// How many others there are.
    pub passed_over: usize,
}

/// A hub, and who asks.
pub struct Client {
    agent: Agent,
    endpoint: String,
    token: Option<String>,
    allow_http: bool,
    /// How long to wait before a request that failed is sent again.
    pub(crate) pause: Duration,
}

/// The files of a repository at a commit.
pub(crate) struct Commit<'a> {
    pub client: &'a Client,
    pub repository: &'a Repository,
    pub commit: &'a str,
}

/// How anything is asked.
pub(crate) fn agent() -> ConfigBuilder<AgentScope> {
    let config = Agent::config_builder();
    let config = config.http_status_as_error(false).user_agent(concat!("gristmill/", env!("CARGO_PKG_VERSION")));
    config
        .timeout_connect(Some(READ_TIMEOUT))
        .timeout_recv_response(Some(READ_TIMEOUT))
        .timeout_per_read(Some(READ_TIMEOUT))
}

impl Client {
    /// The hub at `endpoint`, asked with that token.
    pub fn new(endpoint: &str, token: Option<String>) -> Client {
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        // A redirection may not lead to where everybody on the way can read and change what comes.
        let config = agent().https_only(endpoint.to_ascii_lowercase().starts_with("https://")).build();
        Client { agent: config.into(), endpoint, token, allow_http: false, pause: Duration::from_secs(1) }
    }
    /// The hub of the environment: `HF_ENDPOINT`, asked with `HF_TOKEN`; other servers without encryption where
    /// `GRISTMILL_ALLOW_HTTP` is 1.
    pub fn from_environment() -> Client {
        let variable = |name| std::env::var(name).ok().filter(|v| !v.trim().is_empty());
        let client = Client::new(&variable("HF_ENDPOINT").unwrap_or(DEFAULT.into()), variable("HF_TOKEN"));
        client.allow_http(variable("GRISTMILL_ALLOW_HTTP").as_deref() == Some("1"))
    }
    /// May servers that are no hub be asked without encryption? On this machine they may.
    pub fn allow_http(mut self, allow: bool) -> Client {
        self.allow_http = allow;
        self
    }
    pub(crate) fn allows_http(&self) -> bool {
        self.allow_http
    }
    /// That pause between tries instead of a second.
    pub fn pause(mut self, pause: Duration) -> Client {
        self.pause = pause;
        self
    }
    /// The hub's address.
    pub fn endpoint(&self) -> &str {
        &self.endpoint
    }

    /// What a repository holds now.
    ///
    /// # Errors
    /// When there is none of that name, it is closed to this user, or the hub does not answer.
    pub fn listing(&self, repository: &Repository) -> Result<Listing, Error> {
        let url = format!("{}/api/models/{repository}/revision/{BRANCH}?blobs=true", self.endpoint);
        let mut response = self.get(&url, None, Some(LISTING_TIME))?;
        self.check(&response, repository)?;
        let body = response.body_mut().with_config().limit(LISTING_BYTES).read_to_string();
        let body = body.map_err(|e| self.transport(e))?;
        let listing = serde_json::from_str(&body).ok().as_ref().and_then(parse);
        listing.ok_or_else(|| self.answer("with something that is no listing of a repository"))
    }

    /// Asks for bytes from `from` on, which all have come after `most`.
    fn get(&self, url: &str, from: Option<u64>, most: Option<Duration>) -> Result<Response<Body>, Error> {
        let mut request = self.agent.get(url).config().timeout_global(most).build();
        // ureq takes it off where a redirection leads to another host.
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
            // To who has no token the hub does not say which of them are there.
            StatusCode::NOT_FOUND | StatusCode::UNAUTHORIZED => Err(Error::NoRepository(repository.clone())),
            StatusCode::FORBIDDEN => Err(Error::Refused(repository.clone())),
            // What may be better a moment later.
            status if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                Err(self.transport(format!("answers {status}")))
            }
            status => Err(self.answer(&status.to_string())),
        }
    }

    fn transport(&self, error: impl ToString) -> Error {
        Error::Transport { endpoint: self.endpoint.clone(), message: error.to_string(), is_hub: true }
    }
    fn answer(&self, answer: &str) -> Error {
        Error::Answer { endpoint: self.endpoint.clone(), answer: answer.into() }
    }
}

impl FileSource for Commit<'_> {
    fn bytes(&self, path: &str, from: u64) -> Result<FileBytes, Error> {
        let Commit { client, repository, commit } = self;
        let url = format!("{}/{repository}/resolve/{commit}/{}", client.endpoint, escaped_path(path));
        let response = client.get(&url, Some(from).filter(|&n| n > 0), None)?;
        client.check(&response, repository)?;
        let from = match response.status() {
            StatusCode::PARTIAL_CONTENT => range(&response).ok_or_else(|| client.answer("with a part of no range"))?.0,
            _ => 0,
        };
        Ok(FileBytes { from, reader: Box::new(response.into_body().into_reader()) })
    }
    fn broken(&self, message: String) -> Error {
        self.client.transport(message)
    }
    fn pause(&self) -> Duration {
        self.client.pause
    }
}

/// Can nobody on the way read what is sent: is it encrypted, or does it stay on this machine?
pub(crate) fn is_private(endpoint: &str) -> bool {
    let endpoint = endpoint.to_ascii_lowercase();
    if endpoint.starts_with("https://") {
        return true;
    }
    let rest = endpoint.strip_prefix("http://").unwrap_or(&endpoint);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    // Who is named before an @ is a user, not a host.
    let host = authority.rsplit('@').next().unwrap_or_default();
    let name = match host.strip_prefix('[') {
        Some(address) => address.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

fn parse(body: &Value) -> Option<Listing> {
    let file = |file: &Value| {
        let large = &file["lfs"];
        let sha256 = large["sha256"].as_str().map(str::to_ascii_lowercase).filter(|s| is_sha256(s));
        let size = large["size"].as_u64().or(file["size"].as_u64())?;
        Some(RemoteFile { path: file["rfilename"].as_str()?.to_owned(), size, sha256 })
    };
    let commit = body["sha"].as_str().filter(|c| c.bytes().all(|b| b.is_ascii_alphanumeric()))?.to_owned();
    let siblings = body["siblings"].as_array()?;
    // Its paths become ours, and are shown.
    let files: Vec<RemoteFile> = siblings.iter().filter_map(file).filter(|f| is_safe(&f.path)).collect();
    Some(Listing { commit, passed_over: siblings.len() - files.len(), files })
}

pub(crate) fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_goes_where_nobody_reads_it() {
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
