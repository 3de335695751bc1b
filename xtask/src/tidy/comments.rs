//! Widths of comments, names of types and constructors, and sizes of the pages for newcomers.

use super::finding::Finding;
use super::lexer::TokenKind;
use super::tree::{File, Tree};
use std::collections::BTreeMap;

/// Maximum columns of a line with a comment; rustfmt wraps code only.
const COLUMNS: usize = 100;
/// A doc line with at most this number of words only echoes the name above it.
const ECHO_WORDS: usize = 3;
/// Type names that every module may define.
const COMMON_NAMES: &[&str] = &["Options", "Error", "Kind", "Result"];

/// Crate and name of types that it defines twice, and the reason.
const SHARED_NAMES: &[(&str, &str, &str)] = &[(
    "tensor",
    "Tensor",
    "the eager API and captured functions are used in different modules of a program",
)];

/// Pages that newcomers read first: path, maximum words, maximum bytes.
const PAGE_SIZES: &[(&str, usize, usize)] = &[
    ("README.md", 1500, usize::MAX),
    ("ARCHITECTURE.md", 3500, usize::MAX),
    ("CONTRIBUTING.md", usize::MAX, 8 << 10),
];

/// Finds comments that are wider than the code.
pub fn widths(tree: &Tree) -> Vec<Finding> {
    each_comment(tree, |file, comment| {
        let line = file.text.lines().nth(comment - 1)?;
        let columns = line.chars().count();
        // A link or a row of a table cannot be broken.
        let breakable =
            line.trim_start().starts_with("//") && !line.contains("://") && !line.contains(" | ");
        (columns > COLUMNS && breakable).then(|| {
            (
                format!("a comment of {columns} columns, at most {COLUMNS}"),
                "wrap it",
            )
        })
    })
}

