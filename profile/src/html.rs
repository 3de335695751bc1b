//! A page that fetches nothing: style, script and data are inside.

use serde_json::Value;

/// A colour scheme, tables, buttons: what pages have in common.
pub const COMMON_STYLE: &str = include_str!("page/common.css");
/// Elements, numbers for people, blocks of text set in.
pub const COMMON_SCRIPT: &str = include_str!("page/common.js");

/// A page with marks for what it is made of, in the order in which [`whole`] puts that in.
const SHELL: &str = include_str!("shell.html");

/// What a page is made of.
pub struct Parts<'a> {
    /// Its title.
    pub title: &'a str,
    /// What stands in its body.
    pub body: &'a str,
    /// Style sheets, the first first.
    pub styles: &'a [&'a str],
    /// What the script reads.
    pub data: &'a Value,
    /// Files of one script.
    pub scripts: &'a [&'a str],
}

/// The page.
pub fn whole(of: &Parts) -> String {
    // JSON inside a script: no `<` may end it early.
    let data = of.data.to_string().replace('<', "\\u003c");
    let (title, style, script) = (escaped(of.title), of.styles.concat(), of.scripts.concat());
    let body = of.body.trim_end();
    let parts = [("@TITLE@", &*title), ("@STYLE@", &style), ("@BODY@", body), ("@DATA@", &data), ("@SCRIPT@", &script)];
    let mut out = String::with_capacity(SHELL.len() + parts.iter().map(|part| part.1.len()).sum::<usize>());
    let mut rest = SHELL;
    // In their order in the page, and only there: what is put in may hold such marks too.
    for (mark, text) in parts {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        out.push_str(before);
        out.push_str(text);
        rest = after;
    }
    out + rest
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// What a page says that it refers to outside of itself: nothing, or the page is not whole.
#[cfg(test)]
pub fn outside(page: &str) -> Vec<&'static str> {
    let page = page.replace("url(#", "");
    let marks = ["src=", "href=", "url(", "@import", "fetch(", "XMLHttpRequest", "https:"];
    marks.into_iter().filter(|mark| page.contains(mark)).collect()
}
