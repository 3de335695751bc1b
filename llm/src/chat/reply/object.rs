//! Streaming parser of a call that is one JSON object: `{"name": …, "arguments": {…}}`.

use super::parts::ReplyPart;
use super::schemas::Schemas;
use super::values::Scan;

/// Parses only the outermost object; values are passed through unchanged.
#[derive(Default)]
pub struct ObjectCall {
    phase: Phase,
    /// Text consumed so far, until it is certainly a call.
    raw: String,
    key: String,
    value: String,
    scan: Scan,
    /// True within a key after a backslash.
    escaped: bool,
    named: bool,
    /// Known tools, if an object without a known name is text.
    only: Option<Schemas>,
    /// Whether an object without arguments is text.
    strict: bool,
    /// Name of a known tool, until the arguments begin.
    pending: Option<String>,
    /// Arguments that preceded the name.
    early: Option<String>,
    told: bool,
}

#[derive(Default, PartialEq, Clone, Copy)]
enum Phase {
    #[default]
    Open,
    Before,
    Key,
    Colon,
    Value,
    Done,
    /// The object is not a call.
    Other,
}

/// Keys that models use for the arguments.
const ARGUMENTS: &[&str] = &["arguments", "parameters"];
/// Other keys that a call may have.
const OTHERS: &[&str] = &["name", "type", "id"];

impl ObjectCall {
    /// Creates a parser for an object that is a call only if it names one of these tools and, if
    /// `strict`, has arguments.
    pub fn new(tools: Schemas, strict: bool) -> ObjectCall {
        ObjectCall {
            only: Some(tools),
            strict,
            ..ObjectCall::default()
        }
    }
    /// Returns true if the object is not a call.
    pub fn is_other(&self) -> bool {
        self.phase == Phase::Other
    }
    /// Returns true after the end of the object.
    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }
    /// Returns the text if the object is not a call.
    pub fn abandon(self) -> Option<String> {
        (!self.named).then_some(self.raw)
    }
    /// Consumes text and returns the number of bytes that belong to the call.
    pub fn push(&mut self, text: &str, parts: &mut Vec<ReplyPart>) -> usize {
        let mut live = String::new();
        let mut used = 0;
        for c in text.chars() {
            if self.is_done() || self.is_other() {
                break;
            }
            used += c.len_utf8();
            if !self.named {
                self.raw.push(c);
            }
            self.next(c, &mut live, parts);
        }
        self.emit(live, parts);
        used
    }
    fn next(&mut self, c: char, live: &mut String, parts: &mut Vec<ReplyPart>) {
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
                    let known = ARGUMENTS.contains(&self.key.as_str())
                        || OTHERS.contains(&self.key.as_str());
                    let other = self.only.is_some() && !self.named && !known;
                    self.phase = if other { Phase::Other } else { Phase::Colon };
                    if self.is_arguments()
                        && let Some(name) = self.pending.take()
                    {
                        self.begin(name, parts);
                    }
                }
                self.escaped = !self.escaped && c == '\\';
            }
            Phase::Colon if c == ':' => {
                self.value.clear();
                self.phase = Phase::Value;
            }
            Phase::Value if self.scan.is_outside() && (c == ',' || c == '}') => {
                self.emit(std::mem::take(live), parts);
                self.end_value(parts);
                match c {
                    _ if self.is_other() => {}
                    ',' => self.phase = Phase::Before,
                    _ => self.end(parts),
                }
            }
            Phase::Value => self.value(c, live),
            Phase::Open | Phase::Before | Phase::Colon | Phase::Done | Phase::Other => {}
        }
    }
    fn value(&mut self, c: char, live: &mut String) {
        if self.value.is_empty() && c.is_whitespace() {
            return;
        }
        self.scan.next(c);
        self.value.push(c);
        if self.named && self.is_arguments() && !self.value.starts_with('"') {
            live.push(c);
        }
    }
    fn is_arguments(&self) -> bool {
        ARGUMENTS.contains(&self.key.as_str())
    }
    fn end_value(&mut self, parts: &mut Vec<ReplyPart>) {
        let value = std::mem::take(&mut self.value);
        let value = value.trim_end();
        if self.key == "name" {
            let name = serde_json::from_str::<String>(value);
            if self
                .only
                .as_ref()
                .is_some_and(|tools| !name.as_ref().is_ok_and(|name| tools.has(name)))
            {
                self.phase = Phase::Other;
            } else if let (false, Ok(name)) = (self.named, name) {
                if self.strict && self.early.is_none() {
                    self.pending = Some(name);
                } else {
                    self.begin(name, parts);
                }
            }
        } else if self.is_arguments() {
            // Some models write the arguments as a string that contains JSON.
            let whole = match value.starts_with('"') {
                true => serde_json::from_str::<String>(value).unwrap_or_default(),
                false => value.to_owned(),
            };
            if !self.named {
                self.early = Some(whole);
            } else if value.starts_with('"') {
                self.emit(whole, parts);
            }
        }
    }
    fn begin(&mut self, name: String, parts: &mut Vec<ReplyPart>) {
        self.named = true;
        parts.push(ReplyPart::Call(name));
        let early = self.early.take().unwrap_or_default();
        self.emit(early, parts);
    }
    fn end(&mut self, parts: &mut Vec<ReplyPart>) {
        let other = self.only.is_some() && !self.named;
        self.phase = if other { Phase::Other } else { Phase::Done };
        if self.named && !self.told {
            self.emit("{}".into(), parts);
        }
    }
    fn emit(&mut self, text: String, parts: &mut Vec<ReplyPart>) {
        if !text.is_empty() {
            self.told = true;
            parts.push(ReplyPart::Arguments(text));
        }
    }
}