fn each_comment(
    tree: &Tree,
    check: impl Fn(&File, usize) -> Option<(String, &'static str)>,
) -> Vec<Finding> {
    let mut found = vec![];
    for file in tree.files.iter().filter(|file| file.path.ends_with(".rs")) {
        for comment in file.comments() {
            if let Some((message, hint)) = check(file, comment.line) {
                found.push(Finding {
                    path: file.path.clone(),
                    line: comment.line,
                    message,
                    hint,
                });
            }
        }
    }
    found
}

/// Finds doc comments that say no more than the name below them.
pub fn echoes(tree: &Tree) -> Vec<Finding> {
    let mut found = vec![];
    for file in tree.files.iter().filter(|file| !file.test) {
        let mut previous = None;
        for comment in file.comments().filter(|comment| comment.mark == "///") {
            let first = previous.replace(comment.line) != Some(comment.line - 1);
            let words = comment
                .text
                .split(|c: char| !(c.is_alphanumeric() || c == '_'));
            let words = words.filter(|word| !word.is_empty()).count();
            let next = file
                .text
                .lines()
                .nth(comment.line)
                .unwrap_or_default()
                .trim_start();
            // Help texts of commands end without a full stop, and formulas too.
            let is_echo = (1..=ECHO_WORDS).contains(&words) && comment.text.ends_with('.');
            if first && is_echo && !next.starts_with("///") {
                let message = format!("`{}` is as short as a name", comment.text);
                let hint = "say its unit, shape or range, or delete it";
                found.push(Finding {
                    path: file.path.clone(),
                    line: comment.line,
                    message,
                    hint,
                });
            }
        }
    }
    found
}

/// Finds crate-visible type names that a crate defines twice, and constructors called `of`.
pub fn names(tree: &Tree) -> Vec<Finding> {
    let mut types: BTreeMap<(&str, &str), Vec<(&File, usize)>> = BTreeMap::new();
    let mut found = vec![];
    for file in tree.files.iter().filter(|file| file.path.contains("/src/")) {
        let crate_name = file.path.split('/').next().unwrap_or_default();
        let code: Vec<_> = file
            .shipped()
            .filter(|(token, _)| !token.attribute)
            .collect();
        for (at, &(token, word)) in code.iter().enumerate() {
            let name = code
                .get(at + 1)
                .filter(|(token, _)| token.kind == TokenKind::Ident)
                .map(|(_, name)| *name);
            let Some(name) = name else { continue };
            if word == "fn" && name == "of" {
                found.push(Finding {
                    path: file.path.clone(),
                    line: token.line,
                    message: "a function called `of`".to_owned(),
                    hint: "constructors are `new`, `from_x`, `for_x`, `with_x` or `parse`",
                });
            }
            if ["struct", "enum", "trait"].contains(&word) && is_for_the_crate(&code[..at]) {
                types
                    .entry((crate_name, name))
                    .or_default()
                    .push((file, token.line));
            }
        }
    }
    for ((crate_name, name), places) in types {
        let shared = |row: &&(&str, &str, &str)| row.0 == crate_name && row.1 == name;
        let allowed = COMMON_NAMES.contains(&name) || SHARED_NAMES.iter().any(|row| shared(&row));
        if places.len() > 1 && !allowed {
            let others: Vec<String> = places[1..]
                .iter()
                .map(|(file, line)| format!("{}:{line}", file.path))
                .collect();
            found.push(Finding {
                path: places[0].0.path.clone(),
                line: places[0].1,
                message: format!(
                    "{crate_name} has another type called `{name}`: {}",
                    others.join(", ")
                ),
                hint: "crate-visible type names are unique: make one private, or name its role",
            });
        }
    }
    found
}

/// Whether the tokens before an item end in `pub` or `pub(crate)`.
fn is_for_the_crate<T>(before: &[(T, &str)]) -> bool {
    let last: Vec<&str> = before.iter().rev().take(4).map(|(_, word)| *word).collect();
    matches!(last[..], ["pub", ..] | [")", "crate", "(", "pub"])
}

/// Finds pages that exceed their maximum size.
pub fn page_sizes(tree: &Tree) -> Vec<Finding> {
    let mut found = vec![];
    for &(path, most_words, most_bytes) in PAGE_SIZES {
        let Some(file) = tree.files.iter().find(|file| file.path == path) else {
            continue;
        };
        let words = file.text.split_whitespace().count();
        if words > most_words || file.text.len() > most_bytes {
            let most = if words > most_words {
                format!("{most_words} words")
            } else {
                format!("{most_bytes} bytes")
            };
            found.push(Finding {
                path: path.to_owned(),
                line: 1,
                message: format!(
                    "{words} words and {} bytes, at most {most}",
                    file.text.len()
                ),
                hint: "move reference into a page under docs/ and link to it",
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(check: fn(&Tree) -> Vec<Finding>, files: &[(&str, &str)]) -> Vec<usize> {
        check(&Tree::from_files(files))
            .into_iter()
            .map(|finding| finding.line)
            .collect()
    }

    #[test]
    fn wide_comments_fail() {
        let wide = format!("fn f() {{}}\n// {}\n", "word ".repeat(30));
        assert_eq!(found(widths, &[("a/src/lib.rs", &wide)]), [2]);
        let link = format!(
            "// https://example.org/{}\n/// | {} | b |\n",
            "x".repeat(120),
            "a ".repeat(60)
        );
        assert_eq!(found(widths, &[("a/src/lib.rs", &link)]), [0; 0]);
        let text = format!("const T: &str = \"// {}\";\n", "word ".repeat(30));
        assert_eq!(found(widths, &[("a/src/lib.rs", &text)]), [0; 0]);
    }

    #[test]
    fn echoes_fail() {
        let text =
            "/// The rows.\npub rows: u8,\n/// Rows of\n/// a page, in tokens.\npub page: u8,\n";
        assert_eq!(found(echoes, &[("a/src/lib.rs", text)]), [1]);
        assert_eq!(found(echoes, &[("a/tests/lib.rs", text)]), [0; 0]);
    }

    #[test]
    fn names_that_two_files_define_fail() {
        let (a, b) = (
            "\npub struct Row;",
            "pub(crate) enum Row {}\npub(super) struct Cell;\n",
        );
        assert_eq!(found(names, &[("a/src/a.rs", a), ("a/src/b.rs", b)]), [2]);
        assert_eq!(
            found(names, &[("a/src/a.rs", a), ("b/src/b.rs", b)]),
            [0; 0]
        );
        assert_eq!(
            found(names, &[("a/src/a.rs", "struct Cell;"), ("a/src/b.rs", b)]),
            [0; 0]
        );
        assert_eq!(
            found(
                names,
                &[("a/src/a.rs", "impl A {\n    pub fn of(a: u8) {}\n}")]
            ),
            [2]
        );
        assert_eq!(
            found(names, &[("a/src/a.rs", "impl A { fn of_row() {} }")]),
            [0; 0]
        );
    }

    #[test]
    fn long_pages_fail() {
        let (long, wide) = ("word ".repeat(1501), "wordword ".repeat(1000));
        assert_eq!(found(page_sizes, &[("README.md", &long)]), [1]);
        assert_eq!(
            found(
                page_sizes,
                &[("docs/README.md", &long), ("README.md", "short")]
            ),
            [0; 0]
        );
        assert_eq!(found(page_sizes, &[("CONTRIBUTING.md", &wide)]), [1]);
    }
}
