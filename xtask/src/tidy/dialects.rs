//! Dialects only print: they know no machine, and report nodes that they cannot print.

use super::finding::Finding;
use super::lexer::TokenKind;
use super::tree::Tree;

/// Types that a decision would depend on.
const FACTS: &[&str] = &["Target", "Tuning", "Machine", "MachineKind"];
/// Calls that would replace missing text by a default.
const FALLBACKS: &[&str] = &["unwrap_or", "unwrap_or_default"];

pub fn dialects(tree: &Tree) -> Vec<Finding> {
    let dialect = |path: &str| path.starts_with("backend/src/") && path.contains("/dialect");
    let renders = |path: &str| dialect(path) || path.starts_with("backend/src/render");
    let mut found = vec![];
    for file in tree.files.iter().filter(|file| renders(&file.path)) {
        for (token, word) in file
            .shipped()
            .filter(|(token, _)| token.kind == TokenKind::Ident)
        {
            let (message, hint) = if FACTS.contains(&word) {
                (
                    format!("`{word}` in a dialect"),
                    "let a compiler pass decide, and encode the decision in linear code",
                )
            } else if FALLBACKS.contains(&word) {
                (
                    format!("`{word}` where text is made"),
                    "a node without text is a bug: print it with `unprintable`",
                )
            } else {
                continue;
            };
            found.push(Finding {
                path: file.path.clone(),
                line: token.line,
                message,
                hint,
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        dialects(&Tree::from_files(&[(path, text)]))
            .into_iter()
            .map(|f| f.line)
            .collect()
    }

    #[test]
    fn facts_and_fallbacks_fail() {
        let text = "use a::Target;\nfn f() { x.unwrap_or(0) }\nfn g() { y.unwrap_or_default() }";
        for path in [
            "backend/src/cpu/dialect/mod.rs",
            "backend/src/cuda/dialect.rs",
            "backend/src/render.rs",
        ] {
            assert_eq!(lines(path, text), [1, 2, 3], "{path}");
        }
        assert_eq!(lines("backend/src/cpu/device.rs", text), [0; 0]);
    }

    #[test]
    fn arms_that_print_their_node_pass() {
        let text = "fn f() { x.unwrap_or_else(|| unprintable(g, id)) }\n// The target\n#[cfg(test)] mod t { use a::Target; }";
        assert_eq!(lines("backend/src/cpu/dialect/mod.rs", text), [0; 0]);
    }
}
