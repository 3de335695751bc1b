//! Tests of replies in every markup, split at every position.

use super::{Begins, Reply, ReplyPart, Schemas};
use crate::chat::markup::{JSON, Markup, TABLE, all_markers};
use crate::chat::spell::{self, Spelt};
use proptest::prelude::*;
use serde_json::json;

fn schemas() -> Schemas {
    let weather = json!({ "properties": { "city": { "type": "string" }, "days": { "type": "integer" }, "unit": { "enum": ["c", "f"] } } });
    Schemas::new([("weather", Some(&weather)), ("now", None)].into_iter())
}

/// Joins adjacent parts of one kind.
fn joined(parts: Vec<ReplyPart>) -> Vec<ReplyPart> {
    let mut out: Vec<ReplyPart> = Vec::new();
    for part in parts {
        match (out.last_mut(), &part) {
            (Some(ReplyPart::Reasoning(a)), ReplyPart::Reasoning(b))
            | (Some(ReplyPart::Content(a)), ReplyPart::Content(b))
            | (Some(ReplyPart::Arguments(a)), ReplyPart::Arguments(b)) => a.push_str(b),
            _ => out.push(part),
        }
    }
    out
}

fn begins(reasoning: bool) -> Begins {
    if reasoning {
        Begins::Reasoning
    } else {
        Begins::Open
    }
}

fn cut(text: &str, size: usize, reasoning: bool, tools: bool) -> Vec<ReplyPart> {
    ended(
        text,
        size,
        Reply::new(&JSON, begins(reasoning), tools.then(schemas), false),
        false,
    )
}

fn ended(text: &str, size: usize, mut reply: Reply, cut: bool) -> Vec<ReplyPart> {
    let chars: Vec<char> = text.chars().collect();
    let mut parts = Vec::new();
    for piece in chars.chunks(size) {
        parts.extend(reply.push(&piece.iter().collect::<String>()));
    }
    parts.extend(reply.finish(cut));
    joined(parts)
}

#[track_caller]
fn check(text: &str, reasoning: bool, tools: bool, expected: &[ReplyPart]) {
    for size in [1, 2, 3, 7, 1000] {
        assert_eq!(
            cut(text, size, reasoning, tools),
            expected,
            "{text:?} by {size}"
        );
    }
}

fn reasoning(text: &str) -> ReplyPart {
    ReplyPart::Reasoning(text.into())
}
fn content(text: &str) -> ReplyPart {
    ReplyPart::Content(text.into())
}
fn call(name: &str) -> ReplyPart {
    ReplyPart::Call(name.into())
}
fn arguments(text: &str) -> ReplyPart {
    ReplyPart::Arguments(text.into())
}

