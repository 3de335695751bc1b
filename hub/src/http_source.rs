//! Downloads files from plain HTTP servers, which have neither listings nor checksums.
//!
//! The response headers are the only information on such a file: its size, and a validator (`ETag`
//! or `Last-Modified`) of its version.

use crate::client::{Client, agent, is_private};
use crate::error::Error;
use crate::repository::{Name, Repository, escaped_path};
use crate::source::{FileBytes, FileSource, range};
use sha2::{Digest, Sha256};
use std::io::Read;
use std::time::Duration;
use ureq::http::uri::{Authority, Scheme};
use ureq::http::{Response, StatusCode, Uri, header};
use ureq::{Agent, Body};

/// Maximum number of redirections: a release page redirects to a store, and that
/// possibly to a mirror.
const MAX_REDIRECTS: usize = 5;

/// A file of an HTTP server, opened at one version.
pub(crate) struct Elsewhere<'a> {
    agent: Agent,
    client: &'a Client,
    name: Name,
    facts: Facts,
}

/// Size and validator of a file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Facts {
    size: u64,
    /// A strong entity tag, else the `Last-Modified` date.
    mark: Option<String>,
}

impl<'a> Elsewhere<'a> {
    /// Requests the first bytes of the file and compares them with `begins`.
    ///
    /// # Errors
    /// When the request fails or the bytes differ, so the file is not a model.
    pub fn open(client: &'a Client, name: &Name, begins: [u8; 4]) -> Result<Elsewhere<'a>, Error> {
        let agent = agent().max_redirects(0).build().into();
        // Errors display the name, which is shown without its query.
        let mut file = Elsewhere {
            agent,
            client,
            name: name.clone(),
            facts: Facts::default(),
        };
        let most = begins.len() as u64;
        let response = file.get(Some(&format!("bytes=0-{}", most - 1)), None)?;
        file.facts = file.facts_of(&response)?;
        let mut first = Vec::new();
        response
            .into_body()
            .into_reader()
            .take(most)
            .read_to_end(&mut first)
            .map_err(|e| file.broken(e.to_string()))?;
        match first == begins {
            true => Ok(file),
            false if first.starts_with(b"<") => {
                Err(file.wrong("the address returns a web page, not a model"))
            }
            false => Err(file.wrong("the file does not begin with the signature of a model file")),
        }
    }
    /// Returns the size of the file in bytes.
    pub fn size(&self) -> u64 {
        self.facts.size
    }
    /// Returns whether the server sends a validator, so that a partial file can be resumed.
    pub fn is_marked(&self) -> bool {
        self.facts.mark.is_some()
    }
    /// Returns a hash of size and validator in hexadecimal, which identifies this version.
    pub fn version(&self) -> String {
        let facts = format!(
            "{} {}",
            self.facts.size,
            self.facts.mark.as_deref().unwrap_or_default()
        );
        Sha256::digest(facts)
            .iter()
            .map(|b| format!("{b:02x}"))
            .collect()
    }

    /// Sends a GET with an optional range and `If-Range` validator, and follows redirections.
    fn get(&self, range: Option<&str>, mark: Option<&str>) -> Result<Response<Body>, Error> {
        let path = escaped_path(self.name.file.as_deref().unwrap_or_default());
        let query = self
            .name
            .query
            .as_ref()
            .map(|query| format!("?{query}"))
            .unwrap_or_default();
        let mut address = format!("{}/{path}{query}", self.name.repository);
        for _ in 0..=MAX_REDIRECTS {
            self.may_ask(&address)?;
            let mut request = self.agent.get(&address);
            for (name, value) in [(header::RANGE, range), (header::IF_RANGE, mark)] {
                request = value
                    .into_iter()
                    .fold(request, |request, value| request.header(&name, value));
            }
            let response = request.call().map_err(|e| self.broken(e.to_string()))?;
            let status = response.status();
            if status.is_success() {
                return Ok(response);
            } else if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
                // These may succeed on a retry.
                return Err(self.broken(format!("answers {status}")));
            } else if !status.is_redirection() {
                return Err(self.wrong(&format!("the server answers {status}")));
            }
            let location = response
                .headers()
                .get(header::LOCATION)
                .and_then(|to| to.to_str().ok());
            let to = location.and_then(|to| sent_on(&address, to));
            address = to.ok_or_else(|| self.wrong("the server redirects to an invalid address"))?;
        }
        Err(self.wrong(&format!(
            "the server redirects more than {MAX_REDIRECTS} times"
        )))
    }
    /// Checks an address before a request, including the target of a redirection.
    ///
    /// Allowed are https; and, unless the name itself is https, loopback addresses and, if the user
    /// permits it, any address.
    fn may_ask(&self, address: &str) -> Result<(), Error> {
        let is_https = |address: &str| address.starts_with("https://");
        let began = self.name.repository.to_string();
        if is_https(address)
            || !is_https(&began) && (self.client.allows_http() || is_private(address))
        {
            return Ok(());
        }
        // The path may contain a key, so the error shows only scheme and host.
        Err(Error::Plain(
            address.splitn(4, '/').take(3).collect::<Vec<_>>().join("/"),
        ))
    }
    fn facts_of(&self, response: &Response<Body>) -> Result<Facts, Error> {
        let headers = response.headers();
        let text = |name| {
            headers
                .get(name)
                .and_then(|value: &header::HeaderValue| value.to_str().ok())
        };
        if text(header::CONTENT_ENCODING)
            .is_some_and(|encoding| !encoding.eq_ignore_ascii_case("identity"))
        {
            return Err(
                self.wrong("the server compresses the file although the request does not allow it")
            );
        }
        let size = match response.status() {
            StatusCode::PARTIAL_CONTENT => range(response).and_then(|(_, whole)| whole),
            _ => text(header::CONTENT_LENGTH).and_then(|length| length.parse().ok()),
        };
        let size =
            size.ok_or_else(|| self.wrong("the server does not send the length of the file"))?;
        // A weak tag (`W/`) does not guarantee equal bytes.
        let tag = text(header::ETAG).filter(|tag| tag.starts_with('"'));
        Ok(Facts {
            size,
            mark: tag.or(text(header::LAST_MODIFIED)).map(str::to_owned),
        })
    }
    fn wrong(&self, message: &str) -> Error {
        Error::Elsewhere {
            name: self.name.to_string(),
            message: message.into(),
        }
    }
}

