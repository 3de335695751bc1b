//! Markup of replies: texts that delimit reasoning and tool calls, one table row per
//! markup. Used by reply parsers, grammars, tool descriptions in prompts, and the search
//! for control tokens in messages.
//!
//! White space in the texts of calls is that of the training data. Replies may have more or less of
//! it; parsers skip it, and grammars leave it open.

/// Texts that delimit reasoning and tool calls in replies of one model family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Markup {
    /// Name of the markup, for display and tests.
    pub name: &'static str,
    /// Texts that identify the markup: a template that contains all of them belongs to such a
    /// model. Empty for the default.
    pub signs: &'static [&'static str],
    /// Overall structure of a reply.
    pub frame: Frame,
    /// Opening and closing text of reasoning.
    pub think: [&'static str; 2],
    /// Opening and closing text of the section with all calls; empty without sections.
    pub section: [&'static str; 2],
    /// Opening and closing text of one call; empty if calls are not delimited.
    pub call: [&'static str; 2],
    /// Alternative opening texts of calls.
    pub also: &'static [&'static str],
    /// Format of a call between its delimiters.
    pub form: CallFormat,
    /// Delimiters, or parts of delimiters, that are tokens in the vocabularies of such models.
    pub tokens: &'static [&'static str],
}

/// Overall structure of a reply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frame {
    /// Plain text: reasoning first, then content with calls.
    Text,
    /// Messages with typed headers: `assistant<|channel|>final<|message|>text<|end|>`. The prompt
    /// ends within the first header.
    Messages(Messages),
}

/// Delimiters of messages with headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Messages {
    /// Text that opens a message, and its author.
    pub start: [&'static str; 2],
    /// Text before the name of a channel.
    pub channel: &'static str,
    /// Text before the recipient of a call.
    pub recipient: &'static str,
    /// Text that ends the header.
    pub body: &'static str,
    /// Texts that end a message.
    pub ends: &'static [&'static str],
    /// Header of a message to the user, up to the body.
    pub answer: &'static str,
}

/// Format of a tool call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CallFormat {
    /// One JSON object with name and arguments.
    Object {
        /// Key of the arguments; the name's key is `name`.
        arguments: &'static str,
        /// True if all calls form one JSON list.
        list: bool,
    },
    /// The name, then the arguments.
    Named(Name, Arguments),
}

/// Delimiters of a call's name and identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    /// Text before the name.
    pub before: &'static str,
    /// Identifier after the name, if the markup has one.
    pub id: Option<Id>,
    /// Text after name and identifier.
    pub after: &'static str,
}

/// Format of a call's identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Id {
    /// Text before the identifier.
    pub before: &'static str,
    /// Regular expression of the identifier.
    pub pattern: &'static str,
    /// Example that matches `pattern`.
    pub example: &'static str,
}

