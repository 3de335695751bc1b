//! Self-contained HTML pages: style, script and data are inlined.

use serde_json::Value;

/// Style sheet shared by all pages: colour scheme, tables, buttons.
pub const COMMON_STYLE: &str = include_str!("page/common.css");
/// Script shared by all pages: DOM helpers, number formatting, code blocks.
pub const COMMON_SCRIPT: &str = include_str!("page/common.js");

/// Page skeleton with placeholders, in the order in which [`render_page`] replaces them.
const SHELL: &str = include_str!("shell.html");

/// Inputs of a page.
pub struct PageParts<'a> {
    pub title: &'a str,
    /// HTML of the body.
    pub body: &'a str,
    /// Style sheets in cascade order.
    pub styles: &'a [&'a str],
    /// JSON data read by the script.
    pub data: &'a Value,
    /// Files concatenated into one script.
    pub scripts: &'a [&'a str],
}

/// Assembles a page by filling in the skeleton.
pub fn render_page(of: &PageParts) -> String {
    // JSON inside a script element: no `<` may close it early.
    let data = of.data.to_string().replace('<', "\\u003c");
    let (title, style, script) = (escaped(of.title), of.styles.concat(), of.scripts.concat());
    let body = of.body.trim_end();
    let parts = [
        ("@TITLE@", &*title),
        ("@STYLE@", &style),
        ("@BODY@", body),
        ("@DATA@", &data),
        ("@SCRIPT@", &script),
    ];
    let mut out =
        String::with_capacity(SHELL.len() + parts.iter().map(|part| part.1.len()).sum::<usize>());
    let mut rest = SHELL;
    // Each placeholder is replaced once, in page order, since the inserted text may contain the
    // same marks.
    for (mark, text) in parts {
        let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
        out.push_str(before);
        out.push_str(text);
        rest = after;
    }
    out + rest
}

/// Text as markup that shows it.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Returns the marks in `page` that refer to external resources; empty for a self-contained page.
#[cfg(test)]
pub fn outside(page: &str) -> Vec<&'static str> {
    let page = page.replace("url(#", "");
    let marks = [
        "src=",
        "href=",
        "url(",
        "@import",
        "fetch(",
        "XMLHttpRequest",
        "https:",
    ];
    marks
        .into_iter()
        .filter(|mark| page.contains(mark))
        .collect()
}
