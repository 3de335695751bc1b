//! Source files and experiments that pages cite exist.

use super::finding::Finding;
use super::tree::{File, Tree};
use std::collections::HashSet;

/// Endings of source files that pages cite.
const SOURCES: &[&str] = &[".rs", ".cjs", ".py"];

/// Finds missing source files that pages cite between backticks. Pages are those at the root and
/// under `docs/`; a citation may be a whole path or the end of one.
pub fn cited(tree: &Tree) -> Vec<Finding> {
    let mut ends: HashSet<&str> = HashSet::new();
    for file in &tree.files {
        let after_slashes = file
            .path
            .match_indices('/')
            .map(|(at, _)| &file.path[at + 1..]);
        ends.extend(after_slashes.chain([file.path.as_str()]));
    }
    tree.files
        .iter()
        .filter(|file| is_page(&file.path))
        .flat_map(|page| of_page(page, &ends))
        .collect()
}

/// Path prefix of an experiment's number in comments and pages.
const EXPERIMENT: &str = "docs/experiments/";

/// Finds citations of experiments that have no file, in comments and pages.
pub fn experiments(tree: &Tree) -> Vec<Finding> {
    let names = tree
        .files
        .iter()
        .filter_map(|file| file.path.strip_prefix(EXPERIMENT));
    let numbers: HashSet<&str> = names.filter_map(|name| name.get(..3)).collect();
    let mut found = vec![];
    let has_prose = |path: &str| path.ends_with(".rs") || path.ends_with(".md");
    for file in tree.files.iter().filter(|file| has_prose(&file.path)) {
        for (line, text) in file.prose() {
            for rest in text.split(EXPERIMENT).skip(1) {
                let number = rest
                    .get(..3)
                    .filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
                if let Some(number) = number.filter(|number| !numbers.contains(number)) {
                    found.push(Finding {
                        path: file.path.clone(),
                        line,
                        message: format!("cites experiment {number}, and no file has this number"),
                        hint: "docs/experiments/README.md lists them",
                    });
                }
            }
        }
    }
    found
}

fn is_page(path: &str) -> bool {
    path.ends_with(".md") && (path.starts_with("docs/") || !path.contains('/'))
}

fn of_page(page: &File, ends: &HashSet<&str>) -> Vec<Finding> {
    let mut found = vec![];
    for (line, text) in page.lines() {
        // Every second part of the split lies between backticks.
        for path in text.split('`').skip(1).step_by(2).flat_map(paths) {
            if !ends.contains(path.as_str()) {
                found.push(Finding {
                    path: page.path.clone(),
                    line,
                    message: format!("cites {path}, and no file's path ends so"),
                    hint: "cite its present path, or describe it without a path",
                });
            }
        }
    }
    found
}

/// Returns the source paths in a code span; paths with placeholders (`<name>`, `*`) are excluded.
fn paths(code: &str) -> Vec<String> {
    let words = code.split(|c: char| !c.is_alphanumeric() && !"._/{},-<>*".contains(c));
    let sources = words.filter(|word| {
        SOURCES
            .iter()
            .any(|ending| word.len() > ending.len() && word.ends_with(ending))
    });
    sources
        .filter(|word| !word.contains(['<', '*']))
        .flat_map(alternatives)
        .collect()
}

/// Expands `a/{b,c}.rs` to `a/b.rs` and `a/c.rs`.
fn alternatives(path: &str) -> Vec<String> {
    let group = path
        .split_once('{')
        .and_then(|(before, rest)| Some((before, rest.split_once('}')?)));
    let Some((before, (group, behind))) = group else {
        return vec![path.to_owned()];
    };
    group
        .split(',')
        .flat_map(|one| alternatives(&format!("{before}{one}{behind}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(page: &str, text: &str) -> Vec<String> {
        let files = [
            (page, text),
            ("compiler/src/map/simd.rs", ""),
            ("compiler/src/map/simt.rs", ""),
            ("a/lib.rs", ""),
        ];
        cited(&Tree::from_files(&files))
            .into_iter()
            .map(|f| f.message)
            .collect()
    }

    #[test]
    fn files_that_are_not_there_fail() {
        for text in [
            "see `map/simple.rs`",
            "`p/simd.rs`",
            "(`map/{simd,simple}.rs`)",
            "`cargo run map/simple.rs x`",
        ] {
            assert_eq!(messages("docs/a/b.md", text).len(), 1, "{text}");
            assert_eq!(messages("A.md", text).len(), 1, "{text}");
            assert!(messages("a/README.md", text).is_empty(), "{text}");
        }
    }

    #[test]
    fn experiments_have_files() {
        let files = [
            ("docs/experiments/007-a.md", ""),
            (
                "a/src/lib.rs",
                "/// Rows (docs/experiments/007).\nfn f() {}\n/// Pages (docs/experiments/008).\nfn g() {}",
            ),
            (
                "docs/b.md",
                "[an index](docs/experiments/README.md)\n[nine](docs/experiments/009-b.md)",
            ),
        ];
        let found = super::experiments(&Tree::from_files(&files));
        assert_eq!(found.iter().map(|f| f.line).collect::<Vec<_>>(), [3, 2]);
    }

    #[test]
    fn ends_of_paths_pass() {
        for text in [
            "`simd.rs`",
            "`map/{simd,simt}.rs`",
            "`compiler/src/map/simd.rs`",
            "map/simple.rs",
            "`<name>.rs`",
        ] {
            assert!(messages("docs/a.md", text).is_empty(), "{text}");
        }
    }
}
