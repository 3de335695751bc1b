//! Grammars for constrained decoding, in llguidance's variant of Lark: output formats and tool
//! calls.

pub use super::calls::Callable;

use super::calls::call_rules;
use super::close::compact;
use super::gbnf;
use super::intersections;
use super::lark::{GrammarTexts, line, literal};
use crate::core::constraint::bounds::Tally;
use gristmill_llm::chat::markup::{Frame, Markup, Messages};
use gristmill_llm::chat::reply::Begins;
use gristmill_llm::tokenizer::Tokenizer;
use llguidance::api::TopLevelGrammar;
use serde_json::Value;

/// Format that constrains an answer's text.
#[derive(Clone, Debug)]
pub enum OutputFormat {
    /// JSON that matches a JSON schema.
    Schema(Value),
    /// Text that a regular expression matches as a whole.
    Regex(String),
    /// One of the listed texts.
    Choice(Vec<String>),
    /// Text of a grammar in llguidance's variant of Lark.
    Lark(String),
    /// Text of a grammar in llama.cpp's GBNF.
    Gbnf(String),
}

/// Constraint on an answer: a format, tool calls, or either of the two.
#[derive(Default)]
pub struct OutputConstraint<'t> {
    /// Format that the answer may have.
    pub form: Option<&'t OutputFormat>,
    /// Tools that the answer may call.
    pub calls: Vec<Callable<'t>>,
    /// Whether the answer may have several calls.
    pub several: bool,
}

/// Maximum bytes of a client's grammar or regular expression, and of all texts of a choice.
const MAX_GRAMMAR_BYTES: usize = 32 << 10;

/// Returns the grammar of a constraint.
///
/// # Errors
/// When a schema or grammar is too large or cannot be parsed, or a grammar is combined with tools.
pub fn grammar(
    constraint: &OutputConstraint,
    markup: &Markup,
    begins: Begins,
    tokenizer: &Tokenizer,
) -> Result<TopLevelGrammar, String> {
    let OutputConstraint {
        form,
        calls,
        several,
    } = constraint;
    let mut tally = Tally::default();
    let schema = form.and_then(|form| {
        if let OutputFormat::Schema(schema) = form {
            Some(schema)
        } else {
            None
        }
    });
    schema
        .into_iter()
        .chain(calls.iter().filter_map(|tool| tool.parameters))
        .for_each(|it| tally.add(it));
    tally.check()?;
    let mut starts: Vec<&str> = Vec::new();
    let mut rules = String::new();
    match form {
        None => {}
        Some(OutputFormat::Lark(text) | OutputFormat::Gbnf(text))
            if !calls.is_empty() || text.len() > MAX_GRAMMAR_BYTES =>
        {
            return Err(format!(
                "it may have {MAX_GRAMMAR_BYTES} bytes, and stands alone, without tools"
            ));
        }
        Some(OutputFormat::Lark(text)) => {
            check_lark(text)?;
            return Ok(TopLevelGrammar::from_lark(text.clone()));
        }
        Some(OutputFormat::Gbnf(text)) => {
            return gbnf::to_lark(text).map(TopLevelGrammar::from_lark);
        }
        Some(form) => {
            starts.push("answer");
            line(&mut rules, format_args!("answer: {}", answer(form)?));
        }
    }
    let texts = GrammarTexts { markup, tokenizer };
    if !calls.is_empty() {
        starts.push("calls");
        rules += &call_rules(&texts, calls, *several)?;
    }
    let start = match markup.frame {
        Frame::Messages(messages) if begins == Begins::Open => {
            headed(&mut rules, &texts, &messages);
            starts
                .iter()
                .map(|start| format!("reasoned? {start}_headed"))
                .collect::<Vec<_>>()
                .join(" | ")
        }
        _ => starts.join(" | "),
    };
    Ok(TopLevelGrammar::from_lark(format!(
        "start: {start}\n{rules}"
    )))
}

/// Checks the parts of a client's grammar whose compilation grows faster than their text.
///
/// # Errors
/// The first part that exceeds its limit.
fn check_lark(text: &str) -> Result<(), String> {
    intersections::check(text)?;
    // Schemas that do not parse are refused by the compiler.
    let schemas: Vec<Value> = text
        .split("%json")
        .skip(1)
        .filter_map(|rest| {
            let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
            values.next()?.ok()
        })
        .collect();
    let mut tally = Tally::default();
    schemas.iter().for_each(|schema| tally.add(schema));
    tally.check()
}

