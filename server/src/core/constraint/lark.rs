//! Helpers that write grammars in llguidance's variant of Lark.

use gristmill_llm::chat::markup::Markup;
use gristmill_llm::tokenizer::{TokenKind, Tokenizer};
use serde_json::Value;
use std::fmt::Write;

pub fn line(rules: &mut String, text: std::fmt::Arguments) {
    // Writing to a String does not fail.
    let _ = writeln!(rules, "{text}");
}

pub fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

/// Writes texts of a markup as terms, with special tokens where the vocabulary has them.
pub struct GrammarTexts<'g> {
    /// The markup of the model.
    pub markup: &'g Markup,
    /// The tokenizer with the model's vocabulary.
    pub tokenizer: &'g Tokenizer,
}

/// A part of a text, which becomes one term.
enum Piece<'t> {
    Token(u32),
    Literal(&'t str),
    /// White space that the text may omit.
    Space(&'t str),
}

impl GrammarTexts<'_> {
    /// Returns a text as a sequence of terms. White space is optional at both ends of the text and
    /// at line ends.
    pub fn terms(&self, text: &str) -> String {
        let terms = self.pieces(text).into_iter().map(|piece| match piece {
            Piece::Token(id) => format!("<[{id}]>"),
            Piece::Literal(text) => literal(text),
            Piece::Space(space) => format!("{}?", literal(space)),
        });
        terms.collect::<Vec<_>>().join(" ")
    }
    /// Returns a rule with that name, with its line end, that matches any text up to and including
    /// `close`.
    pub fn until(&self, name: &str, close: &str) -> String {
        let close = close.trim();
        let mut pieces = self.pieces(close).into_iter();
        match pieces.next() {
            Some(Piece::Token(id)) => {
                let rest = &close[self.tokenizer.token_bytes(id).map_or(0, <[u8]>::len)..];
                format!("{name}: /(.|\\n)*/ <[{id}]> {}\n", self.terms(rest))
            }
            // A `close` of plain text ends at its first occurrence.
            _ => format!("{name}[suffix={}]: /(.|\\n)*/\n", literal(close)),
        }
    }
    fn pieces<'t>(&self, text: &'t str) -> Vec<Piece<'t>> {
        let mut pieces = Vec::new();
        let (mut rest, whole) = (text, text.len());
        while !rest.is_empty() {
            let next = self
                .tokens()
                .filter_map(|(marker, id)| Some((rest.find(marker)?, marker, id)))
                .min_by_key(|(at, ..)| *at);
            let (at, marker, id) = next.map_or((rest.len(), "", None), |(at, marker, id)| {
                (at, marker, Some(id))
            });
            let first = rest.len() == whole;
            spaced(&rest[..at], first, id.is_none(), &mut pieces);
            pieces.extend(id.map(Piece::Token));
            rest = &rest[at + marker.len()..];
        }
        pieces
    }
    /// Returns the texts of the markup that are special tokens.
    fn tokens(&self) -> impl Iterator<Item = (&'static str, u32)> {
        let control = |id: &u32| self.tokenizer.token_kind(*id) == Some(TokenKind::Control);
        self.markup
            .tokens
            .iter()
            .filter_map(move |text| Some((*text, self.tokenizer.token_id(text).filter(control)?)))
    }
}

/// Splits a text without tokens at its optional white space: at the ends of the whole text and at
/// line ends.
fn spaced<'t>(text: &'t str, first: bool, last: bool, pieces: &mut Vec<Piece<'t>>) {
    let mut at = 0;
    while at < text.len() {
        let rest = &text[at..];
        let space = rest.len() - rest.trim_start().len();
        let end = |space: usize| {
            space > 0
                && (rest[..space].contains('\n') || first && at == 0 || last && space == rest.len())
        };
        if end(space) {
            pieces.push(Piece::Space(&rest[..space]));
            at += space;
            continue;
        }
        // Up to the next optional white space.
        let mut length = space;
        loop {
            let tail = &rest[length..];
            let word = tail.find(char::is_whitespace).unwrap_or(tail.len());
            length += word;
            let tail = &rest[length..];
            let space = tail.len() - tail.trim_start().len();
            if space == 0 || tail[..space].contains('\n') || last && space == tail.len() {
                break;
            }
            length += space;
        }
        pieces.push(Piece::Literal(&rest[..length]));
        at += length;
    }
}
