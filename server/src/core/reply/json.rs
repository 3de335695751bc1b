//! A call in JSON: `{"name": …, "arguments": {…}}`, the arguments told as they come.

use super::parts::Part;

/// The parser of one call. It follows the outermost object alone; what is within values is passed on as it is.
#[derive(Default)]
pub struct JsonCall {
    phase: Phase,
    /// The text so far, while it is not certain that it is a call.
    raw: String,
    key: String,
    value: String,
    depth: usize,
    in_string: bool,
    escaped: bool,
    named: bool,
    /// Arguments that came before the name.
    early: Option<String>,
    told: bool,
}

#[derive(Default, PartialEq, Clone, Copy)]
enum Phase {
    #[default]
    Open,
    /// Before a key.
    Before,
    Key,
    /// Between a key and its value.
    Colon,
    Value,
    Done,
}

/// Names that models give the arguments.
const ARGUMENTS: &[&str] = &["arguments", "parameters"];

impl JsonCall {
    /// Has its object ended?
    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }
    /// The text, if it was no call after all.
    pub fn abandon(self) -> Option<String> {
        (!self.named).then_some(self.raw)
    }
    /// More text; how many bytes of it belong to the call.
    pub fn push(&mut self, text: &str, parts: &mut Vec<Part>) -> usize {
        let mut live = String::new();
        let mut used = 0;
        for c in text.chars() {
            if self.is_done() {
                break;
            }
            used += c.len_utf8();
            if !self.named {
                self.raw.push(c);
            }
            self.next(c, &mut live, parts);
        }
        self.tell(live, parts);
        used
    }
    fn next(&mut self, c: char, live: &mut String, parts: &mut Vec<Part>) {
        match self.phase {
            Phase::Open if c == '{' => self.phase = Phase::Before,
            Phase::Before if c == '"' => {
                self.value = c.into();
                self.phase = Phase::Key;
            }
            Phase::Before if c == '}' => self.end(parts),
            Phase::Key => {
                self.value.push(c);
                if !self.escaped && c == '"' {
                    self.key = serde_json::from_str(&self.value).unwrap_or_default();
                    self.phase = Phase::Colon;
                }
                self.escaped = !self.escaped && c == '\\';
            }
            Phase::Colon if c == ':' => {
                self.value.clear();
                self.phase = Phase::Value;
            }
            Phase::Value if !self.in_string && self.depth == 0 && (c == ',' || c == '}') => {
                self.tell(std::mem::take(live), parts);
                self.end_value(parts);
                if c == ',' { self.phase = Phase::Before } else { self.end(parts) }
            }
            Phase::Value => self.value(c, live),
            Phase::Open | Phase::Before | Phase::Colon | Phase::Done => {}
        }
    }
    fn value(&mut self, c: char, live: &mut String) {
        if self.value.is_empty() && c.is_whitespace() {
            return;
        }
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
        self.value.push(c);
        if self.named && self.is_arguments() && !self.value.starts_with('"') {
            live.push(c);
        }
    }
    fn is_arguments(&self) -> bool {
        ARGUMENTS.contains(&self.key.as_str())
    }
    fn end_value(&mut self, parts: &mut Vec<Part>) {
        let value = std::mem::take(&mut self.value);
        let value = value.trim_end();
        if self.key == "name" {
            if let (false, Ok(name)) = (self.named, serde_json::from_str::<String>(value)) {
                self.named = true;
                parts.push(Part::Call(name));
                let early = self.early.take().unwrap_or_default();
                self.tell(early, parts);
            }
        } else if self.is_arguments() {
            // Some models write the arguments as a string that holds JSON.
            let whole = match value.starts_with('"') {
                true => serde_json::from_str::<String>(value).unwrap_or_default(),
                false => value.to_owned(),
            };
            if !self.named {
                self.early = Some(whole);
            } else if value.starts_with('"') {
                self.tell(whole, parts);
            }
        }
    }
    fn end(&mut self, parts: &mut Vec<Part>) {
        self.phase = Phase::Done;
        if self.named && !self.told {
            self.tell("{}".into(), parts);
        }
    }
    fn tell(&mut self, text: String, parts: &mut Vec<Part>) {
        if !text.is_empty() {
            self.told = true;
            parts.push(Part::Arguments(text));
        }
    }
}
