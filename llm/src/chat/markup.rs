//! How replies are marked up: reasoning, calls of tools. One row a markup; who parses replies, who writes grammars for them, who describes
//! tools to a model and who decides what a message may spell all read it here.
//!
//! White space in the texts of calls is what the model was trained on, and may be missing or more: parsers pass over it, grammars leave it open.

/// A markup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Markup {
    /// What it is called.
    pub name: &'static str,
    /// What the text of a template has in it, all of it, whose model writes so; nothing for the row that serves all others.
    pub signs: &'static [&'static str],
    /// What a reply consists of.
    pub frame: Frame,
    /// Opens and closes reasoning.
    pub think: [&'static str; 2],
    /// Opens and closes all calls of a reply; empty where each stands for itself.
    pub section: [&'static str; 2],
    /// Opens and closes a call; empty where nothing does.
    pub call: [&'static str; 2],
    /// What calls may begin with instead.
    pub also: &'static [&'static str],
    /// What is between.
    pub form: Form,
    /// The texts, alone or within those above, that vocabularies have tokens for.
    pub tokens: &'static [&'static str],
}

/// What a reply consists of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frame {
    /// A text, with reasoning at its beginning and calls within it.
    Text,
    /// Messages, each with a header that says what it is: `assistant<|channel|>final<|message|>text<|end|>`. The prompt ends within the
    /// first header.
    Messages(Messages),
}

/// The texts of messages with headers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Messages {
    /// Opens a message, and its author.
    pub start: [&'static str; 2],
    /// Before the name of a channel.
    pub channel: &'static str,
    /// Before whom a call goes to.
    pub recipient: &'static str,
    /// Ends the header.
    pub body: &'static str,
    /// End a message.
    pub ends: &'static [&'static str],
    /// The header of what is said to the user, up to the body.
    pub answer: &'static str,
}

/// How a call is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// One object in JSON.
    Object {
        /// The key of the arguments, beside `name`.
        arguments: &'static str,
        /// Do all calls stand in one list?
        list: bool,
    },
    /// The name, and then the arguments.
    Named(Name, Arguments),
}

/// What stands around a call's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name {
    /// Before it.
    pub before: &'static str,
    /// Behind it, where the call has an identifier.
    pub id: Option<Id>,
    /// Behind both.
    pub after: &'static str,
}

/// A call's identifier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Id {
    /// What it stands behind.
    pub before: &'static str,
    /// What it is, as a regular expression.
    pub pattern: &'static str,
    /// One that is.
    pub example: &'static str,
}

