//! The field's language: comments and pages use the terms that readers
//! of vLLM, llama.cpp, MLIR and Halide search for.
//!
//! Limits are rates per 1,000 words. They follow from cranelift, naga, rust-analyzer and
//! mistral.rs, measured with the same expressions: none of these is above half a limit.

use super::finding::Finding;
use super::tree::{File, Tree};
use regex::{Regex, RegexBuilder};
use std::collections::BTreeMap;

/// A mannerism: its regular expression, and its maximum rate per 1,000 words.
struct Mannerism {
    name: &'static str,
    pattern: &'static str,
    case_sensitive: bool,
    limit: f64,
}

const fn mannerism(name: &'static str, pattern: &'static str, limit: f64) -> Mannerism {
    Mannerism { name, pattern, case_sensitive: false, limit }
}

const MANNERISMS: &[Mannerism] = &[
    mannerism(
        "a clause in place of a noun (`what … is`)",
        r"\bwhat (?:is|are|was|were|has|have|had|it|a|an|the|they|each|one|every|all|no|its|this|that|such|comes?|must|may|can|would|stands?|lies?|remains?|follows?|differs?|[a-z]+s (?:is|are|has|have|need|ask|want)s?)\b",
        0.8,
    ),
    mannerism("`who`, `whom`, `whose`", r"\b(?:who|whom|whose|whoever)\b", 1.0),
    mannerism("`nobody`, `somebody`, `everybody`", r"\b(?:nobody|somebody|everybody|anybody)\b", 0.2),
    Mannerism {
        name: "a sentence that begins with `Of`",
        pattern: r"(?:^|[.!?]\s+)Of [a-z]",
        case_sensitive: true,
        limit: 0.1,
    },
    mannerism("`so many`, `so long`, `so large`", r"\bso (?:many|long|large|much|few|big)\b", 0.3),
    mannerism("`tell`, `told`", r"\b(?:tell|tells|told|telling)\b", 0.3),
    mannerism("`beside`", r"\bbeside\b", 0.2),
    mannerism("`behind` for after or past", r"\bbehind\b", 0.5),
    mannerism("`goes on` for continues", r"\b(?:goes|go|gone|going|went) on\b", 0.2),
];

/// Project-specific phrases, and the established term for each.
const PHRASES: &[(&str, &str)] = &[
    ("piece of a prompt", "prefill chunk"),
    ("pieces of a prompt", "prefill chunks"),
    ("pieces of prompts", "prefill chunks"),
    ("steps ahead", "asynchronous scheduling, in-flight step"),
    ("copies ahead", "software pipelining, multistage buffer"),
    ("folds that meet", "cooperative reduction"),
    ("rows of pages", "block table"),
    ("words that have no room", "register spills"),
    ("asked for ahead", "prefetched"),
    ("asks for ahead", "prefetches"),
    ("gives its pages back", "is preempted"),
    ("brought back from the host", "swapped in"),
    ("where they part", "prefix cache, shared prefix"),
];

/// Terms that a reader searches for; each stands in at least one comment or page.
const TERMS: &[&str] = &[
    "KV cache",
    "continuous batching",
    "chunked prefill",
    "prefix cach",
    "block table",
    "grouped-query",
    "double buffer",
    "software pipelin",
    "register pressure",
    "split-K",
    "constrained decoding",
    "preempt",
    "batch-invariant",
    "prefetch",
    "occupancy",
    "epilogue",
    "dequantis",
    "tensor core",
];

/// Minimum files of a real tree; the trees of tests need not contain the terms.
const WHOLE_TREE: usize = 100;
/// Minimum words for a meaningful rate.
const FEWEST_WORDS: usize = 200;
/// Number of places that a finding about a rate lists.
const SHOWN: usize = 5;

const HINT: &str = "subject, verb, object, the field's term; CONTRIBUTING.md has the rules";

/// Finds crates and pages that use a mannerism more often than its limit.
pub fn mannerisms(tree: &Tree) -> Vec<Finding> {
    let patterns: Vec<Regex> = MANNERISMS.iter().map(compile).collect();
    let mut found = vec![];
    for (area, lines) in areas(tree) {
        let words: usize = lines.iter().map(|line| count_words(line.text)).sum();
        if words < FEWEST_WORDS {
            continue;
        }
        for (mannerism, pattern) in MANNERISMS.iter().zip(&patterns) {
            let places: Vec<&Line> =
                lines.iter().flat_map(|line| pattern.find_iter(line.text).map(move |_| line)).collect();
            let rate = 1000.0 * places.len() as f64 / words as f64;
            if rate > mannerism.limit {
                let shown: Vec<String> = places.iter().take(SHOWN).map(|p| format!("{}:{}", p.path, p.line)).collect();
                let message = format!(
                    "{area} has {rate:.2} of {} per 1,000 words, at most {}: {}",
                    mannerism.name,
                    mannerism.limit,
                    shown.join(", ")
                );
                found.push(Finding { path: places[0].path.to_owned(), line: places[0].line, message, hint: HINT });
            }
        }
    }
    found
}

