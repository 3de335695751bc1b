//! Functions are short enough to be read at once.

use super::finding::Finding;
use super::lexer::{Token, TokenKind, close};
use super::tree::{File, Tree};

/// Maximum lines of code from `fn` to the closing brace. Blank lines, comments and lines of closing
/// brackets do not count, so that the limit does not depend on rustfmt's maximum width.
const MAX_LINES: usize = 60;

/// Finds functions of more than [`MAX_LINES`] lines of code under `src`, tests excluded.
pub fn long_functions(tree: &Tree) -> Vec<Finding> {
    let sources = tree
        .files
        .iter()
        .filter(|file| file.path.split('/').any(|folder| folder == "src"));
    sources.flat_map(of_file).collect()
}

fn of_file(file: &File) -> Vec<Finding> {
    let mut found = vec![];
    for (at, (token, word)) in file.code().enumerate() {
        if word != "fn" || file.test || token.test {
            continue;
        }
        // A function type has no name.
        let Some(name) = file
            .tokens
            .get(at + 1)
            .filter(|name| name.kind == TokenKind::Ident)
        else {
            continue;
        };
        let Some(last) = last_token(file, at + 2) else {
            continue;
        };
        let lines = lines_of_code(file, &file.tokens[at..=last]);
        if lines > MAX_LINES {
            let name = &file.text[name.start..name.end];
            found.push(Finding {
                path: file.path.clone(),
                line: token.line,
                message: format!("`{name}` has {lines} lines of code, at most {MAX_LINES}"),
                hint: "split it into functions that are named by their purpose",
            });
        }
    }
    found
}

/// Counts the lines that the tokens occupy, closing brackets excluded.
fn lines_of_code(file: &File, tokens: &[Token]) -> usize {
    let (mut count, mut counted) = (0, 0);
    for token in tokens {
        let text = &file.text[token.start..token.end];
        let last = token.line + text.matches('\n').count();
        if last > counted && !matches!(text, ")" | "]" | "}" | "," | ";" | "?") {
            count += last + 1 - token.line.max(counted + 1);
            counted = last;
        }
    }
    count
}

/// Returns the index of the brace that closes a function's body. `from` is the index after the
/// function's name; `None` for a declaration in a trait.
fn last_token(file: &File, from: usize) -> Option<usize> {
    let mut at = from;
    loop {
        let token = file.tokens.get(at)?;
        match &file.text[token.start..token.end] {
            ";" => return None,
            "{" => return Some(close(&file.text, &file.tokens, at) - 1),
            "(" | "[" => at = close(&file.text, &file.tokens, at),
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        long_functions(&Tree::from_files(&[(path, text)]))
            .into_iter()
            .map(|f| f.line)
            .collect()
    }

    /// A function of `lines` lines of code that begins on the second line of the file.
    fn function(head: &str, lines: usize) -> String {
        format!(
            "\n{head} {{{}\n}}",
            "\n// A comment.\n\nf(\n);".repeat(lines - 1)
        )
    }

    #[test]
    fn long_functions_fail() {
        for head in [
            "fn f()",
            "pub(crate) const unsafe fn f<T: Fn(u8) -> [u8; 2]>(a: [u8; 2]) -> T where T: Copy",
        ] {
            assert_eq!(
                lines("a/src/b.rs", &function(head, MAX_LINES)),
                [0; 0],
                "{head}"
            );
            assert_eq!(
                lines("a/src/b.rs", &function(head, MAX_LINES + 1)),
                [2],
                "{head}"
            );
        }
        let inner = format!(
            "impl A {{ fn a(); {} }}",
            function("fn f(g: fn(u8))", MAX_LINES + 1)
        );
        assert_eq!(lines("a/src/b.rs", &inner), [2]);
    }

    #[test]
    fn tests_may_be_long() {
        let long = function("fn f()", MAX_LINES + 1);
        assert_eq!(lines("a/tests/b.rs", &long), [0; 0]);
        assert_eq!(
            lines(
                "a/src/b.rs",
                &format!("#[cfg(test)] mod tests {{ {long} }}")
            ),
            [0; 0]
        );
        assert_eq!(lines("a/src/b.rs", &format!("#[test]{long}")), [0; 0]);
    }

    #[test]
    fn long_items_other_than_functions_pass() {
        let text = format!(
            "struct A {{ f: fn(u8), {} }}\ntrait B {{ fn f(); }}\nconst C: [u8; 0] = [{}];",
            "\n".repeat(99),
            "\n".repeat(99)
        );
        assert_eq!(lines("a/src/b.rs", &text), [0; 0]);
    }
}
