//! Replies of every form, cut in every way.

use super::{Part, Reply, Schemas};
use gristmill_llm::chat::markup::JSON;
use proptest::prelude::*;
use serde_json::json;

fn schemas() -> Schemas {
    let weather = json!({ "properties": { "city": { "type": "string" }, "days": { "type": "integer" }, "unit": { "enum": ["c", "f"] } } });
    Schemas::new([("weather", Some(&weather)), ("now", None)].into_iter())
}

/// Parts with neighbours of one kind joined.
fn joined(parts: Vec<Part>) -> Vec<Part> {
    let mut out: Vec<Part> = Vec::new();
    for part in parts {
        match (out.last_mut(), &part) {
            (Some(Part::Reasoning(a)), Part::Reasoning(b))
            | (Some(Part::Content(a)), Part::Content(b))
            | (Some(Part::Arguments(a)), Part::Arguments(b)) => a.push_str(b),
            _ => out.push(part),
        }
    }
    out
}

fn cut(text: &str, size: usize, reasoning: bool, tools: bool) -> Vec<Part> {
    ended(text, size, Reply::new(JSON, reasoning, tools.then(schemas), false), false)
}

fn ended(text: &str, size: usize, mut reply: Reply, cut: bool) -> Vec<Part> {
    let chars: Vec<char> = text.chars().collect();
    let mut parts = Vec::new();
    for piece in chars.chunks(size) {
        parts.extend(reply.push(&piece.iter().collect::<String>()));
    }
    parts.extend(reply.finish(cut));
    joined(parts)
}

#[track_caller]
fn check(text: &str, reasoning: bool, tools: bool, expected: &[Part]) {
    for size in [1, 2, 3, 7, 1000] {
        assert_eq!(cut(text, size, reasoning, tools), expected, "{text:?} by {size}");
    }
}

fn reasoning(text: &str) -> Part {
    Part::Reasoning(text.into())
}
fn content(text: &str) -> Part {
    Part::Content(text.into())
}
fn call(name: &str) -> Part {
    Part::Call(name.into())
}
fn arguments(text: &str) -> Part {
    Part::Arguments(text.into())
}

#[test]
fn plain_text_stays_as_it_is() {
    check(" Hello\n\nthere. ", false, false, &[content(" Hello\n\nthere. ")]);
    check("a <b> </b> <think", false, true, &[content("a <b> </b> <think")]);
    check("<thin air>", false, false, &[content("<thin air>")]);
    check("", false, true, &[]);
    // Who gave no tools wants the text.
    check("<tool_call>x</tool_call>", false, false, &[content("<tool_call>x</tool_call>")]);
}

#[test]
fn reasoning_is_kept_apart() {
    check("<think>\nhm, é\n</think>\n\nYes.", false, false, &[reasoning("hm, é"), content("Yes.")]);
    check("hm\n\nhm </think>Yes", true, false, &[reasoning("hm\n\nhm"), content("Yes")]);
    check("cut off </thin", true, false, &[reasoning("cut off </thin")]);
    check("</think>Yes", true, false, &[content("Yes")]);
    // Later, they are text.
    check("Yes <think>no</think>", false, false, &[content("Yes <think>no</think>")]);
}

#[test]
fn calls_in_json() {
    let text = "I will look.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"a\\\"}b\", \"n\": [1, {}]}}\n</tool_call>";
    let expected = [content("I will look."), call("weather"), arguments("{\"city\": \"a\\\"}b\", \"n\": [1, {}]}")];
    check(text, false, true, &expected);
    let two = "<tool_call>{\"arguments\":{\"x\":1},\"name\":\"a\"}</tool_call>\n<tool_call>{\"name\":\"now\"}</tool_call>done";
    check(two, false, true, &[call("a"), arguments("{\"x\":1}"), call("now"), arguments("{}"), content("done")]);
    let quoted = r#"<tool_call>{"name":"a","arguments":"{\"x\": 1}"}</tool_call>"#;
    check(quoted, false, true, &[call("a"), arguments("{\"x\": 1}")]);
}

#[test]
fn calls_in_tags() {
    let text = "<think>so</think><tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>New \"York\"\n</arg_value>\
                <arg_key>days</arg_key><arg_value>3</arg_value><arg_key>unit</arg_key><arg_value>7</arg_value>\
                <arg_key>more</arg_key><arg_value>some text</arg_value></tool_call>";
    let json = r#"{"city": "New \"York\"\n", "days": 3, "unit": "7", "more": "some text"}"#;
    check(text, false, true, &[reasoning("so"), call("weather"), arguments(json)]);
    serde_json::from_str::<serde_json::Value>(json).unwrap();
    check("<tool_call>now</tool_call> Well.", false, true, &[call("now"), arguments("{}"), content("Well.")]);
}

#[test]
fn what_is_no_call_is_text() {
    check("a <tool_call>", false, true, &[content("a<tool_call>")]);
    check("<tool_call>{\"nam", false, true, &[content("<tool_call>{\"nam")]);
    check("<tool_call>{\"x\": 1}</tool_call>", false, true, &[content("<tool_call>{\"x\": 1}")]);
    check("<tool_call>wea<arg", false, true, &[content("<tool_call>wea<arg")]);
    // A call that is cut off is one, with what there is of its arguments.
    check("<tool_call>{\"name\":\"a\",\"arguments\":{\"x\"", false, true, &[call("a"), arguments("{\"x\"")]);
}

#[test]
fn a_call_that_is_cut_off_leaves_no_markup() {
    let texts = [
        "<tool_call>{\"name\": \"weather\", \"arguments\": {}}</tool_call>",
        "<tool_call>weather<arg_key>city</arg_key>",
    ];
    for text in texts.iter().flat_map(|text| (0..text.len()).map(|n| &text[..n])) {
        for forced in [false, true] {
            let parts = ended(text, 3, Reply::new(JSON, false, Some(schemas()), forced), true);
            // Without the whole marker, only who was forced cannot have meant a text.
            let plain = !forced && text.len() < JSON.call[0].len();
            assert!(plain || !parts.iter().any(|part| matches!(part, Part::Content(_))), "{text:?}: {parts:?}");
        }
    }
    let thought = ended("hm</think><tool", 1, Reply::new(JSON, true, Some(schemas()), true), true);
    assert_eq!(thought, [reasoning("hm")]);
    assert_eq!(ended("a <", 1, Reply::new(JSON, false, Some(schemas()), false), true), [content("a <")]);
}

proptest! {
    #[test]
    fn no_text_is_lost_or_cut_otherwise(
        words in proptest::collection::vec(
            prop_oneof![
                proptest::sample::select(vec![
                    "<think>", "</think>", "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
                    "</arg_value>", "{\"name\": \"f\"", ", \"arguments\": ", "{}", "}", "\"", "\\", "<", " ", "\n", "é",
                ]).prop_map(str::to_owned),
                "[a-z ]{0,5}",
            ],
            0..20,
        ),
        size in 1usize..5,
        reasoning: bool,
        tools: bool,
    ) {
        let text = words.concat();
        let whole = cut(&text, usize::MAX, reasoning, tools);
        prop_assert_eq!(cut(&text, size, reasoning, tools), whole);
    }
}
