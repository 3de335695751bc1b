//! Streaming parser of JSON arguments.

use super::parts::{HeldText, ReplyPart};

/// Tracks strings and nesting of a JSON value to find its end.
#[derive(Default)]
pub struct Scan {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Scan {
    /// Adds the next character of the value.
    pub fn next(&mut self, c: char) {
        if self.in_string {
            self.in_string = self.escaped || c != '"';
            self.escaped = !self.escaped && c == '\\';
        } else {
            match c {
                '"' => self.in_string = true,
                '{' | '[' => self.depth += 1,
                '}' | ']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }
    /// Returns true outside strings, lists and objects.
    pub fn is_outside(&self) -> bool {
        !self.in_string && self.depth == 0
    }
}

/// Streaming parser of a call's arguments object.
#[derive(Default)]
pub struct JsonArguments {
    scan: Scan,
    begun: bool,
    done: bool,
}

impl JsonArguments {
    /// Returns true after the end of the object.
    pub fn is_done(&self) -> bool {
        self.done
    }
    /// Consumes text of `held`; `ends` are the delimiters that may follow if the arguments are not
    /// an object. Returns false if more text is needed.
    pub fn step(
        &mut self,
        held: &mut HeldText,
        ends: &[&'static str],
        parts: &mut Vec<ReplyPart>,
    ) -> bool {
        if !self.begun {
            held.trim();
            match held.text().chars().next() {
                None => return false,
                Some('{') => self.begun = true,
                Some(_) => return self.other(held, ends, parts),
            }
        }
        let mut end = 0;
        for c in held.text().chars() {
            self.scan.next(c);
            end += c.len_utf8();
            if self.scan.is_outside() {
                self.done = true;
                break;
            }
        }
        let text = held.split(end);
        if !text.is_empty() {
            parts.push(ReplyPart::Arguments(text));
        }
        self.done
    }
    /// Handles arguments that are not an object: a string that contains one, or nothing.
    fn other(
        &mut self,
        held: &mut HeldText,
        ends: &[&'static str],
        parts: &mut Vec<ReplyPart>,
    ) -> bool {
        let Some((before, end)) = held.until(ends) else {
            return false;
        };
        self.done = true;
        let rest = held.take();
        held.push(end);
        held.push(&rest);
        parts.push(ReplyPart::Arguments(object(&before)));
        true
    }
    /// Ends the input; `cut` if generation was truncated.
    pub fn finish(&self, held: &str, cut: bool, parts: &mut Vec<ReplyPart>) {
        if !self.begun && !cut {
            parts.push(ReplyPart::Arguments(object(held)));
        }
    }
}

/// Returns the JSON object in `text`, directly or within a JSON string; `{}` if there is none.
fn object(text: &str) -> String {
    let inner = serde_json::from_str::<String>(text.trim()).unwrap_or_else(|_| text.to_owned());
    let is_object = inner.trim_start().starts_with('{');
    if is_object { inner } else { "{}".into() }
}
