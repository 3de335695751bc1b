//! Changes conversations that a template refuses until it accepts them.
//!
//! Templates that demand one system message, alternating roles, single calls or complete tool
//! descriptions refuse conversations that clients send. A conversation is tried as given first,
//! then with each change of [`PLANS`] alone, then with several: the mildest that renders is used.
//! Roles that a template drops silently are detected with a small sample.

use serde_json::{Map, Value as Json, json};

use super::complete;
use super::markup::Markup;
use super::spell::{self, Spelt};

/// A change of a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Completes tool descriptions, and wraps arguments of past calls that are no object.
    Complete,
    /// Removes messages of the assistant without text or calls.
    DropEmpty,
    /// Merges system messages in a row.
    MergeSystem,
    /// Merges messages of one role in a row.
    Join,
    /// Moves all system messages to the front, as one.
    SystemFirst,
    /// Puts system messages before the first text of the user.
    SystemToUser,
    /// Splits a message with several calls, each with its result after it.
    OneCall,
    /// Adds a user's message to a conversation without one.
    AddUser,
    /// Adds messages where two of one role, or a result and a user's message, follow each other.
    Alternate,
    /// Writes calls and results as text.
    Spell,
    /// Writes results without a call before them as text.
    SpellOrphans,
}

use Step::{
    AddUser, Alternate, Complete, DropEmpty, Join, MergeSystem, OneCall, Spell, SpellOrphans,
    SystemFirst, SystemToUser,
};

/// Changes in the order in which they are tried; each costs a rendering.
pub(super) const PLANS: &[&[Step]] = &[
    &[],
    &[Complete],
    &[MergeSystem],
    &[DropEmpty],
    &[Join],
    &[SystemFirst],
    &[OneCall],
    &[AddUser],
    &[Alternate],
    &[SystemToUser, Join],
    &[DropEmpty, SystemFirst, Join],
    &[DropEmpty, SystemFirst, AddUser, Join, Alternate],
    &[
        Complete,
        DropEmpty,
        SystemFirst,
        AddUser,
        Join,
        OneCall,
        Alternate,
    ],
    &[
        Complete,
        DropEmpty,
        SystemToUser,
        AddUser,
        Join,
        OneCall,
        Alternate,
    ],
    &[
        Complete,
        Spell,
        DropEmpty,
        SystemFirst,
        AddUser,
        Join,
        Alternate,
    ],
    &[
        Complete,
        Spell,
        DropEmpty,
        SystemToUser,
        AddUser,
        Join,
        Alternate,
    ],
];

/// Text of an assistant's turn that a template demands and the conversation lacks.
const FILLER: &str = "OK.";

/// Returns the changes that the template needs because it drops a role without refusing it;
/// `render` renders a sample, or returns `None` on failure.
pub(super) fn needed(
    source: &str,
    messages: &[Json],
    render: impl Fn(&[Json]) -> Option<String>,
) -> Vec<Step> {
    let drops = |sample: &[Json], text: &str| {
        render(sample).is_some_and(|rendered| !rendered.contains(text))
    };
    let mut steps = Vec::new();
    let user = json!({ "role": "user", "content": "user7" });
    // Callers write calls and results as text for a template that knows no calls at all.
    if source.contains("tool_calls") && messages.iter().any(is_result) {
        let function = json!({ "name": "name7", "arguments": {} });
        let call = json!({ "id": "abcdef123", "type": "function", "function": function });
        let calling = json!({ "role": "assistant", "content": "", "tool_calls": [call] });
        let mut result = json!({ "role": "tool", "name": "name7", "content": "result7" });
        result["tool_call_id"] = "abcdef123".into();
        if drops(&[user.clone(), calling, result.clone()], "result7") {
            steps.push(Spell);
        } else if has_orphans(messages) && drops(&[user.clone(), result], "result7") {
            steps.push(SpellOrphans);
        }
    }
    let systems = messages.iter().filter(|message| is_system(message)).count();
    if systems > 0 {
        let system = |text: &str| json!({ "role": "system", "content": text });
        let answer = json!({ "role": "assistant", "content": "answer7" });
        let leading = messages
            .iter()
            .take_while(|message| is_system(message))
            .count();
        if drops(&[system("system7"), user.clone()], "system7") {
            steps.extend([SystemToUser, Join]);
        } else if systems > 1 || leading == 0 {
            // Some templates read the first system message only, others the last.
            let (first, last) = (system("system7"), system("system8"));
            let alike = match leading {
                0 => vec![user.clone(), answer, last, user],
                1 => vec![first, user.clone(), answer, last, user],
                _ => vec![first, last, user],
            };
            let all = ["system7", "system8"];
            let mut all = all
                .iter()
                .filter(|text| alike.iter().any(|it| it["content"] == **text));
            if all.any(|text| drops(&alike, text)) {
                steps.push(SystemFirst);
            }
        }
    }
    steps
}

