//! Conversations that published templates refuse, and what is made of them.

use super::{common, prompt, render, specials};
use gristmill_llm::chat::{ChatError, ChatTemplate, Isolation, Message, RenderOptions};
use serde_json::{Map, Value as Json, json};

fn new(source: &str) -> ChatTemplate {
    ChatTemplate::new(source, &specials("", "", &[]), &Isolation::InProcess).unwrap()
}

fn published(name: &str) -> ChatTemplate {
    let path = common::data("templates").join(format!("{name}.jinja"));
    new(&std::fs::read_to_string(path).unwrap())
}

fn calling(arguments: &[Json]) -> Message {
    let call = |(i, arguments): (usize, &Json)| json!({ "id": format!("call_{i}"), "type": "function", "function": { "name": "now", "arguments": arguments } });
    Message {
        content: Json::Null,
        tool_calls: Some(arguments.iter().enumerate().map(call).collect()),
        ..Message::assistant("")
    }
}

fn result(i: usize, text: &str) -> Message {
    Message {
        tool_call_id: Some(format!("call_{i}")),
        ..Message::tool(text)
    }
}

/// Each of these is refused as it is given.
#[test]
fn conversations_are_fitted_to_every_published_template() {
    let (user, system) = (Message::user("u1"), Message::system);
    let no = json!({});
    let conversations: &[&[Message]] = &[
        &[system("s1"), system("s2"), user.clone()],
        &[system("s1"), user.clone(), system("s2")],
        &[
            system("s1"),
            user.clone(),
            Message::assistant("a1"),
            system("s2"),
            user.clone(),
        ],
        &[user.clone(), user.clone()],
        &[Message::assistant("a1"), user.clone()],
        &[user.clone(), Message::assistant(""), user.clone()],
        &[
            user.clone(),
            Message::assistant("a1"),
            Message::assistant("a2"),
            user.clone(),
        ],
        &[system("s1")],
        &[
            user.clone(),
            calling(&[no.clone(), no.clone()]),
            result(0, "r1"),
            result(1, "r2"),
        ],
        &[
            user.clone(),
            calling(std::slice::from_ref(&no)),
            result(0, "r1"),
            user.clone(),
        ],
        &[
            system("s1"),
            user.clone(),
            calling(&[no]),
            result(0, "r1"),
            Message::assistant("a1"),
        ],
        &[user.clone(), calling(&["".into()]), result(0, "r1")],
        &[
            user.clone(),
            calling(&["{\"a\": \"b".into()]),
            result(0, "r1"),
        ],
        &[user.clone(), calling(&[json!([1])]), result(0, "r1")],
        &[user.clone(), calling(&[Json::Null]), result(0, "r1")],
        &[user, result(7, "r1")],
    ];
    let tools = json!([
        { "type": "function", "function": { "name": "now" } },
        { "type": "function", "function": { "name": "then", "parameters": { "properties": { "zone": {} } } } },
    ]);
    let mut count = 0;
    for path in std::fs::read_dir(common::data("templates")).unwrap() {
        let path = path.unwrap().path();
        if path.extension().is_none_or(|it| it != "jinja") {
            continue;
        }
        let template = new(&std::fs::read_to_string(&path).unwrap());
        for messages in conversations {
            for tools in [None, Some(tools.clone())] {
                let options = RenderOptions { tools, ..prompt() };
                if let Err(error) = template.render(messages, &options) {
                    panic!("{}: {error}: {messages:?}", path.display());
                }
            }
        }
        count += 1;
    }
    assert!(count > 20);
}

/// Templates that read one system message, or results of calls only, drop others without a word.
#[test]
fn no_template_drops_instructions_or_results() {
    let (user, answer, system) = (
        Message::user("u1"),
        Message::assistant("a1"),
        Message::system,
    );
    let conversations: &[&[Message]] = &[
        &[
            system("s1"),
            user.clone(),
            answer.clone(),
            system("s2"),
            user.clone(),
        ],
        &[system("s1"), user.clone(), system("s2")],
        &[system("s1"), system("s2"), user.clone()],
        &[user.clone(), answer, system("s1"), user.clone()],
        &[user.clone(), result(7, "r1"), user.clone()],
        &[system("s1"), result(7, "r1"), user.clone()],
        &[
            user.clone(),
            calling(&[json!({})]),
            result(0, "r1"),
            user,
            result(7, "r2"),
        ],
    ];
    let mut count = 0;
    for path in std::fs::read_dir(common::data("templates")).unwrap() {
        let path = path.unwrap().path();
        if path.extension().is_none_or(|it| it != "jinja") {
            continue;
        }
        let source = std::fs::read_to_string(&path).unwrap();
        let template = new(&source);
        for messages in conversations {
            // Callers write results as text for a template that knows none.
            if !source.contains("tool_calls") && messages.iter().any(|it| it.role == "tool") {
                continue;
            }
            let text = render(&template, messages, &prompt());
            for message in *messages {
                let content = message.content.as_str().unwrap_or_default();
                assert!(
                    text.contains(content),
                    "{} {content}: {text}",
                    path.display()
                );
            }
            count += 1;
        }
    }
    assert!(count > 100);
}

