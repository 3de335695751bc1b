//! Constrained decoding: JSON schemas, grammars and tool calls.

use super::client::asking;
use super::shared;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

fn weather() -> Value {
    json!([
        { "type": "function", "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": { "type": "object", "additionalProperties": false, "required": ["city", "days"], "properties": {
                "city": { "type": "string", "enum": ["Tokyo", "Paris"] },
                "days": { "type": "integer", "minimum": 1, "maximum": 7 },
            } },
        } },
        { "type": "function", "function": { "name": "now" } },
    ])
}

#[track_caller]
fn check_call(call: &Value) {
    assert_eq!(call["function"]["name"], "get_weather");
    let arguments: Value =
        serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
    assert!(
        ["Tokyo", "Paris"].contains(&arguments["city"].as_str().unwrap()),
        "{arguments}"
    );
    assert!(
        (1..=7).contains(&arguments["days"].as_i64().unwrap()),
        "{arguments}"
    );
    assert_eq!(arguments.as_object().unwrap().len(), 2);
}

#[test]
fn a_tool_that_must_be_called_is() {
    let choice = json!({ "type": "function", "function": { "name": "get_weather" } });
    for seed in 0..5 {
        let settings = json!({
            "tools": weather(), "tool_choice": choice, "parallel_tool_calls": false, "seed": seed, "temperature": 1.5,
        });
        let answer = shared()
            .ask("What is the weather in Tokyo?", settings.clone())
            .ok();
        let choice = &answer["choices"][0];
        assert_eq!(
            (&choice["finish_reason"], &choice["message"]["content"]),
            (&json!("tool_calls"), &Value::Null)
        );
        let calls = choice["message"]["tool_calls"].as_array().unwrap();
        assert_eq!((calls.len(), &calls[0]["type"]), (1, &json!("function")));
        check_call(&calls[0]);
        // The same as a stream.
        let mut streaming = settings;
        streaming["stream"] = true.into();
        let events = shared()
            .ask("What is the weather in Tokyo?", streaming)
            .events();
        let mut call = json!({ "function": { "name": "", "arguments": "" } });
        for delta in events
            .iter()
            .filter_map(|event| event["choices"][0]["delta"]["tool_calls"].get(0))
        {
            assert_eq!(delta["index"], 0);
            for key in ["name", "arguments"] {
                let more = delta["function"][key].as_str().unwrap_or_default();
                call["function"][key] =
                    format!("{}{more}", call["function"][key].as_str().unwrap()).into();
            }
        }
        check_call(&call);
        assert_eq!(
            call["function"]["arguments"],
            calls[0]["function"]["arguments"]
        );
        assert_eq!(
            events.last().unwrap()["choices"][0]["finish_reason"],
            "tool_calls"
        );
    }
    let required =
        json!({ "tools": weather(), "tool_choice": "required", "seed": 1, "max_tokens": 100 });
    let answer = shared().ask("The time?", required).ok();
    assert!(
        !answer["choices"][0]["message"]["tool_calls"]
            .as_array()
            .unwrap()
            .is_empty()
    );
}

