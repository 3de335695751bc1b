//! JSON writer with the output format of Python's `json.dumps`, as Hugging Face's `tojson` uses it.

use std::fmt::Write as _;

use serde_json::Value as Json;

/// Options of the `tojson` filter.
#[derive(Debug, Clone, Default)]
pub(super) struct Style {
    pub ensure_ascii: bool,
    /// Spaces per level; `None` writes one line.
    pub indent: Option<usize>,
    pub sort_keys: bool,
    /// Separators between items and after keys; Python's defaults are `", "` (`","`
    /// with an indent) and `": "`.
    pub separators: Option<(String, String)>,
}

/// Appends the JSON text of `value` to `out`.
pub(super) fn write(value: &Json, style: &Style, level: usize, out: &mut String) {
    match value {
        Json::Null => out.push_str("null"),
        Json::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Json::Number(n) => out.push_str(&n.to_string()),
        Json::String(s) => write_string(s, style.ensure_ascii, out),
        Json::Array(items) => write_items(items.iter(), style, level, "[]", out, |item, out| {
            write(item, style, level + 1, out);
        }),
        Json::Object(map) => {
            let mut entries: Vec<_> = map.iter().collect();
            if style.sort_keys {
                entries.sort_by_key(|(key, _)| *key);
            }
            write_items(
                entries.into_iter(),
                style,
                level,
                "{}",
                out,
                |(key, value), out| {
                    write_string(key, style.ensure_ascii, out);
                    out.push_str(style.separators.as_ref().map_or(": ", |(_, colon)| colon));
                    write(value, style, level + 1, out);
                },
            );
        }
    }
}

fn write_items<T>(
    items: impl ExactSizeIterator<Item = T>,
    style: &Style,
    level: usize,
    brackets: &str,
    out: &mut String,
    mut write_item: impl FnMut(T, &mut String),
) {
    let (open, close) = brackets.split_at(1);
    out.push_str(open);
    let comma = match &style.separators {
        Some((comma, _)) => comma,
        None if style.indent.is_some() => ",",
        None => ", ",
    };
    let empty = items.len() == 0;
    for (i, item) in items.enumerate() {
        if i > 0 {
            out.push_str(comma);
        }
        new_line(style, level + 1, out);
        write_item(item, out);
    }
    if !empty {
        new_line(style, level, out);
    }
    out.push_str(close);
}

fn new_line(style: &Style, level: usize, out: &mut String) {
    if let Some(indent) = style.indent {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', indent * level));
    }
}

fn write_string(text: &str, ensure_ascii: bool, out: &mut String) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 || (ensure_ascii && (c as u32) >= 0x7F) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a String does not fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_python_writes_it() {
        let value: Json =
            serde_json::from_str(r#"{"b":[1,2.5,{}],"a":"é\"<\u0001😀","c":[],"n":null}"#).unwrap();
        let show = |style: Style| {
            let mut out = String::new();
            write(&value, &style, 0, &mut out);
            out
        };
        let one_line = r#"{"b": [1, 2.5, {}], "a": "é\"<\u0001😀", "c": [], "n": null}"#;
        assert_eq!(show(Style::default()), one_line);
        let ascii =
            r#"{"a": "\u00e9\"<\u0001\ud83d\ude00", "b": [1, 2.5, {}], "c": [], "n": null}"#;
        assert_eq!(
            show(Style {
                ensure_ascii: true,
                sort_keys: true,
                ..Style::default()
            }),
            ascii
        );
        let indented = "{\n  \"b\": [\n    1,\n    2.5,\n    {}\n  ],\n  \"a\": \"é\\\"<\\u0001😀\",\n  \"c\": [],\n  \"n\": null\n}";
        assert_eq!(
            show(Style {
                indent: Some(2),
                ..Style::default()
            }),
            indented
        );
    }
}
