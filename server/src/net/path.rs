//! Paths as clients spell them: repeated and trailing slashes, base URLs without `/v1`.

use axum::http::Uri;
use axum::http::uri::PathAndQuery;
use std::borrow::Cow;

/// Paths below `/v1` that are served without it, too, and twice under it for base URLs that end in
/// `/v1` already.
const BELOW_V1: &[&str] = &[
    "chat/completions",
    "embeddings",
    "rerank",
    "models",
    "responses",
    "messages",
    "messages/count_tokens",
    "loads",
];

/// Paths that are served below `/v1` as well.
const ALSO_BELOW_V1: &[&str] = &[
    "health",
    "metrics",
    "tokenize",
    "detokenize",
    "infill",
    "props",
    "slots",
    "apply-template",
];

/// Rewrites a URI to the path that is served. The query stays.
pub fn normalise(uri: &mut Uri) {
    let path = meant(uri.path());
    if path == uri.path() {
        return;
    }
    let target = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.into_owned(),
    };
    let Ok(target) = target.parse::<PathAndQuery>() else {
        return;
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(target);
    if let Ok(other) = Uri::from_parts(parts) {
        *uri = other;
    }
}

/// Returns the path that is meant by another spelling.
fn meant(path: &str) -> Cow<'_, str> {
    let mut path = Cow::Borrowed(path);
    if path.contains("//") || (path.len() > 1 && path.ends_with('/')) {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        path = Cow::Owned(format!("/{}", parts.join("/")));
    }
    if path.starts_with("/v1/v1/") {
        path = Cow::Owned(path["/v1".len()..].to_owned());
    }
    let Some(name) = path.strip_prefix('/') else {
        return path;
    };
    let is_below = BELOW_V1.contains(&name) || name.starts_with("models/");
    if is_below {
        return Cow::Owned(format!("/v1/{name}"));
    }
    match name.strip_prefix("v1/") {
        Some(name) if ALSO_BELOW_V1.contains(&name) => Cow::Owned(format!("/{name}")),
        _ => path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_found_as_clients_spell_it() {
        for (asked, served) in [
            ("/v1/chat/completions/", "/v1/chat/completions"),
            ("//v1///chat/completions", "/v1/chat/completions"),
            ("/chat/completions", "/v1/chat/completions"),
            ("/v1/v1/messages?beta=true", "/v1/messages?beta=true"),
            ("/rerank", "/v1/rerank"),
            ("/v2/rerank/", "/v2/rerank"),
            ("/models/one/tiny", "/v1/models/one/tiny"),
            ("/api/chat/", "/api/chat"),
            ("/v1/health", "/health"),
            ("/v1/completions", "/v1/completions"),
            ("/completion", "/completion"),
            ("/", "/"),
            ("//", "/"),
            ("http://localhost/models/", "http://localhost/v1/models"),
        ] {
            let mut uri: Uri = asked.parse().unwrap();
            normalise(&mut uri);
            assert_eq!(uri.to_string(), served, "{asked}");
        }
    }
}
