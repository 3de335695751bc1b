//! Built-in chat templates, for files with no template or a broken one.
//!
//! To add one, add a file to `templates/` and a row to the table.

/// A built-in template, and the files that use it by default.
struct Builtin {
    name: &'static str,
    /// Pre-tokenisers of its files.
    pres: &'static [&'static str],
    /// Control tokens that its vocabularies have, all of them; empty for none that are known.
    marks: &'static [&'static str],
    source: &'static str,
}

macro_rules! builtin {
    ($name:literal, $pres:expr, $marks:expr) => {
        Builtin {
            name: $name,
            pres: &$pres,
            marks: &$marks,
            source: include_str!(concat!("templates/", $name, ".jinja")),
        }
    };
}

const BUILTIN: &[Builtin] = &[
    builtin!("glm4.7", ["glm4"], []),
    builtin!("deepseek2", ["deepseek-llm"], []),
    builtin!("youtu", ["youtu"], []),
    builtin!("chatml", [], ["<|im_start|>", "<|im_end|>"]),
    builtin!("gemma", [], ["<start_of_turn>", "<end_of_turn>"]),
    builtin!("llama3", [], ["<|start_header_id|>", "<|end_header_id|>"]),
    builtin!("llama4", [], ["<|header_start|>", "<|header_end|>"]),
    builtin!("granite", [], ["<|start_of_role|>", "<|end_of_role|>"]),
    builtin!("deepseek3", [], ["<｜User｜>", "<｜Assistant｜>"]),
    builtin!(
        "command-r",
        [],
        ["<|START_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>"]
    ),
    builtin!("mistral", [], ["[INST]", "[/INST]"]),
    builtin!("phi3", [], ["<|user|>", "<|assistant|>", "<|end|>"]),
];

/// Returns the names of all built-in templates.
pub fn names() -> Vec<&'static str> {
    BUILTIN.iter().map(|builtin| builtin.name).collect()
}

/// Returns the source of the template `name`; `None` if there is none.
pub fn source(name: &str) -> Option<&'static str> {
    BUILTIN
        .iter()
        .find(|builtin| builtin.name == name)
        .map(|builtin| builtin.source)
}

/// Returns the name of the default template for the pre-tokeniser `pre`; "chatml" if no
/// other template is known.
pub fn for_pre(pre: &str) -> &'static str {
    for_vocabulary(pre, &[])
}

/// Returns the name of the default template for a vocabulary with these control tokens: by
/// pre-tokeniser, then by the tokens around turns; "chatml" if no other template is known.
pub(super) fn for_vocabulary(pre: &str, control: &[String]) -> &'static str {
    let has = |mark: &&str| control.iter().any(|text| text == mark);
    let by_pre = |builtin: &&Builtin| builtin.pres.contains(&pre);
    let by_marks = |builtin: &&Builtin| !builtin.marks.is_empty() && builtin.marks.iter().all(has);
    let known = BUILTIN.iter().find(by_pre);
    let known = known.or_else(|| BUILTIN.iter().find(by_marks));
    known.map_or("chatml", |builtin| builtin.name)
}
