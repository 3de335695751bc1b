//! Arguments in JSON, told as they come.

use super::parts::{Held, Part};

/// Follows a value in JSON to its end, character by character.
#[derive(Default)]
pub struct Scan {
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Scan {
    /// One more character of it.
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
    /// Is it within no string, list or object?
    pub fn is_outside(&self) -> bool {
        !self.in_string && self.depth == 0
    }
}

/// The parser of a call's arguments, an object.
#[derive(Default)]
pub struct JsonArguments {
    scan: Scan,
    begun: bool,
    done: bool,
}

impl JsonArguments {
    /// Has it ended?
    pub fn is_done(&self) -> bool {
        self.done
    }
    /// More of it; `ends` are what stands behind, where it turns out to be none. Was there something to decide?
    pub fn step(&mut self, held: &mut Held, ends: &[&'static str], parts: &mut Vec<Part>) -> bool {
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
            parts.push(Part::Arguments(text));
        }
        self.done
    }
    /// Arguments that are no object: a string that holds one, or nothing.
    fn other(&mut self, held: &mut Held, ends: &[&'static str], parts: &mut Vec<Part>) -> bool {
        let Some((before, end)) = held.until(ends) else { return false };
        self.done = true;
        let rest = held.take();
        held.push(end);
        held.push(&rest);
        parts.push(Part::Arguments(object(&before)));
        true
    }
    /// The end; `cut` if more would have come.
    pub fn finish(&self, held: &str, cut: bool, parts: &mut Vec<Part>) {
        if !self.begun && !cut {
            parts.push(Part::Arguments(object(held)));
        }
    }
}

/// The object that a text is, or a string that it is holds; an empty one where there is none.
fn object(text: &str) -> String {
    let inner = serde_json::from_str::<String>(text.trim()).unwrap_or_else(|_| text.to_owned());
    let is_object = inner.trim_start().starts_with('{');
    if is_object { inner } else { "{}".into() }
}
