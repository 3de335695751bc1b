//! Parser of the calls of a reply, from the first opening to the last closing delimiter.

use super::named::NamedCall;
use super::object::ObjectCall;
use super::parts::{Beginning, HeldText, ReplyPart, words};
use super::schemas::Schemas;
use crate::chat::markup::{CallFormat, LLAMA, Markup};

/// Streaming parser of a sequence of tool calls.
pub struct Calls {
    markup: &'static Markup,
    schemas: Schemas,
    /// Text consumed so far, while the current call is not certain.
    raw: String,
    /// Whether the calls are JSON objects without delimiters.
    bare: bool,
    /// Closing text of the fence around the call, while it is open.
    fence: Option<&'static str>,
    state: State,
}

/// Opening and closing texts around a JSON object without delimiters: a Markdown block, and the tag
/// of the tool list in Qwen's prompts, which Qwen2.5-Coder repeats.
pub const FENCES: &[[&str; 2]] = &[["```", "```"], ["<tools>", "</tools>"]];

enum State {
    /// After this opening delimiter; the following text determines the markup.
    Opened(&'static str),
    /// Before a call, or the end of the section.
    Between {
        row: &'static Markup,
        first: bool,
    },
    Object {
        row: &'static Markup,
        within: bool,
        call: Box<ObjectCall>,
    },
    Named {
        row: &'static Markup,
        within: bool,
        call: Box<NamedCall>,
    },
    /// After a call; `come` words of its closing delimiter have been consumed.
    Closing {
        row: &'static Markup,
        within: bool,
        come: usize,
    },
    Done,
    /// Not a call; holds the text.
    Other(String),
}

impl Calls {
    /// Creates a parser for the text after `marker`, an opening delimiter of `markup`.
    pub fn opened(markup: &'static Markup, marker: &'static str, schemas: Schemas) -> Calls {
        Calls {
            markup,
            schemas,
            raw: marker.to_owned(),
            bare: false,
            fence: None,
            state: State::Opened(marker),
        }
    }
    /// Creates a parser for a JSON object that is either a call of one of these tools or text. In
    /// markups with delimiters it is a call only with arguments. `before` is the text
    /// before it: white space, and the opening of a fence.
    pub fn bare(markup: &'static Markup, schemas: Schemas, before: String) -> Calls {
        let call = Box::new(ObjectCall::new(schemas.clone(), !markup.is_bare()));
        Calls {
            markup,
            schemas,
            fence: FENCES
                .iter()
                .find(|[open, _]| before.contains(open))
                .map(|[_, close]| *close),
            raw: before,
            bare: true,
            state: State::Object {
                row: &LLAMA,
                within: false,
                call,
            },
        }
    }
    /// Returns true if the calls are JSON objects without delimiters.
    pub fn is_bare(&self) -> bool {
        self.bare
    }
    /// Returns true after the last call.
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }
    /// Takes the consumed text if it turned out not to be a call.
    pub fn other(&mut self) -> Option<String> {
        if let State::Other(text) = &mut self.state {
            Some(std::mem::take(text))
        } else {
            None
        }
    }
    /// Consumes one element of `held`. Returns false if more text is needed.
    pub fn step(&mut self, held: &mut HeldText, parts: &mut Vec<ReplyPart>) -> bool {
        match &mut self.state {
            State::Opened(marker) => {
                let marker = *marker;
                self.choose(marker, held)
            }
            &mut State::Between { row, first } => self.between(row, first, held),
            State::Object { row, within, call } => {
                let (row, within) = (*row, *within);
                let used = call.push(held.text(), parts);
                held.split(used);
                if !(call.is_done() || call.is_other()) {
                    return false;
                }
                match std::mem::take(&mut **call).abandon() {
                    Some(text) if row.is_bare() => self.refuse(text),
                    Some(text) => {
                        parts.push(ReplyPart::Content(format!("{}{text}", self.raw)));
                        self.close(row, within);
                    }
                    None => self.close(row, within),
                }
                true
            }
            State::Named { row, within, call } => {
                let (row, within) = (*row, *within);
                let more = call.step(held, parts);
                if let Some(text) = call.other().map(str::to_owned) {
                    self.refuse(text);
                    return true;
                }
                if call.is_done() {
                    self.close(row, within);
                    return true;
                }
                more
            }
            &mut State::Closing { row, within, come } => self.closing(row, within, come, held),
            State::Done | State::Other(_) => false,
        }
    }
    /// Ends the input; `cut` if generation was truncated. Returns the text of an unfinished call
    /// that is plain text.
    pub fn finish(self, held: &str, cut: bool, parts: &mut Vec<ReplyPart>) -> Option<String> {
        let text = match self.state {
            State::Opened(_) | State::Between { first: true, .. } => Some(held.to_owned()),
            State::Object { call, .. } => call.abandon(),
            State::Named { call, .. } => call.finish(held, cut, parts),
            State::Between { first: false, .. }
            | State::Closing { .. }
            | State::Done
            | State::Other(_) => None,
        };
        text.map(|text| self.raw + &text)
    }
    /// Selects the markup from the text after the opening delimiter.
    fn choose(&mut self, marker: &'static str, held: &HeldText) -> bool {
        let text = held.trimmed();
        let Some(first) = text.chars().next() else {
            return false;
        };
        let rows: Vec<&'static Markup> = self.markup.dialects().collect();
        let is_object = |row: &Markup| matches!(row.form, CallFormat::Object { .. });
        let named = |row: &Markup| match row.form {
            CallFormat::Named(name, _) => Some(name.before),
            CallFormat::Object { .. } => None,
        };
        let list = |row: &Markup| matches!(row.form, CallFormat::Object { list: true, .. });
        let object = match first {
            '{' => rows.iter().copied().find(|row| is_object(row)),
            '[' => rows.iter().copied().find(|row| list(row)),
            _ => None,
        };
        // Rows with a section continue with the opening text of a call, which differs from
        // those of other rows.
        let own = Some(self.markup).filter(|row| !row.section[0].is_empty() && !is_object(row));
        let alone = || rows.iter().copied().filter(|row| row.section[0].is_empty());
        let before = |row: &Markup| named(row).unwrap_or_default();
        let may_come =
            |row: &Markup| before(row).len() > text.len() && before(row).starts_with(text);
        if object.or(own).is_none() && alone().any(may_come) {
            return false;
        }
        let prefixed = alone().find(|row| !before(row).is_empty() && text.starts_with(before(row)));
        let plain = alone().find(|row| named(row) == Some(""));
        let Some(row) = object.or(own).or(prefixed).or(plain) else {
            self.refuse(String::new());
            return true;
        };
        let within = !row.section[0].is_empty() && marker == row.section[0].trim();
        self.state = if within {
            State::Between { row, first: true }
        } else {
            self.begin(row, false)
        };
        true
    }
    /// Returns the state for a call in this markup; `within` a section.
    fn begin(&self, row: &'static Markup, within: bool) -> State {
        match row.form {
            CallFormat::Object { .. } => State::Object {
                row,
                within,
                call: Box::default(),
            },
            CallFormat::Named(name, arguments) => {
                let call = Box::new(NamedCall::new(row, name, arguments, self.schemas.clone()));
                State::Named { row, within, call }
            }
        }
    }
    fn between(&mut self, row: &'static Markup, first: bool, held: &mut HeldText) -> bool {
        let list = matches!(row.form, CallFormat::Object { list: true, .. });
        held.trim();
        let Some(c) = held.text().chars().next() else {
            return false;
        };
        if list && (first && c == '[' || matches!(c, ',' | ']')) {
            held.split(1);
            self.raw.push(c);
            // The closing text of a list's section follows, if the markup has one.
            let ended = c == ']' && row.section[1].is_empty();
            self.state = if ended {
                State::Done
            } else {
                State::Between {
                    row,
                    first: first && c != ']',
                }
            };
            return true;
        }
        let (open, close) = (row.call[0].trim(), row.section[1].trim());
        let mut may = false;
        match held.begins(open) {
            _ if list && c == '{' => {
                self.state = self.begin(row, true);
                return true;
            }
            Beginning::Whole(end) if !open.is_empty() => {
                self.raw += &held.split(end);
                self.state = self.begin(row, true);
                return true;
            }
            Beginning::Part => may = true,
            _ => {}
        }
        match held.begins(close) {
            Beginning::Whole(end) if !close.is_empty() => {
                held.split(end);
                self.state = State::Done;
                return true;
            }
            Beginning::Part => may = true,
            _ => {}
        }
        if may {
            return false;
        }
        // After a call other text ends the section; before the first call it means
        // that there is none.
        if first {
            self.refuse(String::new())
        } else {
            self.state = State::Done
        }
        true
    }
    fn closing(
        &mut self,
        row: &'static Markup,
        within: bool,
        come: usize,
        held: &mut HeldText,
    ) -> bool {
        let left: Vec<&'static str> = words(row.call[1]).skip(come).collect();
        for (skipped, word) in left.iter().enumerate() {
            match held.begins(word) {
                Beginning::Whole(end) => {
                    held.split(end);
                    self.state = State::Closing {
                        row,
                        within,
                        come: come + skipped + 1,
                    };
                    return true;
                }
                Beginning::Part => return false,
                Beginning::Other => {}
            }
        }
        if let Some(fence) = self.fence {
            match held.begins(fence) {
                Beginning::Whole(end) => {
                    held.split(end);
                    self.fence = None;
                    return true;
                }
                Beginning::Part => return false,
                Beginning::Other => {}
            }
        }
        // Undelimited JSON calls are separated by a semicolon or a comma.
        if row.is_bare() {
            held.trim();
            match held.text().chars().next() {
                None => return false,
                Some(';' | ',') => drop(held.split(1)),
                Some(_) => {}
            }
        }
        self.state = if within {
            State::Between { row, first: false }
        } else {
            State::Done
        };
        true
    }
    /// Handles the end of a call.
    fn close(&mut self, row: &'static Markup, within: bool) {
        self.raw.clear();
        self.state = State::Closing {
            row,
            within,
            come: 0,
        };
    }
    fn refuse(&mut self, text: String) {
        self.state = State::Other(std::mem::take(&mut self.raw) + &text);
    }
}
