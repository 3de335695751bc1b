//! Fuzz target for JSON schemas and tools, compiled to grammars, and for
//! constrained decoding with them.

use crate::Target;
use crate::bytes::FuzzInput;
use crate::targets::toy;
use gristmill_llm::chat::markup::TABLE;
use gristmill_llm::sampling::TokenSet;
use gristmill_llm::tokenizer::Tokenizer;
use gristmill_server::fuzzing::{
    Begins, Callable, Grammars, OutputConstraint, OutputFormat, grammar,
};
use serde_json::Value;
use std::cell::LazyCell;

/// Input: two bytes of choices, a schema, a zero byte, and the choices of tokens.
pub const TARGET: Target = Target {
    name: "schema",
    about: "a JSON schema, as an answer's or as a tool's: a grammar, and an answer that follows it",
    run,
    seeds,
    words: &[
        "\"type\":",
        "\"object\"",
        "\"array\"",
        "\"string\"",
        "\"integer\"",
        "\"number\"",
        "\"boolean\"",
        "\"null\"",
        "\"properties\":",
        "\"required\":",
        "\"additionalProperties\":",
        "\"items\":",
        "\"prefixItems\":",
        "\"minItems\":",
        "\"maxItems\":",
        "\"enum\":",
        "\"const\":",
        "\"anyOf\":",
        "\"oneOf\":",
        "\"allOf\":",
        "\"not\":",
        "\"$ref\":",
        "\"#\"",
        "\"#/$defs/a\"",
        "\"$defs\":",
        "\"definitions\":",
        "\"a\":",
        "\"pattern\":",
        "\"^[a-z]+$\"",
        "\"(a|b)*c{2,5}\"",
        "\"format\":",
        "\"date-time\"",
        "\"uuid\"",
        "\"minLength\":",
        "\"maxLength\":",
        "\"minimum\":",
        "\"maximum\":",
        "\"multipleOf\":",
        "\"exclusiveMinimum\":",
        "\"patternProperties\":",
        "\"x-guidance\":",
        "\"$id\":",
        "\"$anchor\":",
        "true",
        "false",
        "{}",
        "[]",
        "1e308",
        "-0.5",
        "999999999",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
    ],
    longest: 2 << 10,
    tries: 300,
};

/// Tokens generated under the grammar.
const FOLLOWED: usize = 24;

fn run(input: &[u8]) {
    thread_local! {
        static READY: LazyCell<(Tokenizer, Grammars)> = LazyCell::new(|| {
            let tokenizer = toy::tokenizer();
            let grammars = Grammars::new(&tokenizer, tokenizer.n_tokens(), None);
            (tokenizer, grammars)
        });
    }
    let mut input = FuzzInput::new(input);
    let (how, thinking) = (input.byte(), input.byte() == 1);
    let Ok(schema) = serde_json::from_slice::<Value>(input.until(0)) else {
        return;
    };
    let markup = &TABLE[usize::from(how >> 3) % TABLE.len()];
    let begins = if thinking {
        Begins::Reasoning
    } else {
        Begins::Open
    };
    let tool = |name| Callable {
        name,
        parameters: Some(&schema),
    };
    let answer = OutputFormat::Schema(schema.clone());
    let form = match how & 3 {
        0 => OutputConstraint {
            form: Some(&answer),
            ..OutputConstraint::default()
        },
        1 => OutputConstraint {
            calls: vec![tool("f")],
            ..OutputConstraint::default()
        },
        2 => {
            let calls = vec![
                tool("f"),
                Callable {
                    name: "g \"<",
                    parameters: None,
                },
            ];
            OutputConstraint {
                calls,
                several: true,
                form: None,
            }
        }
        _ => OutputConstraint {
            form: Some(&answer),
            calls: vec![tool("f")],
            several: false,
        },
    };
    READY.with(|ready| {
        let (tokenizer, grammars) = &**ready;
        // A schema that is too large may be refused.
        let Ok(grammar) = grammar(&form, markup, begins, tokenizer) else {
            return;
        };
        if let Ok(mut constraint) = grammars.compile(grammar, thinking.then_some(markup.think[1])) {
            for _ in 0..FOLLOWED {
                let mut tokens = TokenSet::all(tokenizer.n_tokens());
                // A grammar that becomes too large to follow may be refused.
                if constraint.mask(&mut tokens).is_err() {
                    return;
                }
                let allowed: Vec<u32> = tokens.iter().collect();
                assert!(
                    !allowed.is_empty(),
                    "nothing may come next, not even the end"
                );
                let token = allowed
                    [(usize::from(input.byte()) << 8 | usize::from(input.byte())) % allowed.len()];
                if tokenizer.is_eog(token) {
                    return;
                }
                match constraint.accept(token, tokenizer.token_bytes(token).unwrap_or_default()) {
                    Ok(false) => {}
                    Ok(true) | Err(_) => return,
                }
            }
        }
    });
}

fn seeds() -> Vec<Vec<u8>> {
    const SCHEMAS: &[&str] = &[
        r#"{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":9}},"required":["city"],"additionalProperties":false}"#,
        r##"{"$defs":{"a":{"type":"object","properties":{"next":{"$ref":"#/$defs/a"}}}},"$ref":"#/$defs/a"}"##,
        r#"{"anyOf":[{"type":"null"},{"type":"array","items":{"enum":["x",1,true]},"minItems":1,"maxItems":3},{"const":{"k":[1.5]}}]}"#,
        r#"{"type":"string","pattern":"^[a-z]{2,4}(-[0-9]+)?$","minLength":2,"maxLength":9}"#,
        r#"{"type":["number","boolean"],"multipleOf":0.5,"exclusiveMinimum":-3}"#,
        r#"{"allOf":[{"properties":{"d":{"format":"date-time"}}},{"patternProperties":{"^x":{"type":"integer"}}}]}"#,
        "true",
    ];
    let with = |(i, schema): (usize, &&str)| {
        [
            &[i as u8 * 9, 0],
            schema.as_bytes(),
            b"\0\x01\x02\x03\x04\x05\x06\x07\x08",
        ]
        .concat()
    };
    SCHEMAS
        .iter()
        .cycle()
        .take(TABLE.len())
        .enumerate()
        .map(with)
        .collect()
}