/// Returns the right-hand side of the rule for a format that is not a grammar itself.
fn answer(form: &OutputFormat) -> Result<String, String> {
    match form {
        OutputFormat::Schema(schema) => Ok(format!("%json {}", compact(schema))),
        OutputFormat::Regex(regex) if regex.len() > MAX_GRAMMAR_BYTES => {
            Err(format!("it may have {MAX_GRAMMAR_BYTES} bytes"))
        }
        OutputFormat::Regex(regex) => Ok(format!("/{}/", slashed(regex))),
        OutputFormat::Choice(texts)
            if texts.is_empty()
                || texts.iter().map(String::len).sum::<usize>() > MAX_GRAMMAR_BYTES =>
        {
            Err(format!(
                "it must name some texts, of {MAX_GRAMMAR_BYTES} bytes in all"
            ))
        }
        OutputFormat::Choice(texts) => Ok(texts
            .iter()
            .map(|text| literal(text))
            .collect::<Vec<_>>()
            .join(" | ")),
        OutputFormat::Lark(_) | OutputFormat::Gbnf(_) => {
            unreachable!("{form:?} is a grammar of its own")
        }
    }
}

/// Escapes slashes and line ends of a regular expression, so that it can stand between slashes.
fn slashed(regex: &str) -> String {
    let mut out = String::with_capacity(regex.len());
    let mut escaped = false;
    for c in regex.chars() {
        match c {
            '/' if !escaped => out.push_str("\\/"),
            '\n' if escaped => {
                out.pop();
                out.push_str("\\n");
            }
            '\n' => out.push_str("\\n"),
            c => out.push(c),
        }
        escaped = c == '\\' && !escaped;
    }
    out
}

