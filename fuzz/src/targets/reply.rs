//! What a model writes, taken apart: it is as little to be trusted as what a client sends.

use crate::Target;
use crate::bytes::Bytes;
use gristmill_llm::chat::markup::{JSON, MARKERS, TAGS};
use gristmill_server::fuzzing::{Part, Reply, Schemas};
use serde_json::{Value, json};
use std::sync::LazyLock;

/// What replies are made of besides the texts that structure them.
const OTHERS: &[&str] = &[
    "{\"name\": \"f\", \"arguments\": {",
    "\"x\": 1",
    "}}",
    "{",
    "}",
    "\"",
    "\\",
    "\\u12",
    "f",
    "x",
    "\n",
    "<",
    "</",
    " ",
];

/// Both.
const WORDS: [&str; MARKERS.len() + OTHERS.len()] = {
    let mut words = [""; MARKERS.len() + OTHERS.len()];
    let (structure, others) = words.split_at_mut(MARKERS.len());
    structure.copy_from_slice(MARKERS);
    others.copy_from_slice(OTHERS);
    words
};

/// A byte of choices, and the text.
pub const TARGET: Target = Target {
    name: "reply",
    about: "a model's reply with reasoning and calls: taken apart in pieces and at once",
    run,
    seeds,
    words: &WORDS,
    longest: 4 << 10,
    tries: 4000,
};

fn run(input: &[u8]) {
    static PARAMETERS: LazyLock<Value> = LazyLock::new(
        || json!({ "properties": { "x": { "type": "string" }, "n": { "type": "integer" }, "o": { "type": "object" } } }),
    );
    let mut input = Bytes::new(input);
    let how = input.byte();
    let (reasoning, tools, forced, cut) = (how & 1 != 0, how & 2 != 0, how & 4 != 0, how & 8 != 0);
    let piece = 1 + usize::from(how >> 4);
    let text = String::from_utf8_lossy(input.rest()).into_owned();
    let schemas = || tools.then(|| Schemas::new([("f", Some(&*PARAMETERS)), ("g", None)].into_iter()));
    let parsed = |piece: usize| {
        let markup = if how & 16 == 0 { JSON } else { TAGS };
        let mut reply = Reply::new(markup, reasoning, schemas(), forced);
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

/// Neighbours of one kind made one: where texts are cut is a matter of when they came.
fn joined(parts: Vec<Part>) -> Vec<Part> {
    let mut out: Vec<Part> = Vec::new();
    for part in parts {
        match (out.last_mut(), part) {
            (Some(Part::Reasoning(text)), Part::Reasoning(more))
            | (Some(Part::Content(text)), Part::Content(more))
            | (Some(Part::Arguments(text)), Part::Arguments(more)) => text.push_str(&more),
            (_, part) => out.push(part),
        }
    }
    out
}

fn seeds() -> Vec<Vec<u8>> {
    const TEXTS: &[&str] = &[
        "Hm. So?</think>The answer is 42.",
        "<think>a</think>b<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": \"1\", \"o\": {\"k\": [1, {}]}}}</tool_call> c",
        "<tool_call>f<arg_key>x</arg_key><arg_value>New York</arg_value><arg_key>n</arg_key><arg_value>3</arg_value></tool_call>",
        "<tool_call>g</tool_call><tool_call>{\"name\": \"g\"",
    ];
    TEXTS.iter().zip([0x11u8, 0x22, 0x36, 0x4E]).map(|(text, how)| [&[how], text.as_bytes()].concat()).collect()
}