#[test]
fn calls_and_results_are_part_of_a_conversation() {
    let call = json!({ "id": "call_1", "type": "function", "function": { "name": "now", "arguments": "{}" } });
    let body = json!({ "messages": [
        { "role": "developer", "content": "Be brief." },
        { "role": "user", "content": [{ "type": "text", "text": "What is the" }, { "type": "text", "text": " capital of Japan?" }] },
        { "role": "assistant", "content": null, "tool_calls": [call] },
        { "role": "tool", "tool_call_id": "call_1", "content": "12:00" },
    ], "tools": weather(), "max_tokens": 5 });
    let usage = shared().chat(body.clone()).ok()["usage"].take();
    // The prompt describes the tools (`prompt.rs` tests how): a completion with the described text
    // has as many prompt tokens.
    let mut without = body;
    without["tool_choice"] = "none".into();
    let fewer = shared().chat(without).ok()["usage"].take();
    let told = |tools: &str| {
        let text = format!(
            "[gMASK]<sop><|system|>\nBe brief.{tools}<|user|>\nWhat is the capital of Japan?<|assistant|>\n\
             <tool_call>\n{{\"name\": \"now\", \"arguments\": {{}}}}\n</tool_call>\
             <|user|>\n<tool_response>12:00</tool_response><|assistant|>\n"
        );
        let completion = shared()
            .post(
                "/v1/completions",
                &json!({ "prompt": text, "max_tokens": 1 }),
            )
            .ok();
        completion["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    let list: Vec<String> = weather()
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["function"].to_string())
        .collect();
    let tools = format!(
        "\n\nYou can call these functions:\n{}\nTo call one, write this and wait:\n<tool_call>\n\
         {{\"name\": \"NAME\", \"arguments\": {{\"PARAMETER\": \"VALUE\"}}}}\n</tool_call>",
        list.join("\n")
    );
    assert_eq!(fewer["prompt_tokens"], told(""));
    // The whole list of tools is in the prompt.
    assert!(
        usage["prompt_tokens"].as_u64().unwrap() >= told(&tools),
        "{usage}"
    );
}

#[test]
fn json_follows_its_schema() {
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["city", "facts"],
        "properties": { "city": { "$ref": "#/$defs/city" }, "facts": { "type": "array", "minItems": 2, "maxItems": 2, "items": { "$ref": "#/$defs/fact" } } },
        "$defs": {
            "city": { "type": "string", "enum": ["Tokyo", "Paris"] },
            "fact": { "type": "object", "additionalProperties": false, "required": ["year", "sure"],
                "properties": { "year": { "type": "integer", "minimum": 1900, "maximum": 2100 }, "sure": { "type": "boolean" } } },
        },
    });
    for stream in [false, true] {
        let format = json!({ "type": "json_schema", "json_schema": { "name": "city", "strict": true, "schema": schema } });
        let body = asking(
            "The capital of Japan?",
            json!({ "response_format": format, "seed": 2, "temperature": 1.5, "stream": stream }),
        );
        let response = shared().chat(body);
        let text = match stream {
            true => super::client::joined(&response.events()),
            false => {
                let answer = response.ok();
                assert_eq!(answer["choices"][0]["finish_reason"], "stop");
                answer["choices"][0]["message"]["content"]
                    .as_str()
                    .unwrap()
                    .to_owned()
            }
        };
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(
            ["Tokyo", "Paris"].contains(&value["city"].as_str().unwrap()),
            "{value}"
        );
        for fact in value["facts"].as_array().unwrap() {
            assert!(
                (1900..=2100).contains(&fact["year"].as_i64().unwrap())
                    && fact["sure"].is_boolean(),
                "{value}"
            );
        }
    }
    let object =
        json!({ "response_format": { "type": "json_object" }, "seed": 2, "max_tokens": 40 });
    assert!(shared().answer("JSON?", object).starts_with('{'));
}

#[test]
fn forms_that_make_no_sense_are_refused() {
    let refused = |settings: Value| shared().ask("Hm?", settings).refused(400)["param"].take();
    let format = |schema: Value| json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x", "schema": schema } } });
    assert_eq!(
        refused(format(json!({ "type": "no such type" }))),
        "response_format"
    );
    assert_eq!(
        refused(format(json!({ "$ref": "#/$defs/missing" }))),
        "response_format"
    );
    assert_eq!(
        refused(format(json!({ "$ref": "https://example.com/schema.json" }))),
        "response_format"
    );
    assert_eq!(
        refused(format(json!("text"))),
        "response_format.json_schema.schema"
    );
    assert_eq!(
        refused(json!({ "response_format": { "type": "json_schema" } })),
        "response_format.json_schema.schema"
    );
    assert_eq!(
        refused(json!({ "response_format": { "type": "xml" } })),
        "response_format.type"
    );
    assert_eq!(refused(json!({ "tool_choice": "required" })), "tool_choice");
    let other = json!({ "type": "function", "function": { "name": "other" } });
    assert_eq!(
        refused(json!({ "tools": weather(), "tool_choice": other })),
        "tool_choice"
    );
    assert_eq!(
        refused(json!({ "tools": [{ "type": "function" }] })),
        "tools[0].function"
    );
    assert_eq!(
        refused(json!({ "tools": [{ "type": "function", "function": { "name": "a b" } }] })),
        "tools[0].function.name"
    );
    assert_eq!(
        refused(json!({ "functions": [{ "name": "a b" }] })),
        "functions[0].name"
    );
    assert_eq!(
        refused(json!({ "functions": [{ "name": "a" }], "function_call": { "name": "b" } })),
        "tool_choice"
    );
}

