//! Stop strings on streamed text.

/// Cuts a stream of text at the first stop string.
///
/// Text that may begin a stop string is held back until that is decided: the longest suffix of the
/// received text that is a proper prefix of a stop string. The stop string that *ends* first wins
/// (the longest of those), so the result does not depend on how the text is split.
///
/// ```
/// use gristmill_llm::sampling::StopMatcher;
/// let mut stop = StopMatcher::new(["\nUser:"]);
/// assert_eq!(stop.push("Hi!\nUs"), "Hi!");
/// assert_eq!(stop.push("a\nUser: x"), "\nUsa");
/// assert_eq!(stop.stopped(), Some("\nUser:"));
/// assert_eq!(stop.push("more"), "");
/// ```
#[derive(Debug, Clone, Default)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    stopped: Option<usize>,
}

impl StopMatcher {
    /// Creates a matcher of these strings; empty ones are ignored.
    pub fn new<S: Into<String>>(stops: impl IntoIterator<Item = S>) -> Self {
        let stops = stops
            .into_iter()
            .map(Into::into)
            .filter(|stop: &String| !stop.is_empty())
            .collect();
        Self {
            stops,
            ..Self::default()
        }
    }

    /// Adds text and returns the part that can be shown. After a match it returns nothing more.
    pub fn push(&mut self, text: &str) -> String {
        if self.stopped.is_some() {
            return String::new();
        }
        let mut text = std::mem::take(&mut self.held) + text;
        let found = self.stops.iter().enumerate().filter_map(|(which, stop)| {
            let start = text.find(stop.as_str())?;
            Some((start + stop.len(), start, which))
        });
        if let Some((_, start, which)) = found.min() {
            self.stopped = Some(which);
            text.truncate(start);
            return text;
        }
        let keep = self
            .stops
            .iter()
            .map(|stop| overlap(&text, stop))
            .max()
            .unwrap_or(0);
        self.held = text.split_off(text.len() - keep);
        text
    }

    /// Ends the stream and returns the text that was held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// Returns the stop string that was found.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped
            .and_then(|which| self.stops.get(which))
            .map(String::as_str)
    }
}

/// Returns the length of the longest proper prefix of `stop` that ends `text`.
fn overlap(text: &str, stop: &str) -> usize {
    let mut cuts = stop.char_indices().map(|(at, _)| at).rev();
    cuts.find(|&cut| text.ends_with(&stop[..cut])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_cut_gives_the_same_text() {
        let stops = ["abab", "</s>", "é!", "b<"];
        for text in [
            "xxababyy",
            "ababab",
            "aab</s",
            "caf\u{e9}\u{e9}!",
            "",
            "abaabb</s>",
            "<</s>b<",
        ] {
            let expected = {
                let mut stop = StopMatcher::new(stops);
                stop.push(text) + &stop.finish()
            };
            let chars: Vec<char> = text.chars().collect();
            for size in 1..4 {
                let mut stop = StopMatcher::new(stops);
                let mut out = String::new();
                for part in chars.chunks(size) {
                    out += &stop.push(&part.iter().collect::<String>());
                }
                out += &stop.finish();
                assert_eq!(out, expected, "{text:?} by {size}");
            }
        }
    }

    #[test]
    fn the_first_to_end_wins_and_nothing_follows() {
        let mut stop = StopMatcher::new(["abc", "b", ""]);
        assert_eq!(stop.push("xabc"), "xa");
        assert_eq!(stop.stopped(), Some("b"));
        assert_eq!(
            (stop.push("more"), stop.finish()),
            (String::new(), String::new())
        );
        let mut none = StopMatcher::new(Vec::<String>::new());
        assert_eq!(none.push("text"), "text");
    }
}
