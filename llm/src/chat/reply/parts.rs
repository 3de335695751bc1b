//! Parts of a reply, and the search for delimiters in streamed text.

/// A part of a streamed reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReplyPart {
    /// Text of the model's reasoning.
    Reasoning(String),
    /// Text of the reply to the user.
    Content(String),
    /// Start of a tool call, with the tool's name.
    Call(String),
    /// Next fragment of the current call's arguments, as JSON text.
    Arguments(String),
}

/// Buffered text that is not yet assigned to a part.
#[derive(Default)]
pub struct HeldText {
    text: String,
    /// No searched delimiter begins before this byte, so it is not searched again.
    seen: usize,
}

/// Result of comparing the start of a text with a delimiter.
pub enum Beginning {
    /// Starts with it; holds the bytes of the delimiter and of white space before it.
    Whole(usize),
    /// Could start with it after more text.
    Part,
    Other,
}

/// Result of a search for delimiters.
pub enum Search {
    /// Text before the delimiter, and the delimiter.
    Found(String, &'static str),
    /// Not found yet; more text is needed.
    Open,
    /// Not found within the limit; holds the text up to it.
    Far(String),
}

impl HeldText {
    pub fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }
    pub fn text(&self) -> &str {
        &self.text
    }
    /// Returns the text without leading white space.
    pub fn trimmed(&self) -> &str {
        self.text.trim_start()
    }
    /// Takes the whole text.
    pub fn take(&mut self) -> String {
        self.seen = 0;
        std::mem::take(&mut self.text)
    }
    /// Takes the first `at` bytes.
    pub fn split(&mut self, at: usize) -> String {
        self.seen = 0;
        let rest = self.text.split_off(at);
        std::mem::replace(&mut self.text, rest)
    }
    /// Returns the last character boundary at or before `at`.
    fn floor(&self, at: usize) -> usize {
        (0..=at.min(self.text.len()))
            .rev()
            .find(|&at| self.text.is_char_boundary(at))
            .unwrap_or(0)
    }
    /// Drops leading white space.
    pub fn trim(&mut self) {
        let space = self.text.len() - self.trimmed().len();
        if space > 0 {
            self.split(space);
        }
    }
    /// Compares the text after leading white space with a delimiter.
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
    /// Takes the text before the first of these delimiters, and the delimiter; `None` if there is
    /// none. At the same position the earlier one in the list wins.
    pub fn until(&mut self, markers: &[&'static str]) -> Option<(String, &'static str)> {
        let longest = markers.iter().map(|marker| marker.len()).max().unwrap_or(0);
        let from = self.floor(self.seen.saturating_sub(longest));
        let tail = &self.text[from..];
        let found = markers.iter().filter(|marker| !marker.is_empty());
        let found = found
            .filter_map(|marker| Some((tail.find(marker)?, *marker)))
            .min_by_key(|(at, _)| *at);
        let Some((at, marker)) = found else {
            self.seen = self.text.len();
            return None;
        };
        let mut before = self.split(from + at + marker.len());
        before.truncate(from + at);
        Some((before, marker))
    }
    /// Takes the text before the first of these delimiters if it begins within `most` bytes;
    /// otherwise takes `most` bytes.
    pub fn until_within(&mut self, markers: &[&'static str], most: usize) -> Search {
        let longest = markers.iter().map(|marker| marker.len()).max().unwrap_or(0);
        let near = &self.text[..self.floor(most + longest)];
        let found = markers.iter().filter(|marker| !marker.is_empty());
        let found = found
            .filter_map(|marker| Some((near.find(marker)?, *marker)))
            .min_by_key(|(at, _)| *at);
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
    /// Takes the text before the first of these delimiters, and the delimiter.
    ///
    /// If there is none, takes all text that cannot be part of one: everything but a possible
    /// delimiter prefix at the end and, if `space`, the white space before it.
    pub fn stream(
        &mut self,
        markers: &[&'static str],
        space: bool,
    ) -> (String, Option<&'static str>) {
        if let Some((before, marker)) = self.until(markers) {
            return (before, Some(marker));
        }
        let begun = |marker: &&'static str| {
            let cuts = (1..marker.len())
                .rev()
                .filter(|&n| marker.is_char_boundary(n));
            cuts.into_iter()
                .find(|&n| self.text.ends_with(&marker[..n]))
                .unwrap_or(0)
        };
        let mut end = self.text.len() - markers.iter().map(begun).max().unwrap_or(0);
        if space {
            end = self.text[..end].trim_end().len();
        }
        (self.split(end), None)
    }
}

/// Splits a delimiter at white space into the words that a parser compares.
pub fn words(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.split_whitespace()
}

/// Escapes a text for the inside of a JSON string.
pub fn escaped(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    quoted[1..quoted.len() - 1].to_owned()
}
