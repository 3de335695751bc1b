//! The calls of a reply, from what opens the first to what closes the last.

use super::named::NamedCall;
use super::object::ObjectCall;
use super::parts::{Beginning, Held, Part, words};
use super::schemas::Schemas;
use crate::chat::markup::{Form, Markup};

/// The parser.
pub struct Calls {
    markup: &'static Markup,
    schemas: Schemas,
    /// The text so far, while no call is certain.
    raw: String,
    state: State,
}

enum State {
    /// After this marker: how it goes on says in which markup.
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
    /// Behind a call, before the words that close it; so many of them have come.
    Closing {
        row: &'static Markup,
        within: bool,
        come: usize,
    },
    Done,
    /// These are no calls, but that text.
    Other(String),
}

impl Calls {
    /// Behind a marker of those that open calls in that markup.
    pub fn opened(markup: &'static Markup, marker: &'static str, schemas: Schemas) -> Calls {
        Calls { markup, schemas, raw: marker.to_owned(), state: State::Opened(marker) }
    }
    /// Before an object that is a call of one of these tools, or a text.
    pub fn bare(markup: &'static Markup, schemas: Schemas) -> Calls {
        let call = Box::new(ObjectCall::of(schemas.clone()));
        Calls { markup, schemas, raw: String::new(), state: State::Object { row: markup, within: false, call } }
    }
    /// Has the last one ended?
    pub fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }
    /// The text that they are instead, once that is certain.
    pub fn other(&mut self) -> Option<String> {
        if let State::Other(text) = &mut self.state { Some(std::mem::take(text)) } else { None }
    }
    /// One decision about `held`; was there one to make?
    pub fn step(&mut self, held: &mut Held, parts: &mut Vec<Part>) -> bool {
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
                        parts.push(Part::Content(format!("{}{text}", self.raw)));
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
    /// The end; `cut` if more would have come. The text of what is no call after all.
    pub fn finish(self, held: &str, cut: bool, parts: &mut Vec<Part>) -> Option<String> {
        let text = match self.state {
            State::Opened(_) | State::Between { first: true, .. } => Some(held.to_owned()),
            State::Object { call, .. } => call.abandon(),
            State::Named { call, .. } => call.finish(held, cut, parts),
            State::Between { first: false, .. } | State::Closing { .. } | State::Done | State::Other(_) => None,
        };
        text.map(|text| self.raw + &text)
    }
    /// The markup by how the text goes on behind a marker.
    fn choose(&mut self, marker: &'static str, held: &Held) -> bool {
        let text = held.trimmed();
        let Some(first) = text.chars().next() else { return false };
        let rows: Vec<&'static Markup> = self.markup.dialects().collect();
        let is_object = |row: &Markup| matches!(row.form, Form::Object { .. });
        let named = |row: &Markup| match row.form {
            Form::Named(name, _) => Some(name.before),
            Form::Object { .. } => None,
        };
        let list = |row: &Markup| matches!(row.form, Form::Object { list: true, .. });
        let object = match first {
            '{' => rows.iter().copied().find(|row| is_object(row)),
            '[' => rows.iter().copied().find(|row| list(row)),
            _ => None,
        };
        // Rows with a section go on with what opens a call, and never as others do.
        let own = Some(self.markup).filter(|row| !row.section[0].is_empty() && !is_object(row));
        let alone = || rows.iter().copied().filter(|row| row.section[0].is_empty());
        let before = |row: &Markup| named(row).unwrap_or_default();
        let may_come = |row: &Markup| before(row).len() > text.len() && before(row).starts_with(text);
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
        self.state = if within { State::Between { row, first: true } } else { self.begin(row, false) };
        true
    }
    /// A call in that markup, `within` a section.
    fn begin(&self, row: &'static Markup, within: bool) -> State {
        match row.form {
            Form::Object { .. } => State::Object { row, within, call: Box::default() },
            Form::Named(name, arguments) => {
                let call = Box::new(NamedCall::new(row, name, arguments, self.schemas.clone()));
                State::Named { row, within, call }
            }
        }
    }
    fn between(&mut self, row: &'static Markup, first: bool, held: &mut Held) -> bool {
        let list = matches!(row.form, Form::Object { list: true, .. });
        held.trim();
        let Some(c) = held.text().chars().next() else { return false };
        if list && (first && c == '[' || matches!(c, ',' | ']')) {
            held.split(1);
            self.raw.push(c);
            // What closes a list's section follows, where there is such a text.
            let ended = c == ']' && row.section[1].is_empty();
            self.state = if ended { State::Done } else { State::Between { row, first: first && c != ']' } };
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
        // Behind a call other text ends the section, before the first it is what was meant.
        if first {
            self.refuse(String::new())
        } else {
            self.state = State::Done
        }
        true
    }
    fn closing(&mut self, row: &'static Markup, within: bool, come: usize, held: &mut Held) -> bool {
        let left: Vec<&'static str> = words(row.call[1]).skip(come).collect();
        for (skipped, word) in left.iter().enumerate() {
            match held.begins(word) {
                Beginning::Whole(end) => {
                    held.split(end);
                    self.state = State::Closing { row, within, come: come + skipped + 1 };
                    return true;
                }
                Beginning::Part => return false,
                Beginning::Other => {}
            }
        }
        // Objects that are calls stand side by side, with a mark between them.
        if row.is_bare() {
            held.trim();
            match held.text().chars().next() {
                None => return false,
                Some(';' | ',') => drop(held.split(1)),
                Some(_) => {}
            }
        }
        self.state = if within { State::Between { row, first: false } } else { State::Done };
        true
    }
    /// A call has ended.
    fn close(&mut self, row: &'static Markup, within: bool) {
        self.raw.clear();
        self.state = State::Closing { row, within, come: 0 };
    }
    fn refuse(&mut self, text: String) {
        self.state = State::Other(std::mem::take(&mut self.raw) + &text);
    }
}
