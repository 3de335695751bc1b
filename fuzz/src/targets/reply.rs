//! Fuzz target for parsing model output, which is as untrusted as client input.

use crate::Target;
use crate::bytes::FuzzInput;
use gristmill_llm::chat::markup::TABLE;
use gristmill_llm::chat::spell::{self, Spelt};
use gristmill_server::fuzzing::{Begins, Reply, ReplyPart, Schemas};
use serde_json::{Value, json};
use std::sync::LazyLock;

/// Dictionary: structural tokens of replies, and text between them.
const WORDS: &[&str] = &[
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<arg_key>",
    "</arg_key>",
    "<arg_value>",
    "</arg_value>",
    "<function=",
    "<parameter=",
    "</parameter>",
    "</function>",
    "<minimax:tool_call>",
    "</minimax:tool_call>",
    "<invoke name=\"",
    "<parameter name=\"",
    "\">",
    "</invoke>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
    "function<｜tool▁sep｜>",
    "```json\n",
    "\n```",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "functions.",
    ":0",
    "[TOOL_CALLS]",
    "[CALL_ID]",
    "[ARGS]",
    "[THINK]",
    "[/THINK]",
    "<|channel>thought",
    "<channel|>",
    "<|tool_call>",
    "<|tool_call|>",
    "<|/tool_call|>",
    "<tool_call|>",
    "<|\"|>",
    "call:",
    "<|python_tag|>",
    "<|start|>",
    "<|channel|>",
    "<|message|>",
    "<|end|>",
    "<|call|>",
    "assistant",
    "analysis",
    "final",
    "to=functions.",
    "{\"name\": \"f\", \"arguments\": {",
    "{\"name\": \"f\", \"parameters\": {",
    "\"x\": 1",
    "}}",
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    ";",
    "\"",
    "\\",
    "\\u12",
    "f",
    "x",
    "\n",
    "<",
    "</",
    ">",
    " ",
];

/// Input: two bytes of choices, then the text.
pub const TARGET: Target = Target {
    name: "reply",
    about: "a model's reply with reasoning and calls: taken apart in pieces and at once",
    run,
    seeds,
    words: WORDS,
    longest: 4 << 10,
    tries: 4000,
};

fn run(input: &[u8]) {
    static PARAMETERS: LazyLock<Value> = LazyLock::new(
        || json!({ "properties": { "x": { "type": "string" }, "n": { "type": "integer" }, "o": { "type": "object" } } }),
    );
    let mut input = FuzzInput::new(input);
    let (how, row) = (input.byte(), input.byte());
    let begins = if how & 1 != 0 {
        Begins::Reasoning
    } else {
        Begins::Open
    };
    let (tools, forced, cut) = (how & 2 != 0, how & 4 != 0, how & 8 != 0);
    let piece = 1 + usize::from(how >> 4);
    let text = String::from_utf8_lossy(input.rest()).into_owned();
    let schemas =
        || tools.then(|| Schemas::new([("f", Some(&*PARAMETERS)), ("g", None)].into_iter()));
    let parsed = |piece: usize| {
        let mut reply = Reply::new(
            &TABLE[usize::from(row) % TABLE.len()],
            begins,
            schemas(),
            forced,
        );
        let characters: Vec<char> = text.chars().collect();
        let mut parts = Vec::new();
        for few in characters.chunks(piece) {
            parts.extend(reply.push(&few.iter().collect::<String>()));
        }
        parts.extend(reply.finish(cut));
        joined(parts)
    };
    let (pieces, whole) = (parsed(piece), parsed(usize::MAX));
    assert_eq!(pieces, whole, "in pieces of {piece} otherwise than at once");
}

/// Joins neighbouring parts of the same kind, since the cuts depend on how the text arrived.
fn joined(parts: Vec<ReplyPart>) -> Vec<ReplyPart> {
    let mut out: Vec<ReplyPart> = Vec::new();
    for part in parts {
        match (out.last_mut(), part) {
            (Some(ReplyPart::Reasoning(text)), ReplyPart::Reasoning(more))
            | (Some(ReplyPart::Content(text)), ReplyPart::Content(more))
            | (Some(ReplyPart::Arguments(text)), ReplyPart::Arguments(more)) => {
                text.push_str(&more)
            }
            (_, part) => out.push(part),
        }
    }
    out
}

fn seeds() -> Vec<Vec<u8>> {
    let arguments = serde_json::Map::from_iter([
        ("x".to_owned(), Value::from("New York")),
        ("n".to_owned(), Value::from(3)),
        ("o".to_owned(), json!({ "k": [1, {}] })),
    ]);
    let calls = [
        Spelt {
            name: "f",
            arguments: &arguments,
        },
        Spelt {
            name: "g",
            arguments: &serde_json::Map::new(),
        },
    ];
    let spelt = TABLE.iter().zip(0u8..).map(|(row, index)| {
        let [open, close] = row.think;
        [
            &[0x32, index],
            format!("{open}a{close}b{}", spell::calls(row, &calls)).as_bytes(),
        ]
        .concat()
    });
    spelt
        .chain([[&[0x11, 12], "Hm. So?</think>The answer is 42.".as_bytes()].concat()])
        .collect()
}
