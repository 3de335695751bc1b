//! Check of the `Host` that a request names.

use crate::app::App;
use crate::core::error::RequestError;
use axum::extract::{Request, State};
use axum::http::header::HOST;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, Uri, Version};
use axum::middleware::Next;
use axum::response::Response;
use std::net::IpAddr;
use std::sync::Arc;

/// On loopback, refuses requests for other hosts than loopback: a web site's name may resolve to it
/// (DNS rebinding).
pub async fn check(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, RequestError> {
    let named = asked(request.version(), request.uri(), request.headers())?;
    // The configured host name and allowed hosts are accepted, too.
    let mut names = app.config.name.iter().chain(&app.config.allowed_hosts);
    let mut meant = |name: &str| names.any(|meant| meant.eq_ignore_ascii_case(name));
    match named {
        Some(name) if app.config.host.is_loopback() && !is_local(&name) && !meant(&name) => {
            Err(RequestError::host())
        }
        _ => Ok(next.run(request).await),
    }
}

/// Returns the host that a request names, without its port. `None` for an HTTP/1.0 request without
/// a host, which probes and scripts send; browsers, which the check is about, always send one.
///
/// # Errors
/// When the host is missing, duplicated or malformed (RFC 9112, section 3.2), as two parsers may
/// then disagree about it.
fn asked(version: Version, uri: &Uri, headers: &HeaderMap) -> Result<Option<String>, RequestError> {
    let mut values = headers.get_all(HOST).iter();
    let named = match (values.next(), values.next()) {
        (Some(_), Some(_)) => return Err(RequestError::host_header("there is more than one Host")),
        (Some(value), None) if value.is_empty() => None,
        (Some(value), None) => {
            let authority = Authority::try_from(value.as_bytes()).ok();
            let plain = authority.filter(|authority| !authority.as_str().contains('@'));
            Some(plain.ok_or_else(|| RequestError::host_header("the Host cannot be read"))?)
        }
        (None, _) if version == Version::HTTP_10 => return Ok(uri.host().map(str::to_owned)),
        (None, _) => return Err(RequestError::host_header("there is no Host")),
    };
    match (uri.authority(), &named) {
        (Some(target), Some(named)) if target.as_str().eq_ignore_ascii_case(named.as_str()) => {}
        (None, _) => {}
        (Some(_), _) => {
            return Err(RequestError::host_header(
                "the Host is not the one of the request's target",
            ));
        }
    }
    // An empty host matches none of the allowed names.
    Ok(Some(
        named
            .map(|named| named.host().to_owned())
            .unwrap_or_default(),
    ))
}

fn is_local(name: &str) -> bool {
    let address = name
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(name);
    name.eq_ignore_ascii_case("localhost")
        || address.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::error::ErrorKind;
    use axum::http::HeaderValue;

    fn named(version: Version, uri: &str, hosts: &[&[u8]]) -> Result<Option<String>, RequestError> {
        let mut headers = HeaderMap::new();
        for host in hosts {
            headers.append(HOST, HeaderValue::from_bytes(host).unwrap());
        }
        asked(version, &uri.parse().unwrap(), &headers)
    }

    #[test]
    fn one_host_that_can_be_read() {
        let ask = |host: &str| {
            named(Version::HTTP_11, "/", &[host.as_bytes()])
                .unwrap()
                .unwrap()
        };
        assert_eq!(ask("localhost:8080"), "localhost");
        assert_eq!(ask("[::1]:80"), "[::1]");
        assert_eq!(ask("evil.example"), "evil.example");
        assert_eq!(ask(""), "");
        let whole = named(
            Version::HTTP_11,
            "http://localhost:8080/health",
            &[b"LOCALHOST:8080"],
        );
        assert_eq!(whole.unwrap().unwrap(), "LOCALHOST");
        assert_eq!(named(Version::HTTP_10, "/", &[]), Ok(None));
        assert_eq!(
            named(Version::HTTP_10, "http://evil.example/", &[])
                .unwrap()
                .unwrap(),
            "evil.example"
        );
    }

    #[test]
    fn what_two_readers_could_read_differently_is_refused() {
        for (uri, hosts) in [
            ("/", &[][..]),
            ("/", &[b"localhost".as_slice(), b"localhost"]),
            ("/", &[b"localhost", b"evil.example"]),
            ("/", &[b"localhost\xff"]),
            ("/", &[b"me@localhost"]),
            ("/", &[b"localhost, evil.example"]),
            ("/", &[b"localhost/evil"]),
            ("http://localhost/", &[b"evil.example"]),
            ("http://evil.example/", &[b"localhost"]),
            ("http://localhost:1/", &[b"localhost:2"]),
            ("http://localhost/", &[b""]),
            ("http://localhost/", &[]),
        ] {
            assert_eq!(
                named(Version::HTTP_11, uri, hosts).unwrap_err().kind,
                ErrorKind::Invalid,
                "{uri} {hosts:?}"
            );
        }
    }

    #[test]
    fn loopback_by_its_names() {
        for name in ["localhost", "LocalHost", "127.0.0.1", "127.8.9.10", "[::1]"] {
            assert!(is_local(name), "{name}");
        }
        for name in [
            "",
            "localhost.",
            "evil.example",
            "10.0.0.1",
            "[::2]",
            "[localhost]",
            "127.0.0.1]",
            "2130706433",
        ] {
            assert!(!is_local(name), "{name}");
        }
    }
}