#[test]
fn changes_are_the_mildest_that_the_template_accepts() {
    let (user, system) = (Message::user("u1"), Message::system);
    let gemma = published("gemma-2");
    let text = render(
        &gemma,
        &[system("s1"), system("s2"), user.clone()],
        &prompt(),
    );
    assert!(
        text.contains("<start_of_turn>user\ns1\n\ns2\n\nu1<end"),
        "{text}"
    );
    let text = render(&gemma, &[user.clone(), Message::user("u2")], &prompt());
    assert!(text.contains("<start_of_turn>user\nu1\n\nu2<end"), "{text}");
    let qwen = published("qwen3.5");
    let text = render(&qwen, &[user.clone(), system("s1")], &prompt());
    assert!(
        text.contains("<|im_start|>system\ns1<|im_end|>\n<|im_start|>user\nu1<"),
        "{text}"
    );
    let llama = published("llama-3.1");
    let calls = calling(&[json!({}), json!({ "a": 1 })]);
    let messages = [user.clone(), calls, result(1, "r2"), result(0, "r1")];
    let text = render(&llama, &messages, &prompt());
    assert!(
        text.find("r1") < text.find("r2") && text.matches("\"now\"").count() == 2,
        "{text}"
    );
    // A role that the template drops without a word.
    let silent = "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}[{{ m.content }}]{% endif %}{% endfor %}{# tool_calls #}";
    let messages = [
        system("s1"),
        user.clone(),
        calling(&[json!({})]),
        result(0, "r1"),
    ];
    let text = render(&new(silent), &messages, &prompt());
    assert!(
        text.starts_with("[s1\n\nu1]") && text.contains("<tool_response>r1"),
        "{text}"
    );
    // A template that refuses everything is quoted.
    let error = new("{{ raise_exception('never') }}").render(&[user], &prompt());
    assert_eq!(error, Err(ChatError::Raised("never".into())));
}

#[test]
fn named_templates_line_breaks_and_variables() {
    let template = new("{% for m in messages %}{{ m.content }}{% endfor %}\r\n{{ switch }}\r\n")
        .with_tool_use("{{ tools|length }} {{ messages[0].content }}");
    let extra = Map::from_iter([
        ("switch".to_owned(), "<x>".into()),
        ("messages".to_owned(), 1.into()),
    ]);
    let options = RenderOptions { extra, ..prompt() };
    assert_eq!(render(&template, &[Message::user("u1")], &options), "u1<x>");
    let tools = Some(json!([{ "type": "function", "function": { "name": "f" } }]));
    assert_eq!(
        render(
            &template,
            &[Message::user("u1")],
            &RenderOptions { tools, ..prompt() }
        ),
        "1 u1"
    );
    let marked = ChatTemplate::new(
        "<x>{{ switch }}",
        &specials("", "", &["<x>"]),
        &Isolation::InProcess,
    );
    let spans = marked
        .unwrap()
        .render(&[Message::user("u1")], &options)
        .unwrap();
    assert_eq!(super::show(&spans), "<x>«<x>»");
    let reversed = new("{{ ''[::-1] }}").render(&[Message::user("u1")], &prompt());
    assert!(matches!(reversed, Err(ChatError::Panicked)) || reversed == Ok(Vec::new()));
}

#[test]
fn a_file_without_a_template_gets_that_of_its_vocabulary() {
    for (marks, name) in [
        (&["<start_of_turn>", "<end_of_turn>"][..], "gemma"),
        (&["<|start_header_id|>", "<|end_header_id|>"], "llama3"),
        (&["<|im_start|>", "<|im_end|>"], "chatml"),
        (&["<|user|>", "<|assistant|>", "<|end|>"], "phi3"),
        (&["[INST]", "[/INST]"], "mistral"),
    ] {
        let specials = specials("", "", marks);
        let selected = ChatTemplate::select(None, "default", &specials, &Isolation::InProcess);
        let (template, why) = selected.unwrap();
        assert!(why.unwrap().contains(name), "{name}");
        let messages = [
            Message::system("s1"),
            Message::user("u1"),
            Message::assistant("a1"),
        ];
        let text = render(&template, &messages, &prompt());
        assert!(
            ["s1", "u1", "a1"].iter().all(|it| text.contains(it)),
            "{text}"
        );
        assert!(text.contains(marks[0]), "{text}");
    }
}
