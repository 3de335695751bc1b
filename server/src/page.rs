//! The chat page: static files embedded in the program. There is no build step, and nothing is
//! loaded from other servers.

use axum::Router;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// A file of the page.
#[derive(Clone, Copy)]
struct Part {
    path: &'static str,
    text: &'static str,
}

macro_rules! parts { ($($name:literal),* $(,)?) => { [$(Part { path: $name, text: include_str!(concat!("page/", $name)) }),*] } }

/// File that is served at `/`.
const INDEX: Part = Part {
    path: "index.html",
    text: include_str!("page/index.html"),
};
/// Files that are served under `/page/`.
const PARTS: &[Part] = &parts![
    "answers.js",
    "api.js",
    "blocks.js",
    "chats.js",
    "composer.js",
    "context.js",
    "conversation.js",
    "dialogs.css",
    "dialogs.js",
    "dom.js",
    "entities.js",
    "events.js",
    "frame.js",
    "highlight.js",
    "ideas.js",
    "inline.js",
    "main.js",
    "markdown.js",
    "menu.js",
    "messages.css",
    "messages.js",
    "models.js",
    "page.css",
    "portable.js",
    "request.js",
    "server.js",
    "sidebar.js",
    "store.js",
    "tex/commands.js",
    "tex/environments.js",
    "tex/mathml.js",
    "tex/parse.js",
    "tex/symbols.js",
];

/// Content security policy: the page runs its own scripts and connects to this server only. With
/// trusted types, no text of a model can become a script or markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// Returns the routes of the page.
pub fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    PARTS
        .iter()
        .fold(Router::new().route("/", route(INDEX)), |router, &part| {
            router.route(&format!("/page/{}", part.path), route(part))
        })
}

/// Returns the page itself, for a browser that arrives while the server is still loading.
pub fn index() -> Response {
    answer(INDEX, &tag(INDEX), &HeaderMap::new())
}

/// Returns whether the path is that of a file of the page.
pub fn is_part(path: &str) -> bool {
    path.strip_prefix("/page/")
        .is_some_and(|name| PARTS.iter().any(|part| part.path == name))
}

fn tag(part: Part) -> String {
    format!("\"{}\"", &blake3::hash(part.text.as_bytes()).to_hex()[..32])
}

fn route<S: Clone + Send + Sync + 'static>(part: Part) -> axum::routing::MethodRouter<S> {
    let tag = tag(part);
    get(async move |headers: HeaderMap| answer(part, &tag, &headers))
}

/// Responds with the file, or with 304 if the browser has it. Browsers must revalidate each time,
/// as another version of the program has other files at the same paths.
fn answer(part: Part, tag: &str, asked: &HeaderMap) -> Response {
    let held = asked
        .get_all(header::IF_NONE_MATCH)
        .iter()
        .filter_map(|value| value.to_str().ok());
    let is_held = held
        .flat_map(|tags| tags.split(','))
        .any(|held| held.trim().trim_start_matches("W/") == tag);
    let mut response = match is_held {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => ([(header::CONTENT_TYPE, media_type(part.path))], part.text).into_response(),
    };
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(
        header::CONTENT_SECURITY_POLICY,
        HeaderValue::from_static(POLICY),
    );
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    headers.insert(
        header::REFERRER_POLICY,
        HeaderValue::from_static("no-referrer"),
    );
    if let Ok(tag) = HeaderValue::from_str(tag) {
        headers.insert(header::ETAG, tag);
    }
    response
}

fn media_type(path: &str) -> &'static str {
    match path.rsplit_once('.') {
        Some((_, "js")) => "text/javascript; charset=utf-8",
        Some((_, "css")) => "text/css; charset=utf-8",
        _ => "text/html; charset=utf-8",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Returns the files that `import … from './x.js'`, `href` and `src` of a file name, as paths
    /// under `/page/`.
    fn named(part: Part) -> Vec<String> {
        let folder = part
            .path
            .rsplit_once('/')
            .map_or(String::new(), |(folder, _)| format!("{folder}/"));
        let imports = part
            .text
            .lines()
            .filter(|line| line.starts_with("import "))
            .filter_map(|line| {
                let path = line.split('\'').nth(1)?;
                Some(path.strip_prefix("./").map_or_else(
                    || path.trim_start_matches("../").to_owned(),
                    |path| folder.clone() + path,
                ))
            });
        let links = part
            .text
            .split("=\"page/")
            .skip(1)
            .filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()));
        imports.chain(links).collect()
    }

    #[test]
    fn every_file_is_reached_and_every_name_is_a_file() {
        let mut reached = BTreeSet::new();
        let mut ahead = named(INDEX);
        while let Some(path) = ahead.pop() {
            let part = PARTS
                .iter()
                .find(|part| part.path == path)
                .unwrap_or_else(|| panic!("there is no {path}"));
            if reached.insert(part.path) {
                ahead.extend(named(*part));
            }
        }
        assert_eq!(reached, PARTS.iter().map(|part| part.path).collect());
    }

    #[test]
    fn files_are_short_and_ask_nobody_else() {
        for part in PARTS.iter().chain([&INDEX]) {
            assert!(part.text.lines().count() <= 500, "{}", part.path);
            let outside = [
                "src=\"http",
                "href=\"http",
                "@import",
                "url(",
                "innerHTML",
                "style=\"",
                " onclick=\"",
            ];
            assert_eq!(
                outside.iter().find(|text| part.text.contains(*text)),
                None,
                "{}",
                part.path
            );
        }
    }

    #[test]
    fn who_has_a_file_is_told_so() {
        let asked = |tag: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::IF_NONE_MATCH, tag.parse().unwrap());
            answer(INDEX, "\"abc\"", &headers).status()
        };
        assert_eq!(asked("\"abc\""), StatusCode::NOT_MODIFIED);
        assert_eq!(asked("W/\"x\", W/\"abc\""), StatusCode::NOT_MODIFIED);
        assert_eq!(asked("\"abd\""), StatusCode::OK);
    }
}