fn arguments(answer: &Value) -> Value {
    let call = &answer["choices"][0]["message"]["tool_calls"][0];
    serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap()
}

#[test]
fn a_forced_call_takes_the_schemas_of_an_automatic_one() {
    let forced = |parameters: &Value| {
        let function = json!({ "name": "a", "parameters": parameters });
        let tools = json!([{ "type": "function", "function": function }, { "type": "web_search" }]);
        let settings =
            json!({ "tools": tools, "tool_choice": "required", "max_tokens": 90, "seed": 1 });
        shared().ask("Hm?", settings).ok()
    };
    for parameters in [
        json!(null),
        json!({}),
        json!({ "type": "object", "properties": {} }),
        json!({ "type": "object", "properties": null, "required": null }),
    ] {
        assert_eq!(arguments(&forced(&parameters)), json!({}), "{parameters}");
    }
    for keyword in [
        json!({ "type": "string", "format": "path", "maxLength": 3 }),
        json!({ "type": "array", "items": { "enum": ["x"] }, "uniqueItems": true, "maxItems": 1 }),
        json!({ "type": "boolean", "not": { "const": true } }),
        json!({ "type": "string", "pattern": "(?=a)", "maxLength": 3 }),
        json!({ "oneOf": [{ "type": "boolean" }, { "enum": [true, null] }] }),
        // Closed, as a value of any type could be longer than the answer.
        json!({ "type": "object", "propertyNames": {}, "properties": { "b": { "type": "null" } }, "additionalProperties": false }),
        json!({ "type": "boolean", "if": {}, "then": {} }),
    ] {
        let parameters =
            json!({ "type": "object", "properties": { "a": keyword }, "required": ["a"] });
        assert!(arguments(&forced(&parameters))["a"] != Value::Null || keyword["oneOf"].is_array());
    }
    forced(&json!({ "type": "object", "properties": { "x": { "type": 7 } } }));
    // Types in capitals or in the words of a language.
    let digit = json!({ "type": ["int", "NULL"], "maximum": 9, "minimum": 0 });
    let properties = json!({ "a": { "type": "BOOLEAN" }, "b": { "type": "bool" }, "c": digit });
    let names = json!(["a", "b", "c"]);
    let parameters = json!({ "type": "OBJECT", "required": names, "properties": properties });
    let told = arguments(&forced(&parameters));
    assert!(told["a"].is_boolean() && told["b"].is_boolean(), "{told}");
    assert!(told["c"].is_u64() || told["c"].is_null(), "{told}");
}

#[test]
fn numbers_end() {
    for schema in [
        json!({ "type": "integer" }),
        json!({ "type": "number", "minimum": 0, "maximum": 1 }),
        json!({ "type": "string", "format": "date-time" }),
    ] {
        let format =
            json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
        for seed in 0..3 {
            let settings = json!({ "response_format": format, "max_tokens": 90, "seed": seed, "temperature": 1.5 });
            let answer = shared().ask("Hm?", settings).ok();
            assert_eq!(
                answer["choices"][0]["finish_reason"], "stop",
                "{schema}: {answer}"
            );
        }
    }
}