/// Finds project-specific phrases for which the field has a term.
pub fn phrases(tree: &Tree) -> Vec<Finding> {
    let mut found = vec![];
    for line in areas(tree).into_values().flatten() {
        for (phrase, term) in PHRASES.iter().filter(|(phrase, _)| line.text.contains(phrase)) {
            let message = format!("says `{phrase}`; the field says {term}");
            found.push(Finding { path: line.path.to_owned(), line: line.line, message, hint: HINT });
        }
    }
    found
}

/// Finds terms of the field that no comment or page uses.
pub fn terms(tree: &Tree) -> Vec<Finding> {
    if tree.files.len() < WHOLE_TREE {
        return vec![];
    }
    let lines: Vec<String> = areas(tree).into_values().flatten().map(|line| line.text.to_lowercase()).collect();
    let missing = TERMS.iter().filter(|term| !lines.iter().any(|line| line.contains(&term.to_lowercase())));
    let finding = |term: &&str| Finding {
        path: "ARCHITECTURE.md".to_owned(),
        line: 1,
        message: format!("`{term}` stands in no comment and no page"),
        hint: HINT,
    };
    missing.map(finding).collect()
}

struct Line<'t> {
    path: &'t str,
    line: usize,
    text: &'t str,
}

/// Groups lines of prose: comments by crate, pages by top-level folder.
fn areas(tree: &Tree) -> BTreeMap<String, Vec<Line<'_>>> {
    let mut areas: BTreeMap<String, Vec<Line>> = BTreeMap::new();
    for file in tree.files.iter().filter(|file| !file.path.contains("/corpus/")) {
        let folder = file.path.split_once('/').map_or("the root", |path| path.0);
        let (area, prose) = if file.path.ends_with(".rs") {
            (format!("comments of {folder}"), file.comments().map(|c| (c.line, c.text)).collect())
        } else if file.path.ends_with(".md") {
            (format!("pages of {folder}"), prose_of_page(file))
        } else {
            continue;
        };
        let lines = prose.into_iter().map(|(line, text)| Line { path: &file.path, line, text });
        areas.entry(area).or_default().extend(lines);
    }
    areas
}

/// Returns the lines of a page outside its code blocks.
fn prose_of_page(page: &File) -> Vec<(usize, &str)> {
    let mut in_code = false;
    let mut lines = vec![];
    for (line, text) in page.lines() {
        if text.starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            lines.push((line, text));
        }
    }
    lines
}

fn compile(mannerism: &Mannerism) -> Regex {
    let built = RegexBuilder::new(mannerism.pattern).case_insensitive(!mannerism.case_sensitive).build();
    built.expect("the expressions of the table compile, as their tests show")
}

fn count_words(text: &str) -> usize {
    text.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| !word.is_empty()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a text of 300 plain words, followed by `line`.
    fn page(line: &str) -> String {
        format!("{}\n{line}\n", "The scheduler evicts a page.\n".repeat(60))
    }

    #[test]
    fn each_mannerism_is_found_in_pages_and_comments() {
        let examples = [
            "It keeps what is asked.",
            "A request whose client left.",
            "Where nobody waits.",
            "Of a batch it takes one.",
            "Of that there are so many.",
            "The device is told.",
            "A row beside it.",
            "The rows behind it.",
            "A request goes on.",
        ];
        for (mannerism, example) in MANNERISMS.iter().zip(examples) {
            let text = page(example);
            let comments: String = text.lines().map(|line| format!("// {line}\n")).collect();
            for (path, text) in [("docs/a.md", &text), ("a/src/lib.rs", &comments)] {
                let found = mannerisms(&Tree::from_files(&[(path, text)]));
                let named = found.iter().filter(|finding| finding.message.contains(mannerism.name));
                assert_eq!(named.map(|finding| finding.line).collect::<Vec<_>>(), [62], "{example} in {path}");
            }
        }
        assert_eq!(mannerisms(&Tree::from_files(&[("docs/a.md", &page("The page is evicted."))])), []);
    }

    #[test]
    fn code_and_short_texts_have_no_manner() {
        let fenced = page("```\nso many who tell nobody\n```");
        assert_eq!(mannerisms(&Tree::from_files(&[("docs/a.md", &fenced)])), []);
        assert_eq!(mannerisms(&Tree::from_files(&[("docs/a.md", "Nobody is told.")])), []);
        let code = page("").lines().map(|line| format!("// {line}\n")).collect::<String>() + "fn told(beside: u8) {}\n";
        assert_eq!(mannerisms(&Tree::from_files(&[("a/src/lib.rs", &code)])), []);
    }

    #[test]
    fn phrases_have_a_term() {
        let found = phrases(&Tree::from_files(&[("a/src/lib.rs", "/// Takes steps ahead.\nfn f() {}")]));
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains("in-flight step"), "{}", found[0].message);
        assert_eq!(phrases(&Tree::from_files(&[("a/src/lib.rs", "fn f() { let t = \"steps ahead\"; }")])), []);
    }

    #[test]
    fn terms_must_stand_somewhere() {
        let mut files: Vec<(String, String)> =
            (0..WHOLE_TREE).map(|n| (format!("docs/{n}.md"), String::new())).collect();
        files[0].1 = TERMS[1..].join("\n");
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), text.as_str())).collect();
        let found = terms(&Tree::from_files(&files));
        assert_eq!(found.len(), 1);
        assert!(found[0].message.contains(TERMS[0]));
    }
}