/// Returns whether a result follows neither a call nor another result of one.
fn has_orphans(messages: &[Json]) -> bool {
    let mut called = false;
    messages.iter().any(|message| {
        called = !calls(message).is_empty() || called && is_result(message);
        is_result(message) && !called
    })
}

/// Applies the changes in order.
pub(super) fn apply(
    steps: &[Step],
    source: &str,
    messages: &mut Vec<Json>,
    tools: &mut Option<Json>,
) {
    for step in steps {
        match step {
            Complete => {
                complete::arguments(messages);
                complete::names(messages);
                tools.iter_mut().for_each(complete::tools);
            }
            DropEmpty => messages.retain(|message| !is_empty_answer(message)),
            MergeSystem => join(messages, is_system),
            Join => join(messages, |message| !is_result(message)),
            SystemFirst => system_first(messages),
            SystemToUser => system_to_user(messages),
            OneCall => one_call(messages),
            AddUser if messages.iter().any(is_user) => {}
            AddUser => {
                let at = messages.iter().take_while(|it| is_system(it)).count();
                messages.insert(at, json!({ "role": "user", "content": "" }));
            }
            Alternate => alternate(messages),
            Spell => spell(source, messages),
            SpellOrphans => spell_orphans(messages),
        }
    }
}

fn is_role(message: &Json, role: &str) -> bool {
    message["role"] == role
}

fn is_system(message: &Json) -> bool {
    is_role(message, "system") || is_role(message, "developer")
}

fn is_user(message: &Json) -> bool {
    is_role(message, "user")
}

fn is_result(message: &Json) -> bool {
    is_role(message, "tool")
}