#[test]
fn some_of_the_tools_may_be_allowed() {
    let named = json!([{ "type": "function", "function": { "name": "get_weather" } }]);
    for choice in [
        json!({ "type": "allowed_tools", "allowed_tools": { "mode": "required", "tools": named } }),
        json!({ "type": "allowed_tools", "mode": "required", "tools": [{ "name": "get_weather" }] }),
    ] {
        let settings = json!({ "tools": weather(), "tool_choice": choice, "seed": 1 });
        let answer = shared().ask("The weather?", settings).ok();
        check_call(&answer["choices"][0]["message"]["tool_calls"][0]);
    }
}

#[test]
fn grammars_cost_little() {
    let intersection: Vec<String> = (10..40).map(|n| format!("/.*a.{{{n}}}/")).collect();
    let patterns = Value::from_iter((0..900).map(|i| (format!("^(a|b)*{i}$"), json!({}))));
    let all: Vec<Value> = (10..40)
        .map(|n| json!({ "pattern": format!(".*a.{{{n}}}$") }))
        .collect();
    for settings in [
        json!({ "grammar": format!("start: A\nA: {}", intersection.join(" & ")) }),
        json!({ "grammar": format!("start: %json {}", json!({ "patternProperties": patterns })) }),
        json!({ "guided_json": { "type": "string", "allOf": all } }),
        json!({ "grammar": "start: \"x\" A\nA: /y/ | (/z/ (/.*a.{300}/ & ~/.*b.{300}/))" }),
    ] {
        // Without the limits each takes over a minute.
        shared().ask("Hm?", settings).refused(400);
    }
}

#[test]
fn a_forced_call_that_is_cut_off_is_no_text() {
    for limit in [1, 5, 8, 14] {
        let settings = json!({ "tools": weather(), "tool_choice": "required", "seed": 1, "max_tokens": limit });
        let answer = shared().ask("The weather?", settings.clone()).ok();
        let choice = &answer["choices"][0];
        assert_eq!(
            (&choice["message"]["content"], &choice["finish_reason"]),
            (&Value::Null, &json!("length")),
            "{limit}"
        );
        let mut streaming = settings;
        streaming["stream"] = true.into();
        let events = shared().ask("The weather?", streaming).events();
        assert!(
            events
                .iter()
                .all(|event| !event["choices"][0]["delta"]["content"].is_string()),
            "{limit}: {events:?}"
        );
        assert_eq!(
            events.last().unwrap()["choices"][0]["finish_reason"],
            "length"
        );
    }
}

#[test]
fn what_is_wrong_with_a_schema_is_said_in_a_line() {
    let schema = json!({ "type": "object", "properties": { "secret": { "type": "words" } } });
    let format = json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x", "schema": schema } } });
    let error = shared().ask("Hm?", format).refused(400);
    assert_eq!(
        error["message"],
        "this schema is not possible: Invalid type: words"
    );
    let pattern = json!({ "type": "string", "pattern": "(".repeat(2000) });
    let format = json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x", "schema": pattern } } });
    let error = shared().ask("Hm?", format).refused(400);
    let message = error["message"].as_str().unwrap();
    assert!(
        message.chars().count() <= 301 && !message.contains('\n') && !message.contains("%json"),
        "{message}"
    );
}

/// Whether the server refuses a schema.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Refused {
    Must,
    May,
    Never,
}