/// Format of a call's arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arguments {
    /// One JSON object with all arguments.
    Json,
    /// Tagged name and value of each argument. A string value is written raw, any other as JSON.
    Tags {
        /// Opening and closing text of an argument's name.
        key: [&'static str; 2],
        /// Opening and closing text of its value. The delimiters' own white space is removed from
        /// the value, at most once.
        value: [&'static str; 2],
    },
    /// Gemma's notation `key:value,key:value}`: bare keys, strings enclosed in this text, numbers,
    /// `true`, `false`, `null`, `[…]` and `{…}`.
    Bare(&'static str),
}

const THINK: [&str; 2] = ["<think>", "</think>"];
const CALL: [&str; 2] = ["<tool_call>", "</tool_call>"];
const KEY: [&str; 2] = ["<arg_key>", "</arg_key>"];
const VALUE: [&str; 2] = ["<arg_value>", "</arg_value>"];
const QUOTE: &str = "<|\"|>";
const NO_NAME: Name = Name {
    before: "",
    id: None,
    after: "",
};

/// Hermes JSON, also used by Qwen 2.5 and 3, Youtu and others.
pub const JSON: Markup = Markup {
    name: "hermes",
    signs: &[],
    frame: Frame::Text,
    think: THINK,
    section: ["", ""],
    call: ["<tool_call>\n", "\n</tool_call>"],
    also: &[],
    form: CallFormat::Object {
        arguments: "arguments",
        list: false,
    },
    tokens: &[THINK[0], THINK[1], CALL[0], CALL[1]],
};

/// Tags of GLM models.
pub const TAGS: Markup = Markup {
    name: "glm",
    signs: &[KEY[0]],
    call: ["<tool_call>", "\n</tool_call>"],
    form: CallFormat::Named(
        Name {
            after: "\n",
            ..NO_NAME
        },
        Arguments::Tags {
            key: KEY,
            value: VALUE,
        },
    ),
    tokens: &[
        THINK[0], THINK[1], CALL[0], CALL[1], KEY[0], KEY[1], VALUE[0], VALUE[1],
    ],
    ..JSON
};

/// Tags of Qwen3-Coder and Qwen3.5.
const QWEN: Markup = Markup {
    name: "qwen3-coder",
    signs: &["<function=", "<parameter="],
    call: ["<tool_call>\n", "</function>\n</tool_call>"],
    form: CallFormat::Named(
        Name {
            before: "<function=",
            id: None,
            after: ">\n",
        },
        Arguments::Tags {
            key: ["<parameter=", ">"],
            value: ["\n", "\n</parameter>\n"],
        },
    ),
    ..JSON
};

const MINIMAX: Markup = Markup {
    name: "minimax-m2",
    signs: &["<minimax:tool_call>"],
    section: ["<minimax:tool_call>\n", "\n</minimax:tool_call>"],
    call: ["<invoke name=\"", "</invoke>\n"],
    form: CallFormat::Named(
        Name {
            after: "\">\n",
            ..NO_NAME
        },
        Arguments::Tags {
            key: ["<parameter name=\"", "\">"],
            value: ["", "</parameter>\n"],
        },
    ),
    tokens: &[
        THINK[0],
        THINK[1],
        "<minimax:tool_call>",
        "</minimax:tool_call>",
    ],
    ..JSON
};

/// DeepSeek V3.1. Its section delimiters equal those of V3 and R1.
const DEEPSEEK: Markup = Markup {
    name: "deepseek-v3.1",
    signs: &["<｜tool▁sep｜>"],
    section: ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
    call: ["<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"],
    also: &["<｜tool▁call▁begin｜>"],
    form: CallFormat::Named(
        Name {
            after: "<｜tool▁sep｜>",
            ..NO_NAME
        },
        Arguments::Json,
    ),
    tokens: &[
        THINK[0],
        THINK[1],
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁calls▁end｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁sep｜>",
    ],
    ..JSON
};

const DEEPSEEK_FENCED: Markup = Markup {
    name: "deepseek-v3",
    signs: &["<｜tool▁sep｜>", "```json"],
    call: ["<｜tool▁call▁begin｜>", "\n```\n<｜tool▁call▁end｜>\n"],
    form: CallFormat::Named(
        Name {
            before: "function<｜tool▁sep｜>",
            id: None,
            after: "\n```json\n",
        },
        Arguments::Json,
    ),
    ..DEEPSEEK
};

const KIMI: Markup = Markup {
    name: "kimi-k2",
    signs: &["<|tool_calls_section_begin|>"],
    section: ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
    call: ["<|tool_call_begin|>", "<|tool_call_end|>"],
    also: &["<|tool_call_begin|>"],
    form: CallFormat::Named(
        Name {
            before: "functions.",
            id: Some(Id {
                before: ":",
                pattern: "[0-9]{1,4}",
                example: "0",
            }),
            after: "<|tool_call_argument_begin|>",
        },
        Arguments::Json,
    ),
    tokens: &[
        THINK[0],
        THINK[1],
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    ],
    ..JSON
};

/// Mistral's JSON list: 7B v0.3, Nemo, Small up to 3.1.
const MISTRAL_LIST: Markup = Markup {
    name: "mistral-list",
    signs: &["[TOOL_CALLS]"],
    think: ["[THINK]", "[/THINK]"],
    section: ["[TOOL_CALLS]", ""],
    call: ["", ""],
    form: CallFormat::Object {
        arguments: "arguments",
        list: true,
    },
    tokens: &["[THINK]", "[/THINK]", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
    ..JSON
};

/// Ministral 3, Magistral and Devstral.
const MISTRAL: Markup = Markup {
    name: "mistral",
    signs: &["[TOOL_CALLS]", "[ARGS]"],
    section: ["", ""],
    call: ["[TOOL_CALLS]", ""],
    form: CallFormat::Named(
        Name {
            after: "[ARGS]",
            ..NO_NAME
        },
        Arguments::Json,
    ),
    ..MISTRAL_LIST
};

/// Mistral Small 3.2, with call identifiers.
const MISTRAL_ID: Markup = Markup {
    name: "mistral-id",
    signs: &["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
    form: CallFormat::Named(
        Name {
            id: Some(Id {
                before: "[CALL_ID]",
                pattern: "[a-zA-Z0-9]{9}",
                example: "call00000",
            }),
            after: "[ARGS]",
            ..NO_NAME
        },
        Arguments::Json,
    ),
    ..MISTRAL
};

/// Phi-4-mini; its template takes tools from the system message.
const PHI: Markup = Markup {
    name: "phi-4-mini",
    signs: &["<|tool|>", "<|/tool|>"],
    section: ["<|tool_call|>", "<|/tool_call|>"],
    call: ["", ""],
    form: CallFormat::Object {
        arguments: "arguments",
        list: true,
    },
    tokens: &["<|tool_call|>", "<|/tool_call|>"],
    ..JSON
};

/// Granite 3.1 to 3.3. The list has no closing text.
const GRANITE: Markup = Markup {
    name: "granite",
    signs: &["<|start_of_role|>", "<|tool_call|>"],
    section: ["<|tool_call|>", ""],
    tokens: &["<|tool_call|>"],
    ..PHI
};

const GEMMA: Markup = Markup {
    name: "gemma4",
    signs: &["<|tool_call>"],
    think: ["<|channel>thought", "<channel|>"],
    call: ["<|tool_call>", "<tool_call|>"],
    form: CallFormat::Named(
        Name {
            before: "call:",
            id: None,
            after: "{",
        },
        Arguments::Bare(QUOTE),
    ),
    tokens: &[
        "<|channel>",
        "<channel|>",
        "<|tool_call>",
        "<tool_call|>",
        QUOTE,
    ],
    ..JSON
};

/// Llama 3.1 and later: the whole reply is one JSON object.
pub const LLAMA: Markup = Markup {
    name: "llama3",
    signs: &["<|start_header_id|>ipython"],
    call: ["", ""],
    also: &["<|python_tag|>"],
    form: CallFormat::Object {
        arguments: "parameters",
        list: false,
    },
    tokens: &[THINK[0], THINK[1], "<|python_tag|>"],
    ..JSON
};

/// Harmony channels of gpt-oss.
const HARMONY: Markup = Markup {
    name: "harmony",
    signs: &["<|channel|>"],
    frame: Frame::Messages(Messages {
        start: ["<|start|>", "assistant"],
        channel: "<|channel|>",
        recipient: "to=",
        body: "<|message|>",
        ends: &["<|end|>", "<|return|>", "<|call|>"],
        answer: "<|channel|>final<|message|>",
    }),
    think: ["<|channel|>analysis<|message|>", "<|end|>"],
    call: ["<|channel|>commentary to=", ""],
    form: CallFormat::Named(
        Name {
            before: "functions.",
            id: None,
            after: " <|constrain|>json<|message|>",
        },
        Arguments::Json,
    ),
    tokens: &[
        "<|start|>",
        "<|channel|>",
        "<|message|>",
        "<|constrain|>",
        "<|end|>",
        "<|return|>",
        "<|call|>",
    ],
    ..JSON
};

/// All markups. A model uses the first whose signs its template contains.
pub const TABLE: &[Markup] = &[
    HARMONY,
    GEMMA,
    MINIMAX,
    KIMI,
    DEEPSEEK_FENCED,
    DEEPSEEK,
    MISTRAL_ID,
    MISTRAL,
    MISTRAL_LIST,
    PHI,
    GRANITE,
    LLAMA,
    QWEN,
    TAGS,
    JSON,
];

impl Markup {
    /// Returns the markup of the template for which `mentions` reports the contained texts.
    pub fn detect(mentions: impl Fn(&str) -> bool) -> &'static Markup {
        TABLE
            .iter()
            .find(|row| row.signs.iter().all(|sign| mentions(sign)))
            .unwrap_or(&JSON)
    }
    /// Returns the texts that open calls within content: the section's or the call's opening
    /// text, and the alternatives.
    pub fn opens(&self) -> impl Iterator<Item = &'static str> + use<> {
        let own = [self.section[0], self.call[0]]
            .into_iter()
            .map(str::trim)
            .find(|text| !text.is_empty());
        own.into_iter().chain(self.also.iter().copied())
    }
    /// Returns true if a call has no delimiters, so that a reply that is one JSON object
    /// may be a call.
    pub fn is_bare(&self) -> bool {
        self.section[0].is_empty() && self.call[0].is_empty()
    }
    /// Returns all markups with the same opening text of calls, this one first. Models sometimes
    /// write a related markup.
    pub fn dialects(&'static self) -> impl Iterator<Item = &'static Markup> {
        let first = self.opens().next();
        let others = TABLE
            .iter()
            .filter(move |row| *row != self && row.opens().next() == first);
        std::iter::once(self).chain(others)
    }
    /// Returns all delimiter tokens of this markup and its dialects, sorted.
    pub fn markers(&'static self) -> Vec<&'static str> {
        let mut markers: Vec<&str> = self
            .dialects()
            .flat_map(|row| row.tokens.iter().copied())
            .collect();
        markers.sort_unstable();
        markers.dedup();
        markers
    }
    /// Returns the delimiter tokens that assistant messages may contain as tokens. None of them can
    /// end the turn and begin one of another role.
    pub fn within_turn(&'static self) -> Vec<&'static str> {
        match self.frame {
            Frame::Text => self.markers(),
            Frame::Messages(_) => Vec::new(),
        }
    }
}

/// Returns the delimiter tokens of all markups, sorted, each once.
pub fn all_markers() -> Vec<&'static str> {
    let mut all: Vec<&str> = TABLE
        .iter()
        .flat_map(|row| row.tokens.iter().copied())
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_token_of_a_row_is_in_a_text_of_a_dialect_or_its_frame() {
        for row in TABLE {
            let texts: Vec<String> = row
                .dialects()
                .map(|row| format!("{row:?}").replace("\\\"", "\""))
                .collect();
            for token in row.tokens {
                // Once as a token, and at least once where it is used.
                let uses: usize = texts.iter().map(|text| text.matches(token).count()).sum();
                let listed = row
                    .dialects()
                    .filter(|row| row.tokens.contains(token))
                    .count();
                assert!(uses > listed, "{}: {token}", row.name);
            }
        }
    }

    #[test]
    fn openings_have_no_white_space_in_text_frames() {
        for row in TABLE.iter().filter(|row| row.frame == Frame::Text) {
            assert!(
                row.opens().all(|open| !open.contains(char::is_whitespace)),
                "{}",
                row.name
            );
        }
    }

    #[test]
    fn a_template_says_how_its_model_writes() {
        let of = |text: &str| Markup::detect(|sign| text.contains(sign)).name;
        assert_eq!(of("{% if tools %}<arg_key>{% endif %}"), "glm");
        assert_eq!(of("{{ messages }}"), "hermes");
        assert_eq!(
            of("'<｜tool▁sep｜>' + name + '\\n```json\\n'"),
            "deepseek-v3"
        );
        assert_eq!(of("'<｜tool▁sep｜>' + name"), "deepseek-v3.1");
        assert_eq!(
            of("<|start_of_role|> respond with <|tool_call|> and a list"),
            "granite"
        );
        assert_eq!(of("<|start_of_role|> <tool_call>"), "hermes");
        assert_eq!(of("[TOOL_CALLS][ARGS]"), "mistral");
        assert_eq!(of("[TOOL_CALLS][CALL_ID][ARGS]"), "mistral-id");
        assert_eq!(of("[TOOL_CALLS]["), "mistral-list");
    }
}
