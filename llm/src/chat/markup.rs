//! How replies are marked up: reasoning, calls of tools. One row a markup; who parses replies, who writes grammars for them, who describes
//! tools to a model and who decides what a message may spell all read it here.

/// A markup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Markup {
    /// What the text of a template has in it whose model writes so; empty for the row that serves all others.
    pub sign: &'static str,
    /// Opens and closes reasoning.
    pub think: [&'static str; 2],
    /// Opens and closes a call.
    pub call: [&'static str; 2],
    /// What is between them.
    pub arguments: Arguments,
}

/// How a call is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arguments {
    /// `{"name": …, "arguments": {…}}`.
    Json,
    /// The name, and then each argument: its name between the first pair, its value between the second.
    Tags {
        /// Open and close the name of an argument.
        key: [&'static str; 2],
        /// Open and close its value.
        value: [&'static str; 2],
    },
}

const THINK: [&str; 2] = ["<think>", "</think>"];
const CALL: [&str; 2] = ["<tool_call>", "</tool_call>"];
const KEY: [&str; 2] = ["<arg_key>", "</arg_key>"];
const VALUE: [&str; 2] = ["<arg_value>", "</arg_value>"];

/// GLM's tags.
pub const TAGS: Markup =
    Markup { sign: KEY[0], think: THINK, call: CALL, arguments: Arguments::Tags { key: KEY, value: VALUE } };
/// Hermes' JSON, which Qwen, Youtu and others took over.
pub const JSON: Markup = Markup { sign: "", think: THINK, call: CALL, arguments: Arguments::Json };

/// All of them; the first whose sign a template has is its model's.
pub const TABLE: &[Markup] = &[TAGS, JSON];

/// All texts of the table. Where a vocabulary has special tokens of these texts, whoever takes replies apart must see them; and a
/// message of the assistant may hold them as tokens.
pub const MARKERS: &[&str] = &[THINK[0], THINK[1], CALL[0], CALL[1], KEY[0], KEY[1], VALUE[0], VALUE[1]];

impl Markup {
    /// Its texts.
    pub fn markers(&self) -> Vec<&'static str> {
        let arguments = match self.arguments {
            Arguments::Json => Vec::new(),
            Arguments::Tags { key, value } => [key, value].concat(),
        };
        [&self.think[..], &self.call, &arguments].concat()
    }
    /// The markup of a model whose template `mentions` some texts.
    pub fn of(mentions: impl Fn(&str) -> bool) -> Markup {
        TABLE.iter().copied().find(|row| mentions(row.sign)).unwrap_or(JSON)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_marker_of_a_row_is_listed_and_every_listed_one_is_of_a_row() {
        let of_rows: Vec<&str> = TABLE.iter().flat_map(Markup::markers).collect();
        assert!(of_rows.iter().all(|marker| MARKERS.contains(marker)));
        assert!(MARKERS.iter().all(|marker| of_rows.contains(marker)));
    }

    #[test]
    fn a_template_says_how_its_model_writes() {
        let of = |text: &str| Markup::of(|sign| text.contains(sign));
        assert_eq!(of("{% if tools %}<arg_key>{% endif %}"), TAGS);
        assert_eq!(of("{{ messages }}"), JSON);
    }
}
