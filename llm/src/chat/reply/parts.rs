//! The parts that a reply is taken apart into, and how its markers are found.

/// A piece of a reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// Reasoning.
    Reasoning(String),
    /// Text.
    Content(String),
    /// A call begins: the tool's name.
    Call(String),
    /// More of the current call's arguments, JSON.
    Arguments(String),
}

/// Text that is not decided yet.
#[derive(Default)]
pub struct Held {
    text: String,
    /// Up to here nothing that was looked for begins; it is looked at once.
    seen: usize,
}

/// Does a text begin with a marker?
pub enum Beginning {
    /// It does, and so many bytes are it, with the white space before it.
    Whole(usize),
    /// It may, once there is more.
    Part,
    /// No.
    Other,
}

/// What a search for a marker found.
pub enum Search {
    /// What stands before it, and it.
    Found(String, &'static str),
    /// Nothing so far.
    Open,
    /// None is near: what stands in its place.
    Far(String),
}

impl Held {
    pub fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }
    pub fn text(&self) -> &str {
        &self.text
    }
    /// Behind the white space at its beginning.
    pub fn trimmed(&self) -> &str {
        self.text.trim_start()
    }
    /// All of it.
    pub fn take(&mut self) -> String {
        self.seen = 0;
        std::mem::take(&mut self.text)
    }
    /// Its first bytes.
    pub fn split(&mut self, at: usize) -> String {
        self.seen = 0;
        let rest = self.text.split_off(at);
        std::mem::replace(&mut self.text, rest)
    }
    /// The last place between characters up to that one.
    fn floor(&self, at: usize) -> usize {
        (0..=at.min(self.text.len())).rev().find(|&at| self.text.is_char_boundary(at)).unwrap_or(0)
    }
    /// Drops white space at its beginning.
    pub fn trim(&mut self) {
        let space = self.text.len() - self.trimmed().len();
        if space > 0 {
            self.split(space);
        }
    }
    /// Does it begin with that marker, behind white space?
    pub fn begins(&self, marker: &str) -> Beginning {
        let text = self.trimmed();
        if text.starts_with(marker) {
            Beginning::Whole(self.text.len() - text.len() + marker.len())
        } else if marker.starts_with(text) {
            Beginning::Part
        } else {
            Beginning::Other
        }
    }
    /// Takes what stands before the first of these markers, and the marker; nothing where there is none. Of two at one place the first
    /// in the list counts.
    pub fn until(&mut self, markers: &[&'static str]) -> Option<(String, &'static str)> {
        let longest = markers.iter().map(|marker| marker.len()).max().unwrap_or(0);
        let from = self.floor(self.seen.saturating_sub(longest));
        let tail = &self.text[from..];
        let found = markers.iter().filter(|marker| !marker.is_empty());
        let found = found.filter_map(|marker| Some((tail.find(marker)?, *marker))).min_by_key(|(at, _)| *at);
        let Some((at, marker)) = found else {
            self.seen = self.text.len();
            return None;
        };
        let mut before = self.split(from + at + marker.len());
        before.truncate(from + at);
        Some((before, marker))
    }
    /// Takes what stands before the first of these markers, and the marker, where that begins within so many bytes; and so many bytes where
    /// none does.
    pub fn until_within(&mut self, markers: &[&'static str], most: usize) -> Search {
        let longest = markers.iter().map(|marker| marker.len()).max().unwrap_or(0);
        let near = &self.text[..self.floor(most + longest)];
        let found = markers.iter().filter(|marker| !marker.is_empty());
        let found = found.filter_map(|marker| Some((near.find(marker)?, *marker))).min_by_key(|(at, _)| *at);
        match found.filter(|(at, _)| *at <= most) {
            Some((at, marker)) => {
                let mut before = self.split(at + marker.len());
                before.truncate(at);
                Search::Found(before, marker)
            }
            None if self.text.len() > most + longest => Search::Far(self.split(self.floor(most))),
            None => Search::Open,
        }
    }
    /// What stands before the first of these markers, and the marker; or, where there is none, what cannot be part of one: all but the
    /// beginning of a marker at its end and, if `space` is to be kept, the white space there.
    pub fn stream(&mut self, markers: &[&'static str], space: bool) -> (String, Option<&'static str>) {
        if let Some((before, marker)) = self.until(markers) {
            return (before, Some(marker));
        }
        let begun = |marker: &&'static str| {
            let cuts = (1..marker.len()).rev().filter(|&n| marker.is_char_boundary(n));
            cuts.into_iter().find(|&n| self.text.ends_with(&marker[..n])).unwrap_or(0)
        };
        let mut end = self.text.len() - markers.iter().map(begun).max().unwrap_or(0);
        if space {
            end = self.text[..end].trim_end().len();
        }
        (self.split(end), None)
    }
}

/// The words of a text between white space: what a parser looks for of it.
pub fn words(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.split_whitespace()
}

/// The inside of a text as a string in JSON.
pub fn escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