/// Schemas that crashed a server or took it too long, or could have.
fn bombs() -> Vec<(&'static str, Value, Refused)> {
    let many = |n: usize, one: &dyn Fn(usize) -> Value| (0..n).map(one).collect::<Vec<_>>();
    let named =
        |n: usize, one: &dyn Fn(usize) -> (String, Value)| Value::from_iter((0..n).map(one));
    let chain = |n: usize| {
        let next = |i: usize| json!({ "properties": { "x": { "$ref": format!("#/$defs/a{}", (i + 1) % n) } } });
        json!({ "$defs": named(n, &|i| (format!("a{i}"), next(i))), "$ref": "#/$defs/a0" })
    };
    let nested = |n: usize| {
        (0..n).fold(
            json!({ "type": "string" }),
            |inner, _| json!({ "properties": { "a": inner } }),
        )
    };
    let constant = |i: usize| json!({ "type": "object", "properties": { "k": { "const": format!("{i}") } }, "required": ["k"] });
    let products = |n: usize| {
        let one = |j: usize| json!({ "properties": { format!("k{j}"): { "const": 1 } } });
        json!({ "allOf": many(8, &|_| json!({ "oneOf": many(n, &one) })) })
    };
    let patterns = |n: usize| json!({ "patternProperties": named(n, &|i| (format!("^a{i}[a-z]*$"), json!({}))) });
    let counted = |n: usize| {
        json!({ "type": "object", "properties": named(n, &|i| (format!("p{i}"), json!({ "type": "null" }))),
            "minProperties": 1, "additionalProperties": false })
    };
    let objects = |n: usize, each: usize| {
        let one = |_| json!({ "type": "object", "properties": named(each, &|i| (format!("p{i}"), json!({}))) });
        json!({ "anyOf": many(n, &one) })
    };
    let inherited = json!({ "$defs": { "a": { "properties": named(900, &|i| (format!("p{i}"), json!({}))) } },
        "$ref": "#/$defs/a", "minProperties": 1 });
    let alternatives = json!({ "allOf": [{ "oneOf": many(1_000, &constant) }], "default": null });
    let keyword = json!({ "type": "object", "properties": {
        "allOf": { "type": "boolean" }, "x": { "oneOf": many(30, &constant) } } });
    use Refused::{May, Must, Never};
    vec![
        ("itself", json!({ "$ref": "#" }), Must),
        (
            "itself among all",
            json!({ "allOf": [{ "$ref": "#" }] }),
            Must,
        ),
        (
            "itself among any",
            json!({ "anyOf": [{ "$ref": "#" }, { "$ref": "#" }] }),
            Must,
        ),
        (
            "a circle",
            json!({ "$defs": { "a": { "$ref": "#/$defs/b" }, "b": { "$ref": "#/$defs/a" } }, "$ref": "#/$defs/a" }),
            Must,
        ),
        (
            "a circle with siblings",
            json!({ "$defs": { "a": { "type": "object", "$ref": "#/$defs/a" } }, "$ref": "#/$defs/a" }),
            Must,
        ),
        ("a count of properties", counted(1_000), Must),
        ("a count of many properties", counted(64), May),
        ("a count of some properties", counted(40), Never),
        ("a count of another's properties", inherited, Must),
        ("objects", objects(20, 1_000), Must),
        ("some objects", objects(10, 30), Never),
        ("a list of one", alternatives, May),
        ("a property like a keyword", keyword, Never),
        (
            "no end",
            json!({ "properties": { "x": { "$ref": "#" } }, "required": ["x"], "type": "object" }),
            May,
        ),
        ("nothing", json!(false), Must),
        ("a chain", chain(1_000), Never),
        ("a long chain", chain(20_000), Must),
        ("deep", nested(40), Never),
        ("too deep", nested(100), Must),
        (
            "an enumeration",
            json!({ "enum": many(10_000, &|i| json!(format!("value {i}"))) }),
            May,
        ),
        (
            "a huge enumeration",
            json!({ "enum": many(100_000, &|i| json!(format!("value {i}"))) }),
            Must,
        ),
        (
            "alternatives",
            json!({ "oneOf": many(20_000, &constant) }),
            Must,
        ),
        ("products", products(24), Must),
        ("patterns of names", patterns(300), Must),
        (
            "properties",
            json!({ "properties": named(10_000, &|i| (format!("p{i}"), json!({}))) }),
            Must,
        ),
        (
            "required",
            json!({ "required": many(100_000, &|i| json!(format!("p{i}"))) }),
            Must,
        ),
        (
            "a long text",
            json!({ "type": "string", "minLength": 1_000_000_000 }),
            May,
        ),
        (
            "a long list",
            json!({ "type": "array", "minItems": 1_000_000_000, "maxItems": 2_000_000_000 }),
            May,
        ),
        (
            "a pattern",
            json!({ "type": "string", "pattern": "((((a{1,100}){1,100}){1,100}){1,100}){1,100}" }),
            May,
        ),
        (
            "a pattern of groups",
            json!({ "type": "string", "pattern": format!("{}a{}", "(".repeat(20_000), ")".repeat(20_000)) }),
            Must,
        ),
        (
            "a pattern of options",
            json!({ "type": "string", "pattern": "a?".repeat(5_000) + &"a".repeat(5_000) }),
            May,
        ),
        (
            "multiples",
            json!({ "allOf": [{ "multipleOf": 999_983.7 }, { "multipleOf": 999_979.3 }], "type": "number" }),
            May,
        ),
        (
            "white space",
            json!({ "x-guidance": { "whitespace_pattern": "(a{1,1000}){1,1000}" } }),
            May,
        ),
    ]
}