/// Returns the calls of a message; empty if it has none.
fn calls(message: &Json) -> &[Json] {
    message["tool_calls"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default()
}

fn is_empty_answer(message: &Json) -> bool {
    let empty = match &message["content"] {
        Json::Null => true,
        Json::String(text) => text.trim().is_empty(),
        Json::Array(parts) => parts.is_empty(),
        _ => false,
    };
    is_role(message, "assistant") && calls(message).is_empty() && empty
}

/// Joins two contents, texts or lists of parts, with a blank line.
fn joined(first: Json, second: Json) -> Json {
    let parts = |content: Json| match content {
        Json::Array(parts) => parts,
        Json::Null => Vec::new(),
        text => vec![json!({ "type": "text", "text": text })],
    };
    match (first, second) {
        (Json::Null, other) | (other, Json::Null) => other,
        (Json::String(first), Json::String(second)) => {
            match (first.is_empty(), second.is_empty()) {
                (true, _) => second.into(),
                (_, true) => first.into(),
                _ => format!("{first}\n\n{second}").into(),
            }
        }
        (first, second) => [parts(first), parts(second)].concat().into(),
    }
}

/// Adds the content and the fields of `second` to `first`.
fn absorb(first: &mut Json, mut second: Json) {
    for key in ["content", "reasoning_content"] {
        let other = second[key].take();
        if !other.is_null() {
            first[key] = joined(first[key].take(), other);
        }
    }
    if let (Some(first), Json::Object(second)) = (first.as_object_mut(), second) {
        for (key, value) in second {
            if !value.is_null() {
                first.entry(key).or_insert(value);
            }
        }
    }
}

/// Merges messages of one role in a row, of those that `joins` accepts. Calls end a message.
fn join(messages: &mut Vec<Json>, joins: impl Fn(&Json) -> bool) {
    let mut out: Vec<Json> = Vec::with_capacity(messages.len());
    for message in messages.drain(..) {
        let same = |last: &&mut Json| last["role"] == message["role"] && calls(last).is_empty();
        match out.last_mut().filter(same) {
            Some(last) if joins(&message) => absorb(last, message),
            _ => out.push(message),
        }
    }
    *messages = out;
}

/// Removes the system messages and returns them as one.
fn take_system(messages: &mut Vec<Json>) -> Option<Json> {
    let (mut system, others): (Vec<Json>, _) = messages.drain(..).partition(is_system);
    *messages = others;
    for message in &mut system {
        message["role"] = "system".into();
    }
    join(&mut system, |_| true);
    system.pop()
}

fn system_first(messages: &mut Vec<Json>) {
    if let Some(system) = take_system(messages) {
        messages.insert(0, system);
    }
}

fn system_to_user(messages: &mut Vec<Json>) {
    let Some(mut system) = take_system(messages) else {
        return;
    };
    match messages.first_mut().filter(|message| is_user(message)) {
        Some(user) => user["content"] = joined(system["content"].take(), user["content"].take()),
        None => {
            system["role"] = "user".into();
            messages.insert(0, system);
        }
    }
}

/// Splits messages with several calls. Results follow their calls, by identifier or in order.
fn one_call(messages: &mut Vec<Json>) {
    let mut out = Vec::with_capacity(messages.len());
    let mut rest = std::mem::take(messages).into_iter().peekable();
    while let Some(mut message) = rest.next() {
        if calls(&message).len() < 2 {
            out.push(message);
            continue;
        }
        let mut results: Vec<Json> = Vec::new();
        while let Some(result) = rest.next_if(is_result) {
            results.push(result);
        }
        let Json::Array(all) = message["tool_calls"].take() else {
            continue;
        };
        for call in all {
            let own = |result: &Json| !call["id"].is_null() && result["tool_call_id"] == call["id"];
            let nameless = |result: &Json| result["tool_call_id"].is_null();
            let at = results.iter().position(own);
            let at = at.or_else(|| results.iter().position(nameless));
            let mut part = json!({ "role": "assistant", "content": "" });
            if let Some(first) = message.as_object_mut().map(std::mem::take)
                && !first.is_empty()
            {
                part = first.into();
            }
            part["tool_calls"] = json!([call]);
            out.push(part);
            out.extend(at.map(|at| results.remove(at)));
        }
        out.append(&mut results);
    }
    *messages = out;
}

/// Inserts messages so that texts of the user and answers without calls alternate.
fn alternate(messages: &mut Vec<Json>) {
    let mut out: Vec<Json> = Vec::with_capacity(messages.len());
    let mut users_turn = true;
    for message in messages.drain(..) {
        let answer = is_role(&message, "assistant");
        if is_user(&message) {
            if !users_turn {
                out.push(json!({ "role": "assistant", "content": FILLER }));
            }
            users_turn = false;
        } else if answer {
            let calling = !calls(&message).is_empty();
            // A call belongs to the user's turn before it and is not counted.
            let missing = users_turn && (!calling || out.iter().all(is_system));
            if missing {
                out.push(json!({ "role": "user", "content": "" }));
            }
            users_turn = if calling {
                users_turn && !missing
            } else {
                true
            };
        }
        out.push(message);
    }
    *messages = out;
}

/// Writes calls as text of the assistant, and results as text of the user.
fn spell(source: &str, messages: &mut [Json]) {
    let markup = Markup::detect(|sign| source.contains(sign));
    for message in messages.iter_mut().filter_map(Json::as_object_mut) {
        if let Some(Json::Array(calls)) = message.remove("tool_calls") {
            let spelt = spell_calls(markup, &calls);
            let content = message.remove("content").unwrap_or_default();
            let content = if spelt.is_empty() {
                content
            } else {
                joined(content, spelt.into())
            };
            message.insert("content".into(), content);
        }
        if message.get("role").is_some_and(|role| role == "tool") {
            spell_result(message);
        }
    }
}

/// Writes results that follow no call as text of the user.
fn spell_orphans(messages: &mut [Json]) {
    let mut called = false;
    for message in messages {
        called = !calls(message).is_empty() || called && is_result(message);
        if !called
            && is_result(message)
            && let Some(message) = message.as_object_mut()
        {
            spell_result(message);
        }
    }
}

fn spell_result(message: &mut Map<String, Json>) {
    let text = message.get("content").and_then(Json::as_str);
    let text = spell::result(text.unwrap_or_default());
    message.retain(|key, _| key == "role");
    message.insert("role".into(), "user".into());
    message.insert("content".into(), text.into());
}

fn spell_calls(markup: &Markup, calls: &[Json]) -> String {
    let each: Vec<(&str, Map<String, Json>)> = calls
        .iter()
        .map(|call| call.get("function").unwrap_or(call))
        .map(|function| {
            let name = function["name"].as_str().unwrap_or_default();
            (name, complete::object(&function["arguments"]))
        })
        .collect();
    let spelt: Vec<Spelt<'_>> = each
        .iter()
        .map(|(name, arguments)| Spelt { name, arguments })
        .collect();
    match spelt.is_empty() {
        true => String::new(),
        false => spell::calls(markup, &spelt),
    }
}
