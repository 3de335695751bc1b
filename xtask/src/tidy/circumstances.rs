//! Pages and comments refer to the repository only: no issue
//! or session numbers, no documents from outside.

use super::finding::Finding;
use super::tree::Tree;

/// Words that, followed by a number, refer to something outside the repository.
const NUMBERED: &[&str] = &["issue", "issues", "session", "sessions"];

/// Documents that are not in the repository.
const PAPERS: &[&str] = &["MODEL_SPEC", "DESIGN.md", "DESIGN §", "REVIEW.md"];

/// Extensions of pages, and of files whose comments are not separated from code.
const ENDINGS: &[&str] = &["md", "toml", "sh", "c", "h", "js", "cjs", "py"];

const HINT: &str =
    "name the topic, the commit or the machine; cite a page under docs/ or a publication";

/// Finds issue numbers, session numbers and outside documents in pages and comments.
pub fn circumstances(tree: &Tree) -> Vec<Finding> {
    let mut found = vec![];
    for file in tree.files.iter().filter(|file| has_prose(&file.path)) {
        for (line, text) in file.prose() {
            if let Some(what) = mention(text) {
                found.push(Finding {
                    path: file.path.clone(),
                    line,
                    message: format!("names `{what}`, which a reader does not have"),
                    hint: HINT,
                });
            }
        }
    }
    found
}

fn has_prose(path: &str) -> bool {
    let extension = path.rsplit_once('.').map(|(_, extension)| extension);
    extension.is_some_and(|extension| extension == "rs" || ENDINGS.contains(&extension))
}

/// Returns the first forbidden mention in a line.
fn mention(line: &str) -> Option<String> {
    if let Some(paper) = PAPERS.iter().find(|paper| line.contains(*paper)) {
        return Some((*paper).to_owned());
    }
    let words: Vec<&str> = line.split_whitespace().collect();
    let numbered = words.windows(2).find(|pair| {
        let word = pair[0]
            .trim_start_matches(|c: char| !c.is_alphanumeric())
            .to_ascii_lowercase();
        NUMBERED.contains(&word.as_str())
            && pair[1]
                .trim_start_matches('#')
                .starts_with(|c: char| c.is_ascii_digit())
    })?;
    Some(numbered.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        circumstances(&Tree::from_files(&[(path, text)]))
            .into_iter()
            .map(|f| f.line)
            .collect()
    }

    #[test]
    fn session_references_fail() {
        for text in [
            "as issue 3 asks",
            "## Where Issue #2 ended",
            "(sessions 3 to 5)",
            "MODEL_SPEC §3.3",
            "as in DESIGN §2",
        ] {
            assert_eq!(
                lines("docs/a.md", &format!("# A\n\n{text}\n")),
                [3],
                "{text}"
            );
            assert_eq!(
                lines("a/src/b.rs", &format!("//! A.\n//! {text}\nfn f() {{}}\n")),
                [2],
                "{text}"
            );
            assert_eq!(
                lines(
                    "a/tests/b.rs",
                    &format!("fn f() {{\n    g(); // {text}\n}}\n")
                ),
                [2],
                "{text}"
            );
        }
    }

    #[test]
    fn other_sentences_pass() {
        for text in [
            "an issue of its own",
            "a session holds 3 prefixes",
            "`Session`s: 2",
            "a design",
            "at issue: 3",
        ] {
            assert_eq!(lines("docs/a.md", text), [0; 0], "{text}");
        }
        assert_eq!(lines("a/src/b.rs", "const T: &str = \"issue 3\";"), [0; 0]);
        assert_eq!(lines("a/data.txt", "issue 3"), [0; 0]);
    }
}