/// Adds the rules of a markup with message headers: optional reasoning before, and the header of an
/// answer. Calls have their headers already.
fn headed(rules: &mut String, texts: &GrammarTexts, messages: &Messages) {
    let [open, close] = texts.markup.think;
    let next = texts.terms(&messages.start.concat());
    line(
        rules,
        format_args!("reasoned: {} thought {next}", texts.terms(open)),
    );
    line(rules, format_args!("{}", texts.until("thought", close)));
    line(rules, format_args!("calls_headed: calls"));
    line(
        rules,
        format_args!("answer_headed: {} answer", texts.terms(messages.answer)),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::constraint::mask::Grammars;
    use gristmill_llm::chat::markup::{
        Arguments, CallFormat as MarkupForm, JSON, TABLE, TAGS, all_markers,
    };
    use gristmill_llm::chat::spell::{self, Spelt};
    use gristmill_llm::sampling::TokenSet;
    use gristmill_llm::tokenizer::TokenizerSpec;
    use serde_json::json;

    /// Tokenizer of printable characters, with the markers as special tokens.
    fn tokenizer() -> Tokenizer {
        let plain = ('!'..='~')
            .map(String::from)
            .chain(["\u{120}".into(), "\u{10a}".into()]);
        let markers = all_markers()
            .into_iter()
            .map(str::to_owned)
            .chain(["<|endoftext|>".into()]);
        let tokens: Vec<Vec<u8>> = plain.chain(markers).map(String::into_bytes).collect();
        let token_types = Some(
            (0..tokens.len())
                .map(|i| if i < 96 { 1 } else { 3 })
                .collect(),
        );
        let eos = Some(tokens.len() as u32 - 1);
        let spec = TokenizerSpec {
            model: "gpt2".into(),
            pre: "glm4".into(),
            tokens,
            token_types,
            eos,
            ..TokenizerSpec::default()
        };
        Tokenizer::new(spec).expect("a tokenizer")
    }

    /// Follows a text as far as the grammar allows. Returns the accepted part and whether the
    /// answer is then complete.
    fn follow(
        form: &OutputConstraint,
        style: &'static Markup,
        thinking: bool,
        text: &str,
    ) -> (String, bool) {
        let tokenizer = tokenizer();
        let grammars = Grammars::new(&tokenizer, tokenizer.n_tokens(), None);
        let begins = if thinking {
            Begins::Reasoning
        } else {
            Begins::Open
        };
        let mut constraint = grammars
            .compile(
                grammar(form, style, begins, &tokenizer).expect("small"),
                thinking.then_some(style.think[1]),
            )
            .expect("a grammar");
        let (mut done, mut complete) = (String::new(), false);
        for id in tokenizer.encode(text, true, false) {
            let mut tokens = TokenSet::all(tokenizer.n_tokens());
            constraint.mask(&mut tokens).expect("a mask");
            if complete || !tokens.contains(id) {
                return (done, complete);
            }
            let bytes = tokenizer.token_bytes(id).expect("bytes");
            complete = constraint.accept(id, bytes).expect("accepted");
            done += &tokenizer.decode(&[id], true);
        }
        (done, complete)
    }

    fn weather() -> Value {
        json!({
            "$defs": { "days": { "type": "integer", "minimum": 1, "maximum": 9 } },
            "properties": { "city": { "type": "string" }, "days": { "$ref": "#/$defs/days" }, "unit": { "enum": ["c", "f"] } },
            "required": ["city"], "additionalProperties": false,
        })
    }

    #[test]
    fn calls_in_either_style_follow_the_schema() {
        let parameters = weather();
        let calls = || {
            vec![
                Callable {
                    name: "weather",
                    parameters: Some(&parameters),
                },
                Callable {
                    name: "now",
                    parameters: None,
                },
            ]
        };
        let form = OutputConstraint {
            calls: calls(),
            ..OutputConstraint::default()
        };
        let pair = |key: &str, value: &str| {
            format!("<arg_key>{key}</arg_key><arg_value>{value}</arg_value>")
        };
        let tags = |arguments: &str| format!("<tool_call>weather{arguments}</tool_call>");
        let good = [
            (&TAGS, tags(&pair("city", "New York"))),
            (&TAGS, tags(&[pair("city", "Rome"), pair("days", "3"), pair("unit", "f")].concat())),
            (&TAGS, "<tool_call>now</tool_call>".into()),
            (
                &JSON,
                "<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\", \"days\": 3}}</tool_call>"
                    .into(),
            ),
            (&JSON, "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>".into()),
        ];
        for (style, text) in good {
            assert_eq!(follow(&form, style, false, &text), (text.clone(), true));
        }
        for (style, text, until) in [
            (&TAGS, tags(""), "<tool_call>weather"),
            (
                &TAGS,
                tags(&[pair("city", "Rome"), pair("days", "0")].concat()),
                "<arg_value>",
            ),
            (&TAGS, "<tool_call>never</tool_call>".into(), "<tool_call>n"),
            (
                &JSON,
                "<tool_call>{\"name\": \"other\"".into(),
                "{\"name\": \"",
            ),
            (&JSON, "Hello".into(), ""),
        ] {
            let (done, complete) = follow(&form, style, false, &text);
            assert!(
                !complete && done.ends_with(until) && done.len() < text.len(),
                "{text}: {done}"
            );
        }
    }

    #[test]
    fn several_calls_only_where_they_are_wanted() {
        let call = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
        for several in [false, true] {
            let form = OutputConstraint {
                calls: vec![Callable {
                    name: "now",
                    parameters: None,
                }],
                several,
                ..OutputConstraint::default()
            };
            let (done, complete) = follow(&form, &JSON, false, &call.repeat(2));
            assert_eq!(
                (done.matches("now").count(), complete),
                if several { (2, false) } else { (1, true) }
            );
        }
    }

    #[test]
    fn calls_in_every_markup_follow_the_schema() {
        let parameters = json!({
            "properties": {
                "city": { "type": "string" }, "days": { "type": "integer" }, "more": { "$ref": "#/$defs/more" },
                "unit": { "enum": ["c", "f"] },
            },
            "required": ["city"],
            "$defs": { "more": {
                "type": "object", "additionalProperties": false, "required": ["list"],
                "properties": { "deep": { "type": "boolean" }, "list": { "type": "array", "items": { "type": "number" } } },
            } },
        });
        let arguments = |value: Value| value.as_object().cloned().unwrap_or_default();
        let good = [
            json!({ "city": "New York" }),
            json!({ "city": "a < b\n{", "days": -3, "unit": "f" }),
            json!({ "city": "", "more": { "deep": true, "list": [1, 2.5] } }),
        ];
        let bad = [
            json!({}),
            json!({ "city": 3 }),
            json!({ "city": "Rome", "days": "three" }),
            json!({ "city": "Rome", "more": { "deep": true } }),
            json!({ "city": "Rome", "unit": "k" }),
            json!({ "city": "Rome", "zip": 1 }),
        ];
        for markup in TABLE {
            let calls = vec![
                Callable {
                    name: "weather",
                    parameters: Some(&parameters),
                },
                Callable {
                    name: "now",
                    parameters: None,
                },
            ];
            let form = OutputConstraint {
                calls,
                ..OutputConstraint::default()
            };
            let spelt = |name: &str, value: &Value| {
                let text = spell::calls(
                    markup,
                    &[Spelt {
                        name,
                        arguments: &arguments(value.clone()),
                    }],
                );
                // The end-of-message token ends the answer and is not part of it.
                text.strip_suffix("<|call|>").unwrap_or(&text).to_owned()
            };
            for value in &good {
                let text = spelt("weather", value);
                let (done, complete) = follow(&form, markup, false, &text);
                // Only optional white space may remain.
                assert!(
                    text.starts_with(&done) && text[done.len()..].trim().is_empty(),
                    "{}: {text:?} {done:?}",
                    markup.name
                );
                assert!(
                    complete || may_end(&form, markup, &text),
                    "{}: {text:?}",
                    markup.name
                );
            }
            for value in &bad {
                // Between tags, `3` is a valid string.
                if matches!(markup.form, MarkupForm::Named(_, Arguments::Tags { .. }))
                    && value["city"] == 3
                {
                    continue;
                }
                let text = spelt("weather", value);
                let (done, complete) = follow(&form, markup, false, &text);
                assert!(
                    !complete && done.len() < text.len(),
                    "{}: {text:?}",
                    markup.name
                );
            }
            assert!(
                follow(&form, markup, false, &spelt("never", &json!({})))
                    .0
                    .len()
                    < spelt("never", &json!({})).len()
            );
            assert!(
                follow(&form, markup, false, "Hello").0.is_empty(),
                "{}",
                markup.name
            );
        }
    }

    /// Returns whether an answer may end after the text.
    fn may_end(form: &OutputConstraint, markup: &'static Markup, text: &str) -> bool {
        let end = format!("{}<|endoftext|>", text.trim_end());
        follow(form, markup, false, &end)
            .0
            .ends_with("<|endoftext|>")
    }

    #[test]
    fn messages_have_headers_and_may_think_first() {
        let harmony = TABLE
            .iter()
            .find(|row| row.name == "harmony")
            .expect("harmony");
        let schema = OutputFormat::Schema(json!({ "type": "boolean" }));
        let form = OutputConstraint {
            form: Some(&schema),
            calls: vec![Callable {
                name: "now",
                parameters: None,
            }],
            ..OutputConstraint::default()
        };
        let thought = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant";
        let said = "<|channel|>final<|message|>true";
        let called = "<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}";
        for text in [
            said.to_owned(),
            format!("{thought}{said}"),
            called.to_owned(),
            format!("{thought}{called}"),
        ] {
            assert_eq!(follow(&form, harmony, false, &text), (text.clone(), true));
        }
        assert_eq!(follow(&form, harmony, false, "true").0, "");
        assert_eq!(
            follow(&form, harmony, false, &format!("{thought}{thought}")).0,
            format!("{thought}<|channel|>")
        );
    }

    #[test]
    fn reasoning_is_free_and_the_answer_is_not() {
        let schema = json!({ "type": "object", "properties": { "x": { "type": "boolean" } }, "required": ["x"], "additionalProperties": false });
        let schema = OutputFormat::Schema(schema);
        let form = OutputConstraint {
            form: Some(&schema),
            ..OutputConstraint::default()
        };
        let text = "Hm. So?</think>{\"x\": true}";
        assert_eq!(follow(&form, &JSON, true, text), (text.into(), true));
        assert_eq!(follow(&form, &JSON, true, "Hm.</think>No").0, "Hm.</think>");
        assert_eq!(follow(&form, &JSON, false, "Hm.").0, "");
    }
}