/// Qwen2.5-Coder writes calls so.
#[test]
fn a_whole_json_object_without_delimiters_may_be_a_call() {
    let called = |arguments_text: &str| vec![call("weather"), arguments(arguments_text)];
    let object = r#"{"name": "weather", "arguments": {"city": "Rome"}}"#;
    for text in [
        object.to_owned(),
        format!("\n{object}\n"),
        format!("```json\n{object}\n```"),
        format!("```\n{object}\n```\n"),
        format!("<tools>\n{object}\n</tools>"),
        r#"{"arguments": {"city": "Rome"}, "name": "weather"}"#.into(),
    ] {
        check(&text, false, true, &called(r#"{"city": "Rome"}"#));
    }
    let two = format!("{object}\n{object}");
    let twice = [called(r#"{"city": "Rome"}"#), called(r#"{"city": "Rome"}"#)].concat();
    check(&two, false, true, &twice);
    let thought = format!("Hm.</think>\n\n{object}");
    let parts = [vec![reasoning("Hm.")], called(r#"{"city": "Rome"}"#)].concat();
    check(&thought, true, true, &parts);
    for text in [
        r#"{"name": "weather"}"#,
        r#"{"name": "never", "arguments": {}}"#,
        r#" {"city": "Rome"}"#,
        "```json\n{\"a\": 1}\n```",
        "```rust\nfn main() {}\n```",
        "<tools>\n{\"a\": 1}\n</tools>",
        "<toolbox>",
        "<tool",
        "``",
    ] {
        check(text, false, true, &[content(text)]);
    }
    check(object, false, false, &[content(object)]);
}

#[test]
fn plain_text_stays_as_it_is() {
    check(
        " Hello\n\nthere. ",
        false,
        false,
        &[content(" Hello\n\nthere. ")],
    );
    check(
        "a <b> </b> <think",
        false,
        true,
        &[content("a <b> </b> <think")],
    );
    check("<thin air>", false, false, &[content("<thin air>")]);
    check("", false, true, &[]);
    // Without tools the text is content.
    check(
        "<tool_call>x</tool_call>",
        false,
        false,
        &[content("<tool_call>x</tool_call>")],
    );
}

#[test]
fn reasoning_is_kept_apart() {
    check(
        "<think>\nhm, é\n</think>\n\nYes.",
        false,
        false,
        &[reasoning("hm, é"), content("Yes.")],
    );
    check(
        "hm\n\nhm </think>Yes",
        true,
        false,
        &[reasoning("hm\n\nhm"), content("Yes")],
    );
    check(
        "cut off </thin",
        true,
        false,
        &[reasoning("cut off </thin")],
    );
    check("</think>Yes", true, false, &[content("Yes")]);
    // Later occurrences are content.
    check(
        "Yes <think>no</think>",
        false,
        false,
        &[content("Yes <think>no</think>")],
    );
}

#[test]
fn calls_in_json() {
    let text = "I will look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"a\\\"}b\", \"n\": [1, {}]}}\n</tool_call>";
    let expected = [
        content("I will look."),
        call("weather"),
        arguments("{\"city\": \"a\\\"}b\", \"n\": [1, {}]}"),
    ];
    check(text, false, true, &expected);
    let two = "<tool_call>{\"arguments\":{\"x\":1},\"name\":\"a\"}</tool_call>\n<tool_call>{\"name\":\"now\"}</tool_call>done";
    check(
        two,
        false,
        true,
        &[
            call("a"),
            arguments("{\"x\":1}"),
            call("now"),
            arguments("{}"),
            content("done"),
        ],
    );
    let quoted = r#"<tool_call>{"name":"a","arguments":"{\"x\": 1}"}</tool_call>"#;
    check(quoted, false, true, &[call("a"), arguments("{\"x\": 1}")]);
}

#[test]
fn calls_in_tags() {
    let text = "<think>so</think><tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>New \"York\"\n</arg_value>\
                <arg_key>days</arg_key><arg_value>3</arg_value><arg_key>unit</arg_key><arg_value>7</arg_value>\
                <arg_key>more</arg_key><arg_value>some text</arg_value></tool_call>";
    let json = r#"{"city": "New \"York\"\n", "days": 3, "unit": "7", "more": "some text"}"#;
    check(
        text,
        false,
        true,
        &[reasoning("so"), call("weather"), arguments(json)],
    );
    serde_json::from_str::<serde_json::Value>(json).unwrap();
    check(
        "<tool_call>now</tool_call> Well.",
        false,
        true,
        &[call("now"), arguments("{}"), content("Well.")],
    );
}

#[test]
fn what_is_no_call_is_text() {
    check("a <tool_call>", false, true, &[content("a<tool_call>")]);
    check(
        "<tool_call>{\"nam",
        false,
        true,
        &[content("<tool_call>{\"nam")],
    );
    check(
        "<tool_call>{\"x\": 1}</tool_call>",
        false,
        true,
        &[content("<tool_call>{\"x\": 1}")],
    );
    check(
        "<tool_call>wea<arg",
        false,
        true,
        &[content("<tool_call>wea<arg")],
    );
    // A truncated call is a call with partial arguments.
    check(
        "<tool_call>{\"name\":\"a\",\"arguments\":{\"x\"",
        false,
        true,
        &[call("a"), arguments("{\"x\"")],
    );
}

#[test]
fn a_call_that_is_cut_off_leaves_no_markup() {
    let texts = [
        "<tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call>",
        "<tool_call>weather<arg_key>city</arg_key>",
    ];
    for text in texts
        .iter()
        .flat_map(|text| (0..text.len()).map(|n| &text[..n]))
    {
        for forced in [false, true] {
            let parts = ended(
                text,
                3,
                Reply::new(&JSON, Begins::Open, Some(schemas()), forced),
                true,
            );
            // Only a `forced` reply discards an incomplete marker.
            let plain = !forced && text.len() < JSON.call[0].len();
            assert!(
                plain
                    || !parts
                        .iter()
                        .any(|part| matches!(part, ReplyPart::Content(_))),
                "{text:?}: {parts:?}"
            );
        }
    }
    let thought = ended(
        "hm</think><tool",
        1,
        Reply::new(&JSON, Begins::Reasoning, Some(schemas()), true),
        true,
    );
    assert_eq!(thought, [reasoning("hm")]);
    assert_eq!(
        ended(
            "a <",
            1,
            Reply::new(&JSON, Begins::Open, Some(schemas()), false),
            true
        ),
        [content("a <")]
    );
}

/// Returns the markup with that name.
fn row(name: &str) -> &'static Markup {
    TABLE
        .iter()
        .find(|row| row.name == name)
        .expect("a row of that name")
}

/// Parses a reply at once and checks that every split in two and into single characters
/// gives the same parts.
#[track_caller]
fn taken(markup: &'static Markup, text: &str) -> Vec<ReplyPart> {
    let new = || Reply::new(markup, Begins::Open, Some(schemas()), false);
    let whole = ended(text, usize::MAX, new(), false);
    assert_eq!(
        ended(text, 1, new(), false),
        whole,
        "{text:?} character by character"
    );
    for (at, _) in text.char_indices() {
        let mut reply = new();
        let mut parts = reply.push(&text[..at]);
        parts.extend(reply.push(&text[at..]));
        parts.extend(reply.finish(false));
        assert_eq!(joined(parts), whole, "{text:?} at {at}");
    }
    whole
}

#[test]
fn replies_of_every_family() {
    let weather = || {
        vec![
            call("weather"),
            arguments("{\"city\": \"Rome\", \"days\": 3}"),
        ]
    };
    let with = |before: &[ReplyPart], after: &[ReplyPart]| [before, &weather(), after].concat();
    let json = "{\"city\": \"Rome\", \"days\": 3}";
    for (name, text, expected) in [
        ("hermes", format!("<think>\nhm\n</think>\n\nOk.\n<tool_call>\n{{\"name\": \"weather\", \"arguments\": {json}}}\n</tool_call>"), with(&[reasoning("hm"), content("Ok.")], &[])),
        ("qwen3-coder", "Ok.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>".into(), with(&[content("Ok.")], &[])),
        // Some models omit the closing text of the function.
        ("qwen3-coder", "<tool_call><function=weather><parameter=city>Rome</parameter><parameter=days>3</parameter></tool_call>".into(), with(&[], &[])),
        ("minimax-m2", "<think>hm</think>\n<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Rome</parameter>\n<parameter name=\"days\">3</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>".into(), with(&[reasoning("hm")], &[call("now"), arguments("{}")])),
        ("deepseek-v3", format!("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{json}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{{}}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"), with(&[], &[call("now"), arguments("{}")])),
        ("deepseek-v3.1", format!("Ok.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{json}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"), with(&[content("Ok.")], &[call("now"), arguments("{}")])),
        ("kimi-k2", format!("Ok.<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{json}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{{}}<|tool_call_end|><|tool_calls_section_end|>"), with(&[content("Ok.")], &[call("now"), arguments("{}")])),
        // The section's opening text is missing.
        ("kimi-k2", format!("<|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{json}<|tool_call_end|>"), with(&[], &[])),
        ("mistral-list", format!("[TOOL_CALLS] [{{\"name\": \"weather\", \"arguments\": {json}, \"id\": \"abcdef123\"}}, {{\"name\": \"now\", \"arguments\": {{}}}}]"), with(&[], &[call("now"), arguments("{}")])),
        ("phi-4-mini", format!("Ok.<|tool_call|>[{{\"name\": \"weather\", \"arguments\": {json}}}, {{\"name\": \"now\", \"arguments\": {{}}}}]<|/tool_call|> Done."), with(&[content("Ok.")], &[call("now"), arguments("{}"), content("Done.")])),
        ("granite", format!("<|tool_call|>[{{\"name\": \"weather\", \"arguments\": {json}}}, {{\"name\": \"now\", \"arguments\": {{}}}}]"), with(&[], &[call("now"), arguments("{}")])),
        // The section's closing text is missing.
        ("phi-4-mini", format!("<|tool_call|>[{{\"name\": \"weather\", \"arguments\": {json}}}]"), with(&[], &[])),
        ("mistral", format!("[THINK]hm[/THINK]Ok.[TOOL_CALLS]weather[ARGS]{json}[TOOL_CALLS]now[ARGS]{{}}"), with(&[reasoning("hm"), content("Ok.")], &[call("now"), arguments("{}")])),
        ("mistral-id", format!("[TOOL_CALLS]weather[CALL_ID]abcdef123[ARGS]{json}"), with(&[], &[])),
        ("gemma4", "<|channel>thought\nhm\n<channel|><|tool_call>call:weather{city:<|\"|>Rome<|\"|>,days:3}<tool_call|>".into(), with(&[reasoning("hm")], &[])),
        ("llama3", "{\"name\": \"weather\", \"parameters\": {\"city\": \"Rome\", \"days\": 3}}".into(), with(&[], &[])),
        ("llama3", "<|python_tag|>{\"type\": \"function\", \"name\": \"weather\", \"parameters\": {\"city\": \"Rome\", \"days\": 3}}; {\"name\": \"now\", \"parameters\": {}}".into(), with(&[], &[call("now"), arguments("{}")])),
        ("harmony", format!("<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary<|message|>Ok.<|end|><|start|>assistant<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{json}<|call|>"), with(&[reasoning("hm"), content("Ok.")], &[])),
        ("harmony", format!(" to=functions.weather<|channel|>commentary json<|message|>{json}"), with(&[], &[])),
    ] {
        assert_eq!(taken(row(name), &text), expected, "{name}: {text}");
    }
}

#[test]
fn answers_of_every_family_that_are_no_calls() {
    for (name, text, expected) in [
        (
            "harmony",
            "<|channel|>analysis<|message|>2+2<|end|><|start|>assistant<|channel|>final<|message|>It is 4.",
            vec![reasoning("2+2"), content("It is 4.")],
        ),
        (
            "harmony",
            "No header at all.",
            vec![content("No header at all.")],
        ),
        (
            "harmony",
            "assistant is a word",
            vec![content("assistant is a word")],
        ),
        (
            "gemma4",
            "<|channel>thought\n<channel|>Hello",
            vec![content("Hello")],
        ),
        // A reply that is JSON, from a model with JSON calls.
        (
            "llama3",
            "{\"name\": \"Rome\", \"people\": 3}",
            vec![content("{\"name\": \"Rome\", \"people\": 3}")],
        ),
        ("llama3", " {\"x\": [1]} ", vec![content(" {\"x\": [1]} ")]),
        (
            "llama3",
            "<|python_tag|>print(1)",
            vec![content("<|python_tag|>print(1)")],
        ),
        (
            "kimi-k2",
            "<|tool_calls_section_begin|>Well.",
            vec![content("<|tool_calls_section_begin|>Well.")],
        ),
        (
            "phi-4-mini",
            "<|tool_call|>None.",
            vec![content("<|tool_call|>None.")],
        ),
        ("mistral", "[TOOL_CALLS]", vec![content("[TOOL_CALLS]")]),
        (
            "hermes",
            "<tool_call>[1]</tool_call>",
            vec![call("[1]"), arguments("{}")],
        ),
    ] {
        let taken = taken(row(name), text);
        let trimmed = |parts: &[ReplyPart]| format!("{parts:?}");
        assert_eq!(trimmed(&taken), trimmed(&expected), "{name}: {text}");
    }
}

#[test]
fn values_keep_their_types_and_their_white_space() {
    let text = "<tool_call>\n<function=weather>\n<parameter=city>\n a < b\n\n</parameter>\n<parameter=flag>\nTrue\n</parameter>\n\
                <parameter=none>\nNone\n</parameter>\n<parameter=list>\n[1, {\"a\": 2}]\n</parameter>\n</function>\n</tool_call>";
    let json = "{\"city\": \" a < b\\n\", \"flag\": true, \"none\": null, \"list\": [1,{\"a\":2}]}";
    assert_eq!(
        taken(row("qwen3-coder"), text),
        [call("weather"), arguments(json)]
    );
    let text = "<|tool_call>call:f{a:[<|\"|>x, y<|\"|>,-1.5e3,true,None],b:{c:{},d:[]},e:<|\"|>\"}\n<|\"|>}<tool_call|>";
    let json = "{\"a\": [\"x, y\", -1500.0, true, null], \"b\": {\"c\": {}, \"d\": []}, \"e\": \"\\\"}\\n\"}";
    assert_eq!(taken(row("gemma4"), text), [call("f"), arguments(json)]);
}

#[test]
fn what_models_of_no_bounds_write_is_let_through_in_time() {
    let long = "x".repeat(200_000);
    for markup in TABLE {
        let open = markup.opens().next().unwrap_or_default();
        for head in [
            open.to_owned(),
            format!("{open}{}", markup.call[0]),
            markup.think[0].to_owned(),
            "[".repeat(1000),
            "{".repeat(1000),
        ] {
            let begun = std::time::Instant::now();
            let mut reply = Reply::new(markup, Begins::Open, Some(schemas()), false);
            let mut told = reply.push(&head);
            for piece in long.as_bytes().chunks(4) {
                told.extend(reply.push(std::str::from_utf8(piece).unwrap()));
            }
            told.extend(reply.finish(false));
            assert!(begun.elapsed().as_secs() < 20, "{} {head}", markup.name);
        }
    }
    let deep = format!("<|tool_call>call:f{{a:{}", "[".repeat(10_000));
    let parts = taken_once(row("gemma4"), &deep);
    assert!(
        matches!(&parts[1], ReplyPart::Arguments(json) if serde_json::from_str::<serde_json::Value>(json).is_ok()),
        "{parts:?}"
    );
}

fn taken_once(markup: &'static Markup, text: &str) -> Vec<ReplyPart> {
    ended(
        text,
        3,
        Reply::new(markup, Begins::Open, Some(schemas()), false),
        false,
    )
}

/// Argument values: typed values without a schema, and strings without any delimiter.
fn value() -> impl Strategy<Value = serde_json::Value> {
    let scalar = prop_oneof![
        any::<bool>().prop_map(serde_json::Value::from),
        (-1000i64..1000).prop_map(serde_json::Value::from),
        Just(serde_json::Value::Null),
        "[a-z][a-z ,:]{0,6}[a-z]é".prop_map(serde_json::Value::from),
    ];
    scalar.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(serde_json::Value::from),
            proptest::collection::btree_map("[a-z]{1,4}", inner, 0..4)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn what_is_spelt_is_read_back(
        index in 0..TABLE.len(),
        values in proptest::collection::btree_map("[a-z]{1,5}", value(), 0..4),
        city in "[ -;=-Z^-z\n]{0,12}",
        size in 1usize..6,
        two: bool,
    ) {
        let markup = &TABLE[index];
        let mut first: serde_json::Map<String, serde_json::Value> = values.into_iter().collect();
        first.insert("city".into(), city.into());
        let second = serde_json::Map::new();
        let mut calls = vec![Spelt { name: "weather", arguments: &first }];
        calls.extend(two.then_some(Spelt { name: "now", arguments: &second }));
        let text = spell::calls(markup, &calls);
        let parts = ended(&text, size, Reply::new(markup, Begins::Open, Some(schemas()), false), false);
        prop_assert_eq!(parts.len(), 2 * calls.len(), "{}: {:?}", text, parts);
        for (pair, spelt) in parts.chunks(2).zip(&calls) {
            let [ReplyPart::Call(name), ReplyPart::Arguments(json)] = pair else { panic!("{text}: {parts:?}") };
            let read: serde_json::Value = serde_json::from_str(json).expect(json);
            prop_assert_eq!(name, spelt.name);
            prop_assert_eq!(read, serde_json::Value::Object(spelt.arguments.clone()), "{}", text);
        }
    }

    #[test]
    fn no_text_is_lost_or_cut_otherwise(
        index in 0..TABLE.len(),
        words in proptest::collection::vec(
            prop_oneof![
                proptest::sample::select(all_markers()).prop_map(str::to_owned),
                proptest::sample::select(texts()).prop_map(str::to_owned),
                "[a-z ]{0,5}",
            ],
            0..20,
        ),
        size in 1usize..5,
        open in 0..3,
        tools: bool,
        forced: bool,
    ) {
        let begins = [Begins::Open, Begins::Reasoning, Begins::Answer][open as usize];
        let new = || Reply::new(&TABLE[index], begins, tools.then(schemas), forced);
        let text = words.concat();
        let whole = ended(&text, usize::MAX, new(), false);
        prop_assert_eq!(ended(&text, size, new(), false), whole);
    }
}

/// Text fragments of replies in addition to tokens.
fn texts() -> Vec<&'static str> {
    let of_rows = TABLE
        .iter()
        .flat_map(|row| [row.think, row.section, row.call])
        .flatten();
    let others = [
        "{\"name\": \"weather\"",
        ", \"arguments\": ",
        ", \"parameters\": ",
        "{}",
        "}",
        "{",
        "[",
        "]",
        "\"",
        "\\",
        "<",
        " ",
        "\n",
        "é",
        ",",
        ":",
        "call:",
        "function<｜tool▁sep｜>",
        "```json\n",
        "functions.",
        "to=functions.",
        "assistant",
        "<function=",
        "<parameter=",
        "name=\"",
        ">",
        "<parameter name=\"",
        "\">",
        "</parameter>",
        "analysis",
        "final",
        "weather",
        "city",
        "3",
    ];
    of_rows
        .chain(others)
        .filter(|text| !text.is_empty())
        .collect()
}