#[test]
fn no_schema_takes_long_or_fails() {
    /// Less than the time of any schema before it was bounded, a minute and more.
    const PATIENCE: Duration = Duration::from_secs(30);
    let client = shared();
    for (name, schema, refused) in bombs() {
        let tool =
            json!([{ "type": "function", "function": { "name": "a", "parameters": schema } }]);
        let forced =
            json!({ "tools": tool, "tool_choice": "required", "max_tokens": 3, "seed": 1 });
        let format =
            json!({ "type": "json_schema", "json_schema": { "name": "x", "schema": schema } });
        let settings = [
            json!({ "response_format": format, "max_tokens": 8, "seed": 1 }),
            forced,
        ];
        // Parameters of tools are objects, and are also written into the prompt.
        let both = if schema.is_object() && schema.to_string().len() < 1000 {
            2
        } else {
            1
        };
        for (forced, settings) in settings.into_iter().take(both).enumerate() {
            // A forced call takes all that an automatic one takes, and leaves the rest open.
            let refused = if forced == 1 { Refused::Never } else { refused };
            let begin = Instant::now();
            let response = client.ask("Hm?", settings);
            assert!(begin.elapsed() < PATIENCE, "{name}: {:?}", begin.elapsed());
            assert!(
                refused != Refused::Must || response.status == 400,
                "{name}: {response:?}"
            );
            assert!(
                refused != Refused::Never || response.status == 200,
                "{name}: {response:?}"
            );
            if response.status != 200 {
                let error = response.refused(400);
                let message = error["message"].as_str().unwrap();
                assert!(
                    !message.contains("backtrace") && !message.contains("panic"),
                    "{name}: {message}"
                );
            }
        }
    }
    assert_eq!(client.get("/health").ok()["status"], "ok");
}

/// Schemas as Pydantic and FastAPI generate them: an `allOf` of one reference with a default, and
/// alternatives with a constant as discriminator.
#[test]
fn what_pydantic_writes_is_no_bomb() {
    let shape = |i: usize| json!({ "type": "object", "properties": { "k": { "const": format!("{i}") } }, "required": ["k"] });
    let tool = |t: usize| {
        let shapes: Vec<Value> = (0..10).map(|i| shape(10 * t + i)).collect();
        let mut parameters =
            json!({ "type": "object", "properties": { "s": { "oneOf": shapes } } });
        if t == 0 {
            let colour = json!({ "$ref": "#/$defs/C" });
            parameters["$defs"] = json!({ "C": { "enum": ["a", "b"] } });
            parameters["properties"]["line"] = json!({ "allOf": [colour], "default": "a" });
            parameters["properties"]["fill"] = json!({ "allOf": [colour, {}] });
        }
        json!({ "type": "function", "function": { "name": format!("d{t}"), "parameters": parameters } })
    };
    let tools: Vec<Value> = (0..3).map(tool).collect();
    shared()
        .ask(
            "Draw!",
            json!({ "tools": tools, "tool_choice": "required", "max_tokens": 3, "seed": 1 }),
        )
        .ok();
}