/// How arguments are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arguments {
    /// As an object in JSON.
    Json,
    /// Each apart: its name between the first pair, its value between the second, a string as it is and all else in JSON.
    Tags {
        /// Open and close the name of an argument.
        key: [&'static str; 2],
        /// Open and close its value. White space here is the pair's, at most once.
        value: [&'static str; 2],
    },
    /// `key:value,key:value}` with bare keys, strings between two of these, numbers, `true`, `false`, `null`, `[…]` and `{…}`.
    Bare(&'static str),
}

const THINK: [&str; 2] = ["<think>", "</think>"];
const CALL: [&str; 2] = ["<tool_call>", "</tool_call>"];
const KEY: [&str; 2] = ["<arg_key>", "</arg_key>"];
const VALUE: [&str; 2] = ["<arg_value>", "</arg_value>"];
const QUOTE: &str = "<|\"|>";
const NO_NAME: Name = Name { before: "", id: None, after: "" };

/// Hermes' JSON, which Qwen 2.5 and 3, Youtu and others took over.
pub const JSON: Markup = Markup {
    name: "hermes",
    signs: &[],
    frame: Frame::Text,
    think: THINK,
    section: ["", ""],
    call: ["<tool_call>\n", "\n</tool_call>"],
    also: &[],
    form: Form::Object { arguments: "arguments", list: false },
    tokens: &[THINK[0], THINK[1], CALL[0], CALL[1]],
};

/// GLM's tags.
pub const TAGS: Markup = Markup {
    name: "glm",
    signs: &[KEY[0]],
    call: ["<tool_call>", "\n</tool_call>"],
    form: Form::Named(Name { after: "\n", ..NO_NAME }, Arguments::Tags { key: KEY, value: VALUE }),
    tokens: &[THINK[0], THINK[1], CALL[0], CALL[1], KEY[0], KEY[1], VALUE[0], VALUE[1]],
    ..JSON
};

/// The tags of Qwen3-Coder and Qwen3.5.
const QWEN: Markup = Markup {
    name: "qwen3-coder",
    signs: &["<function=", "<parameter="],
    call: ["<tool_call>\n", "</function>\n</tool_call>"],
    form: Form::Named(
        Name { before: "<function=", id: None, after: ">\n" },
        Arguments::Tags { key: ["<parameter=", ">"], value: ["\n", "\n</parameter>\n"] },
    ),
    ..JSON
};

const MINIMAX: Markup = Markup {
    name: "minimax-m2",
    signs: &["<minimax:tool_call>"],
    section: ["<minimax:tool_call>\n", "\n</minimax:tool_call>"],
    call: ["<invoke name=\"", "</invoke>\n"],
    form: Form::Named(
        Name { after: "\">\n", ..NO_NAME },
        Arguments::Tags { key: ["<parameter name=\"", "\">"], value: ["", "</parameter>\n"] },
    ),
    tokens: &[THINK[0], THINK[1], "<minimax:tool_call>", "</minimax:tool_call>"],
    ..JSON
};

/// DeepSeek V3.1. Its sections, and those of V3 and R1, have the same texts.
const DEEPSEEK: Markup = Markup {
    name: "deepseek-v3.1",
    signs: &["<｜tool▁sep｜>"],
    section: ["<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"],
    call: ["<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"],
    also: &["<｜tool▁call▁begin｜>"],
    form: Form::Named(Name { after: "<｜tool▁sep｜>", ..NO_NAME }, Arguments::Json),
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
    form: Form::Named(Name { before: "function<｜tool▁sep｜>", id: None, after: "\n```json\n" }, Arguments::Json),
    ..DEEPSEEK
};

const KIMI: Markup = Markup {
    name: "kimi-k2",
    signs: &["<|tool_calls_section_begin|>"],
    section: ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"],
    call: ["<|tool_call_begin|>", "<|tool_call_end|>"],
    also: &["<|tool_call_begin|>"],
    form: Form::Named(
        Name {
            before: "functions.",
            id: Some(Id { before: ":", pattern: "[0-9]{1,4}", example: "0" }),
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

/// Mistral's list: 7B v0.3, Nemo, Small up to 3.1.
const MISTRAL_LIST: Markup = Markup {
    name: "mistral-list",
    signs: &["[TOOL_CALLS]"],
    think: ["[THINK]", "[/THINK]"],
    section: ["[TOOL_CALLS]", ""],
    call: ["", ""],
    form: Form::Object { arguments: "arguments", list: true },
    tokens: &["[THINK]", "[/THINK]", "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
    ..JSON
};

/// Ministral 3, Magistral, Devstral.
const MISTRAL: Markup = Markup {
    name: "mistral",
    signs: &["[TOOL_CALLS]", "[ARGS]"],
    section: ["", ""],
    call: ["[TOOL_CALLS]", ""],
    form: Form::Named(Name { after: "[ARGS]", ..NO_NAME }, Arguments::Json),
    ..MISTRAL_LIST
};

/// Mistral Small 3.2.
const MISTRAL_ID: Markup = Markup {
    name: "mistral-id",
    signs: &["[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"],
    form: Form::Named(
        Name {
            id: Some(Id { before: "[CALL_ID]", pattern: "[a-zA-Z0-9]{9}", example: "call00000" }),
            after: "[ARGS]",
            ..NO_NAME
        },
        Arguments::Json,
    ),
    ..MISTRAL
};

/// Phi-4-mini, whose template takes tools as a part of the system's message.
const PHI: Markup = Markup {
    name: "phi-4-mini",
    signs: &["<|tool|>", "<|/tool|>"],
    section: ["<|tool_call|>", "<|/tool_call|>"],
    call: ["", ""],
    form: Form::Object { arguments: "arguments", list: true },
    tokens: &["<|tool_call|>", "<|/tool_call|>"],
    ..JSON
};

/// Granite 3.1 to 3.3. Nothing closes the list.
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
    form: Form::Named(Name { before: "call:", id: None, after: "{" }, Arguments::Bare(QUOTE)),
    tokens: &["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", QUOTE],
    ..JSON
};

/// Llama 3.1 and later: an object is the whole reply.
const LLAMA: Markup = Markup {
    name: "llama3",
    signs: &["<|start_header_id|>ipython"],
    call: ["", ""],
    also: &["<|python_tag|>"],
    form: Form::Object { arguments: "parameters", list: false },
    tokens: &[THINK[0], THINK[1], "<|python_tag|>"],
    ..JSON
};

/// gpt-oss: harmony's channels.
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
    form: Form::Named(Name { before: "functions.", id: None, after: " <|constrain|>json<|message|>" }, Arguments::Json),
    tokens: &["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>", "<|return|>", "<|call|>"],
    ..JSON
};

/// All of them; the first whose signs a template has is its model's.
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
    /// The markup of a model whose template `mentions` some texts.
    pub fn of(mentions: impl Fn(&str) -> bool) -> &'static Markup {
        TABLE.iter().find(|row| row.signs.iter().all(|sign| mentions(sign))).unwrap_or(&JSON)
    }
    /// What calls begin with in the middle of a text: their section, or where there is none one of them, and what may stand for it.
    pub fn opens(&self) -> impl Iterator<Item = &'static str> + use<> {
        let own = [self.section[0], self.call[0]].into_iter().map(str::trim).find(|text| !text.is_empty());
        own.into_iter().chain(self.also.iter().copied())
    }
    /// Is a reply that is one object a call?
    pub fn is_bare(&self) -> bool {
        self.section[0].is_empty() && self.call[0].is_empty()
    }
    /// The rows whose calls begin as this one's do, itself first: models that were made for the one write the other now and then.
    pub fn dialects(&'static self) -> impl Iterator<Item = &'static Markup> {
        let first = self.opens().next();
        let others = TABLE.iter().filter(move |row| *row != self && row.opens().next() == first);
        std::iter::once(self).chain(others)
    }
    /// All tokens that may structure a reply of a model that writes so.
    pub fn markers(&'static self) -> Vec<&'static str> {
        let mut markers: Vec<&str> = self.dialects().flat_map(|row| row.tokens.iter().copied()).collect();
        markers.sort_unstable();
        markers.dedup();
        markers
    }
    /// The tokens that a message of the assistant's may hold as such: none of them can end it and begin somebody else's.
    pub fn within_turn(&'static self) -> Vec<&'static str> {
        match self.frame {
            Frame::Text => self.markers(),
            Frame::Messages(_) => Vec::new(),
        }
    }
}

/// All tokens of the table, each once.
pub fn all_markers() -> Vec<&'static str> {
    let mut all: Vec<&str> = TABLE.iter().flat_map(|row| row.tokens.iter().copied()).collect();
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
            let texts: Vec<String> = row.dialects().map(|row| format!("{row:?}").replace("\\\"", "\"")).collect();
            for token in row.tokens {
                // Once as a token, and once at least where it is used.
                let uses: usize = texts.iter().map(|text| text.matches(token).count()).sum();
                let listed = row.dialects().filter(|row| row.tokens.contains(token)).count();
                assert!(uses > listed, "{}: {token}", row.name);
            }
        }
    }

    #[test]
    fn openings_have_no_white_space_in_text_frames() {
        for row in TABLE.iter().filter(|row| row.frame == Frame::Text) {
            assert!(row.opens().all(|open| !open.contains(char::is_whitespace)), "{}", row.name);
        }
    }

    #[test]
    fn a_template_says_how_its_model_writes() {
        let of = |text: &str| Markup::of(|sign| text.contains(sign)).name;
        assert_eq!(of("{% if tools %}<arg_key>{% endif %}"), "glm");
        assert_eq!(of("{{ messages }}"), "hermes");
        assert_eq!(of("'<｜tool▁sep｜>' + name + '\\n```json\\n'"), "deepseek-v3");
        assert_eq!(of("'<｜tool▁sep｜>' + name"), "deepseek-v3.1");
        assert_eq!(of("<|start_of_role|> respond with <|tool_call|> and a list"), "granite");
        assert_eq!(of("<|start_of_role|> <tool_call>"), "hermes");
        assert_eq!(of("[TOOL_CALLS][ARGS]"), "mistral");
        assert_eq!(of("[TOOL_CALLS][CALL_ID][ARGS]"), "mistral-id");
        assert_eq!(of("[TOOL_CALLS]["), "mistral-list");
    }
}
