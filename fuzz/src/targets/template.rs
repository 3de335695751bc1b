//! Fuzz target for chat templates.

use crate::Target;
use crate::bytes::FuzzInput;
use crate::targets::toy;
use gristmill_llm::chat::{ChatTemplate, Isolation, Message, RenderOptions, SpecialTexts};
use std::sync::LazyLock;
use std::time::SystemTime;

/// Input: a template, a zero byte, and the text of the messages.
pub const TARGET: Target = Target {
    name: "template",
    about: "a chat template and a conversation: compiled and rendered, with trust and without",
    run,
    seeds,
    words: &[
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "#}",
        "{%-",
        "-%}",
        "messages",
        "message",
        "content",
        "role",
        "tools",
        "loop.index0",
        "loop.last",
        "namespace(",
        "set ",
        "if ",
        "elif ",
        "else",
        "endif",
        "for ",
        "in ",
        "endfor",
        "endset",
        "macro ",
        "endmacro",
        "call",
        "generation",
        "endgeneration",
        "is defined",
        "is string",
        "is none",
        "not ",
        "and ",
        "or ",
        "|trim",
        "|tojson",
        "|length",
        "|upper",
        "|items",
        "|last",
        "|selectattr('role')",
        "|map(attribute='x')",
        ".split('a')",
        ".strip()",
        ".startswith('a')",
        "[::-1]",
        "[0]",
        "raise_exception('x')",
        "strftime_now('%Y')",
        "range(3)",
        "'a'",
        "1",
        "none",
        "true",
        "break",
        "continue",
        "add_generation_prompt",
        "enable_thinking",
    ],
    longest: 4 << 10,
    tries: 1500,
};

/// Limit on operators of one kind in a template rendered in this process, where only the input's
/// length bounds their depth.
const DEEP: usize = 500;

/// Names that may request gigabytes within this process: repetition, padding, doubling. They are
/// permitted in a sandbox process, which limits memory.
const HUNGRY: &[&str] = &[
    "*", "~", "+", "%", "range", "replace", "join", "format", "batch", "slice", "indent", "center",
    "just", "wordwrap", "lipsum",
];

/// Returns whether rendering is bounded without a separate process.
fn is_bounded(source: &str) -> bool {
    // A loop, macro or recursion may repeat these operations, and a variable may grow or contain
    // itself.
    let code = source.replace("{%", "").replace("%}", "");
    let again = ["for", "macro", "call", "recursive", "namespace"]
        .iter()
        .any(|word| code.contains(word));
    let hungry = HUNGRY.iter().any(|word| code.contains(word));
    !(again && hungry || code.contains("namespace") || hungry && code.matches("set").count() > 2)
}

fn run(input: &[u8]) {
    static SPECIALS: LazyLock<SpecialTexts> =
        LazyLock::new(|| SpecialTexts::from(&toy::tokenizer()));
    let mut input = FuzzInput::new(input);
    let source = String::from_utf8_lossy(input.until(0)).into_owned();
    let first = String::from_utf8_lossy(input.until(0)).into_owned();
    let second = String::from_utf8_lossy(input.until(0)).into_owned();
    let switches = input.byte();
    if source.len() > 8 * DEEP || !is_bounded(&source) {
        return;
    }
    let Ok(template) = ChatTemplate::new(&source, &SPECIALS, &Isolation::InProcess) else {
        return;
    };
    let mut messages = vec![
        Message::system("be kind"),
        Message::user(first),
        Message::assistant(second),
    ];
    if switches & 4 != 0 {
        messages.push(Message::tool("42"));
    }
    let options = RenderOptions {
        add_generation_prompt: switches & 1 != 0,
        enable_thinking: [None, Some(true), Some(false)][usize::from(switches >> 4) % 3],
        now: Some(SystemTime::UNIX_EPOCH),
        ..RenderOptions::default()
    };
    let Ok(spans) = template.render(&messages, &options) else {
        return;
    };
    let again = template
        .render(&messages, &options)
        .expect("it rendered before");
    assert_eq!(spans, again, "a rendering that differs from the one before");
    // Trusted spans cannot come from a message: neither its control tokens nor its full text.
    assert!(
        spans.iter().all(|span| !span.text.is_empty()),
        "an empty span"
    );
}

fn seeds() -> Vec<Vec<u8>> {
    const TEMPLATES: &[&str] = &[
        "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
        "{{ bos_token }}{%- for m in messages -%}{%- if m['role'] == 'user' -%}User: {{ m['content'] | trim }}{%- elif loop.last -%}\n{{ m.content.split('</think>')[-1].strip() }}{{ eos_token }}{%- endif -%}{%- endfor -%}",
        "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}{{ messages[1:]|tojson }}{% if tools %}{{ tools|length }}{% endif %}",
        "{%- macro show(x, y=2) -%}[{{ x|upper }}{{ y }}]{%- endmacro -%}{{ show(messages|length) }}{{ show('a', 1) }}",
        "{% generation %}{{ messages[-1].content is string }}{% endgeneration %}{{ {'a': [1, 2.5, none, true]}|tojson(indent=1) }}",
        "{% if enable_thinking is defined and not enable_thinking %}</think>{% else %}{{ strftime_now('%d %b %Y') }}{% endif %}{{ raise_exception('no') if tools }}",
        "{% for m in messages if m.role != 'system' %}{% if loop.index0 == 1 %}{% break %}{% endif %}{{ loop.cycle('a','b') }}{{ m.content|replace('a','b') }}{% endfor %}",
    ];
    TEMPLATES
        .iter()
        .map(|t| {
            [
                t.as_bytes(),
                b"\0hello <|user|> there\0an answer</think>yes\0\x01",
            ]
            .concat()
        })
        .collect()
}