impl FileSource for Elsewhere<'_> {
    fn bytes(&self, _: &str, from: u64) -> Result<FileBytes, Error> {
        let mark = self.facts.mark.as_deref().filter(|_| from > 0);
        let wanted = mark.map(|_| format!("bytes={from}-"));
        let response = self.get(wanted.as_deref(), mark)?;
        if self.facts_of(&response)? != self.facts {
            return Err(self.wrong("the file on the server has changed"));
        }
        let from = match response.status() {
            StatusCode::PARTIAL_CONTENT => range(&response).map(|(from, _)| from),
            _ => Some(0),
        };
        let from = from.ok_or_else(|| {
            self.wrong("the server sends a partial response without a valid range")
        })?;
        Ok(FileBytes {
            from,
            reader: Box::new(response.into_body().into_reader()),
        })
    }
    fn broken(&self, message: String) -> Error {
        Error::Transport {
            endpoint: self.name.repository.to_string(),
            message,
            is_hub: false,
        }
    }
    fn pause(&self) -> Duration {
        self.client.pause
    }
    fn patience(&self) -> Duration {
        self.client.patience
    }
}

/// Returns the names of all parts of the split model that the file belongs to, or its own name.
pub(crate) fn files(name: &Name) -> Vec<Name> {
    let file = name.file.as_deref().unwrap_or_default();
    let with = |file: String| Name {
        file: Some(file),
        ..name.clone()
    };
    match crate::file_name::split_part(file) {
        Some((stem, number, count)) if (1..=count).contains(&number) => {
            let ending = &file[file.len() - crate::repository::ENDING.len()..];
            (1..=count)
                .map(|i| with(format!("{stem}-{i:05}-of-{count:05}{ending}")))
                .collect()
        }
        _ => vec![name.clone()],
    }
}

/// Resolves a `Location` header against the address of the request.
fn sent_on(from: &str, location: &str) -> Option<String> {
    let from: Uri = from.parse().ok()?;
    let (scheme, authority): (&Scheme, &Authority) = (from.scheme()?, from.authority()?);
    let location = location.split('#').next().unwrap_or_default();
    let to = match location {
        "" => return None,
        to if to.starts_with("//") => format!("{scheme}:{to}"),
        to if to.starts_with('/') => format!("{scheme}://{authority}{to}"),
        to if to.contains("://") => to.to_owned(),
        to => {
            let folder = from
                .path()
                .rsplit_once('/')
                .map_or("", |(folder, _)| folder);
            format!("{scheme}://{authority}{folder}/{to}")
        }
    };
    let to: Uri = to.parse().ok()?;
    // `Uri` lower-cases the scheme, on which the check of encryption depends.
    to.authority()?;
    matches!(to.scheme_str()?, "https" | "http").then(|| to.to_string())
}

/// Returns whether the name is of an HTTP server and not of the hub.
pub(crate) fn is_elsewhere(name: &Name) -> bool {
    matches!(name.repository, Repository::Server { .. })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_server_sends_on_to() {
        let from = "http://a.example:8080/b/c.gguf?d";
        for (location, to) in [
            ("https://e.example/f", Some("https://e.example/f")),
            ("HTTPS://e.example/f#g", Some("https://e.example/f")),
            ("/f?g=h", Some("http://a.example:8080/f?g=h")),
            ("//e.example/f", Some("http://e.example/f")),
            ("f.gguf", Some("http://a.example:8080/b/f.gguf")),
            ("", None),
            ("file:///etc/passwd", None),
            ("ftp://e.example/f", None),
            ("http:///f", None),
        ] {
            assert_eq!(sent_on(from, location).as_deref(), to, "{location}");
        }
    }

    #[test]
    fn a_part_stands_for_all() {
        let files = |text: &str| -> Vec<String> {
            files(&Name::parse(text).unwrap().unwrap())
                .iter()
                .map(|name| name.file.clone().unwrap())
                .collect()
        };
        let both = ["a/m-00001-of-00002.GGUF", "a/m-00002-of-00002.GGUF"];
        assert_eq!(files("https://e.example/a/m-00002-of-00002.GGUF"), both);
        for one in ["a/m.gguf", "m-00003-of-00002.gguf", "m-00000-of-00000.gguf"] {
            assert_eq!(files(&format!("https://e.example/{one}")), [one]);
        }
    }
}
