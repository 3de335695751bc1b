//! Format names appear only in the table of formats; other
//! code asks an encoding for its description.

use super::finding::{Allow, Finding, allowed};
use super::lexer::TokenKind;
use super::tree::Tree;

/// Known format names; those of new descriptions are added when the tree is read (`names`).
const NAMES: &[&str] = &[
    "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q8_1", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "q8_k",
    "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs",
    "tq1_0", "tq2_0", "mxfp4", "nvfp4",
];

const ALLOWED: &[Allow] = &[
    Allow {
        glob: "encodings/**",
        because: "the table of formats itself",
    },
    Allow {
        glob: "llm/src/gguf/types.rs",
        because: "GGUF's type ids map to encodings here",
    },
    Allow {
        glob: "llm/src/quantise/mixes.rs",
        because: "which tensor of a file type gets which format",
    },
    Allow {
        glob: "llm/src/convert/plan.rs",
        because: "checkpoints have blocks of MXFP4",
    },
    Allow {
        glob: "llm/src/synth**",
        because: "which tensor of a quantisation mix gets which format",
    },
    Allow {
        glob: "hub/src/name.rs",
        because: "the files that short names stand for",
    },
    Allow {
        glob: "cli/src/flags.rs",
        because: "--kv q8_0 is part of the command line's contract",
    },
    Allow {
        glob: "cli/src/model.rs",
        because: "the file name of the demo model",
    },
    Allow {
        glob: "python/src/source.rs",
        because: "the file name of the demo model",
    },
    Allow {
        glob: "xtask/src/tidy/formats.rs",
        because: "the list of names to look for",
    },
    Allow {
        glob: "xtask/src/kernels_diff.rs",
        because: "the models whose kernels are compared, by name",
    },
    Allow {
        glob: "xtask/src/quality.rs",
        because: "the published files and the values of --kv that are measured",
    },
];

pub fn formats(tree: &Tree) -> Vec<Finding> {
    let names = names(tree);
    let mut found = vec![];
    for file in tree
        .files
        .iter()
        .filter(|file| !allowed(ALLOWED, &file.path))
    {
        for (token, word) in file.shipped() {
            // Attributes are help text, and so are strings of
            // several words in the command line's crate.
            let prose = token.kind == TokenKind::Text
                && (token.attribute
                    || file.path.starts_with("cli/") && word.contains(char::is_whitespace));
            if prose || !matches!(token.kind, TokenKind::Ident | TokenKind::Text) {
                continue;
            }
            if let Some((at, name)) = names
                .iter()
                .find_map(|name| Some((find(word, name)?, name)))
            {
                let line = token.line + word[..at].matches('\n').count();
                let message = format!("the format {name} has a name here");
                let hint = "ask the encoding for its properties (block, bytes, value), so that a new format needs no line \
                    here; if names are necessary, add the file to the table in xtask/src/tidy/formats.rs, with a reason";
                found.push(Finding {
                    path: file.path.clone(),
                    line,
                    message,
                    hint,
                });
            }
        }
    }
    found
}

/// Returns the known names and every format-like string in
/// `encodings`, which covers new files at once.
fn names(tree: &Tree) -> Vec<String> {
    let mut names: Vec<String> = NAMES.iter().map(|name| name.to_string()).collect();
    for file in tree
        .files
        .iter()
        .filter(|file| file.path.starts_with("encodings/src/"))
    {
        for (token, word) in file
            .shipped()
            .filter(|(token, _)| token.kind == TokenKind::Text && !token.attribute)
        {
            let name = word.trim_matches('"');
            let quantised =
                name.contains('_') && name.starts_with(|c: char| c.is_ascii_lowercase());
            let plain = name
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
            if token.kind == TokenKind::Text
                && plain
                && quantised
                && name.bytes().any(|b| b.is_ascii_digit())
            {
                names.push(name.to_owned());
            }
        }
    }
    names
}

/// Finds `name` as a word in `text`. An underscore ends a word, so `block_q4_0` is found too.
fn find(text: &str, name: &str) -> Option<usize> {
    let lower = text.to_ascii_lowercase();
    let inside = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    lower.match_indices(name).map(|(at, _)| at).find(|&at| {
        !inside(lower[..at].chars().next_back()) && !inside(lower[at + name.len()..].chars().next())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        formats(&Tree::from_files(&[(path, text)]))
            .into_iter()
            .map(|f| f.line)
            .collect()
    }

    #[test]
    fn names_in_code_fail() {
        assert_eq!(
            lines("tensor/src/a.rs", "fn a() {}\nconst Q4_0: u8 = 0;"),
            [2]
        );
        assert_eq!(
            lines("tensor/src/a.rs", "match name { \"IQ4_NL\" => 1 }"),
            [1]
        );
        assert_eq!(lines("tensor/src/a.rs", "fn dot_q8_0_block() {}"), [1]);
        assert_eq!(
            lines("tensor/src/a.rs", "const T: &str = \"\n\nq4_k_m\";"),
            [3]
        );
    }

    #[test]
    fn comments_tests_and_other_words_pass() {
        assert_eq!(
            lines("tensor/src/a.rs", "/// Like q4_0.\nfn faq4_0() {} // q4_0"),
            [0; 0]
        );
        assert_eq!(
            lines(
                "tensor/src/a.rs",
                "#[cfg(test)] mod tests { const Q4_0: u8 = 0; }"
            ),
            [0; 0]
        );
        assert_eq!(lines("tensor/tests/a.rs", "const Q4_0: u8 = 0;"), [0; 0]);
    }

    #[test]
    fn allowed_places_pass() {
        for path in [
            "encodings/src/a.rs",
            "llm/src/gguf/types.rs",
            "llm/src/synth.rs",
            "llm/src/synth/mix.rs",
        ] {
            assert_eq!(lines(path, "const Q4_0: u8 = 0;"), [0; 0], "{path}");
        }
        assert_eq!(lines("llm/src/gguf/read.rs", "const Q4_0: u8 = 0;"), [1]);
    }

    #[test]
    fn help_may_name_formats_and_keys_may_not() {
        assert_eq!(
            lines(
                "cli/src/a.rs",
                "#[arg(default_value = \"q4_0\")] quant: String"
            ),
            [0; 0]
        );
        assert_eq!(
            lines("cli/src/a.rs", "const HINT: &str = \"try --quant q4_0\";"),
            [0; 0]
        );
        assert_eq!(lines("cli/src/a.rs", "if quant == \"q4_0\" {}"), [1]);
        assert_eq!(
            lines("llm/src/a.rs", "const HINT: &str = \"try --quant q4_0\";"),
            [1]
        );
    }

    #[test]
    fn a_new_description_is_guarded_at_once() {
        let tree = Tree::from_files(&[
            (
                "encodings/src/x9_z.rs",
                "static X: Encoding = Encoding { name: \"x9_z\", scale: \"f16\" };",
            ),
            ("tensor/src/a.rs", "fn f(f16: u8) {}\nfn x9_z() {}"),
        ]);
        assert_eq!(
            formats(&tree)
                .into_iter()
                .map(|f| (f.path, f.line))
                .collect::<Vec<_>>(),
            [("tensor/src/a.rs".to_owned(), 2)]
        );
    }
}
