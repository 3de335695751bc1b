//! Bounds on chat templates and conversations, checked before a template is compiled or run.

use minijinja::machinery::{Token, Tokenizer};
use minijinja::syntax::SyntaxConfig;
use serde_json::Value as Json;

use super::error::ChatError;

/// Maximum template source in bytes; the longest known templates have about 30 kB.
const MAX_SOURCE: usize = 1 << 20;
/// Maximum tokens of one tag. Known templates have up to 40, an inlined table some
/// hundreds. minijinja recurses for each link of a chain (`- - - x`, `x|f|f`), with about
/// 450 bytes of stack each.
const MAX_TAG: usize = 2048;
/// Maximum `elif`s of nested conditions together; known templates have up to 10. minijinja itself
/// limits all other nesting to 150.
const MAX_BRANCHES: usize = 256;
/// Maximum nesting depth of messages, tools and variables: below the 128 levels of `serde_json`,
/// with room for the enclosing request.
const MAX_DEPTH: usize = 100;

/// Returns an error if the source is longer than [`MAX_SOURCE`].
pub(super) fn check_length(source: &str) -> Result<(), ChatError> {
    match source.len() {
        bytes if bytes > MAX_SOURCE => Err(ChatError::SourceTooLarge {
            bytes,
            limit: MAX_SOURCE,
        }),
        _ => Ok(()),
    }
}

/// Returns an error if minijinja's parser would recurse too deeply.
pub(super) fn check_source(source: &str, syntax: SyntaxConfig) -> Result<(), ChatError> {
    let mut tokens = Tokenizer::new(source, "", false, syntax);
    let (mut tag, mut begins) = (0, false);
    // `elif` count of each open `if`, and of all open `if`s together.
    let (mut open, mut branches) = (Vec::new(), 0);
    // Invalid tokens end the scan; the parser stops at the same place and reports the error.
    while let Ok(Some((token, span))) = tokens.next_token() {
        let line = usize::from(span.start_line);
        match token {
            Token::BlockStart | Token::VariableStart => tag = 0,
            Token::Ident("if") if begins => open.push(0),
            Token::Ident("elif") if begins => {
                branches += 1;
                if let Some(own) = open.last_mut() {
                    *own += 1;
                }
            }
            Token::Ident("endif") if begins => branches -= open.pop().unwrap_or(0),
            _ => tag += 1,
        }
        begins = matches!(token, Token::BlockStart);
        if tag > MAX_TAG {
            return Err(ChatError::TagTooLong {
                line,
                limit: MAX_TAG,
            });
        }
        if branches > MAX_BRANCHES {
            return Err(ChatError::TooManyBranches {
                line,
                limit: MAX_BRANCHES,
            });
        }
    }
    Ok(())
}

/// Returns the approximate text size of values in bytes.
///
/// # Errors
/// Returns an error if a value is nested too deeply.
pub(super) fn weigh<'j>(values: impl IntoIterator<Item = &'j Json>) -> Result<usize, ChatError> {
    values
        .into_iter()
        .map(|value| weigh_within(value, MAX_DEPTH))
        .sum()
}

fn weigh_within(value: &Json, levels: usize) -> Result<usize, ChatError> {
    /// Bytes of a number, a keyword or a pair of brackets, with the following comma.
    const SCALAR: usize = 8;
    let deeper = levels
        .checked_sub(1)
        .ok_or(ChatError::ConversationTooDeep(MAX_DEPTH));
    let inside: usize = match value {
        Json::String(text) => text.len(),
        Json::Array(items) => {
            let levels = deeper?;
            items
                .iter()
                .map(|item| weigh_within(item, levels))
                .sum::<Result<_, _>>()?
        }
        Json::Object(map) => {
            let levels = deeper?;
            map.iter()
                .map(|(key, item)| Ok(key.len() + weigh_within(item, levels)?))
                .sum::<Result<_, ChatError>>()?
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => 0,
    };
    Ok(inside + SCALAR)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str) -> Result<(), ChatError> {
        check_source(source, SyntaxConfig::default())
    }

    #[test]
    fn long_chains_are_refused_with_their_line() {
        for link in [
            "-",
            "not ",
            "+",
            "1 or ",
            "1 and ",
            "1 + ",
            "1 ~ ",
            "1 if 1 else ",
            "x[",
            "(",
            "[",
            "f(",
            "{1:",
        ] {
            let source = format!("a\n{{{{ {}1 }}}}", link.repeat(20_000));
            assert_eq!(
                check(&source),
                Err(ChatError::TagTooLong {
                    line: 2,
                    limit: MAX_TAG
                }),
                "{link}"
            );
        }
        for link in [
            "|f",
            ".b",
            "[1]",
            "()",
            " is not x",
            " == 1",
            " in x",
            "**1",
        ] {
            let source = format!("{{% set x = 1{} %}}", link.repeat(20_000));
            assert_eq!(
                check(&source),
                Err(ChatError::TagTooLong {
                    line: 1,
                    limit: MAX_TAG
                }),
                "{link}"
            );
        }
    }

    #[test]
    fn long_chains_of_branches_are_refused() {
        let chain = format!(
            "{{% if 1 %}}{}{{% endif %}}",
            "\n{%- elif 1 -%}".repeat(20_000)
        );
        assert_eq!(
            check(&chain),
            Err(ChatError::TooManyBranches {
                line: 258,
                limit: MAX_BRANCHES
            })
        );
        let nested = "{% if 1 %}{% elif 1 %}".repeat(20_000);
        assert!(matches!(
            check(&nested),
            Err(ChatError::TooManyBranches { .. })
        ));
    }

    #[test]
    fn what_is_long_but_flat_passes() {
        let tags = "{% if a is defined and b.c[1:] %}{% elif c %}x{% endif %}{# {{ #}{% raw %}{{{{{% endraw %}";
        assert_eq!(check(&tags.repeat(5_000)), Ok(()));
        let table = format!("{{{{ [{}] }}}}", "'1, 2 - - -', ".repeat(1_000));
        assert_eq!(check(&table), Ok(()));
        assert_eq!(check(&"- - - ".repeat(100_000)), Ok(()));
        // The parser reports unterminated strings.
        assert_eq!(check("{{ 'a"), Ok(()));
    }

    #[test]
    fn deep_values_are_refused() {
        let nest = |depth: usize| (0..depth).fold(Json::Null, |inner, _| Json::Array(vec![inner]));
        assert!(weigh([&nest(MAX_DEPTH)]).is_ok());
        assert_eq!(
            weigh([&nest(MAX_DEPTH + 1)]),
            Err(ChatError::ConversationTooDeep(MAX_DEPTH))
        );
        assert_eq!(
            weigh([&serde_json::json!({"ab": ["cde", 1]}), &Json::Null]).unwrap(),
            2 + 3 + 5 * 8
        );
    }
}
