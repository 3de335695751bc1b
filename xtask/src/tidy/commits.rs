//! Commit subjects: `area: imperative phrase`, so that the log can be searched and skimmed.

use super::finding::Finding;
use super::tree::Tree;

/// Maximum characters of a subject: one line of `git log --oneline` on a terminal of 80 columns.
const MOST: usize = 72;

const HINT: &str = "`area: imperative phrase`, at most 72 characters; area is a crate or crate/folder";

/// Finds commits with a malformed subject.
pub fn commits(tree: &Tree) -> Vec<Finding> {
    tree.commits.iter().filter_map(|line| check(line)).collect()
}

/// Checks a line of the log: an abbreviated hash and a subject.
fn check(line: &str) -> Option<Finding> {
    let (hash, subject) = line.split_once(' ')?;
    let problem = problem(subject)?;
    Some(Finding { path: format!("commit {hash}"), line: 1, message: format!("`{subject}` {problem}"), hint: HINT })
}

fn problem(subject: &str) -> Option<&'static str> {
    let Some((area, phrase)) = subject.split_once(": ") else { return Some("names no area") };
    let is_area = |c: char| c.is_ascii_alphanumeric() || "/-_.".contains(c);
    if subject.chars().count() > MOST {
        Some("has more than 72 characters")
    } else if area.is_empty() || !area.chars().all(is_area) {
        Some("has more in its area than one crate or folder")
    } else if phrase.ends_with('.') {
        Some("ends with a full stop")
    } else if phrase.split(' ').next().is_some_and(|verb| ["adds", "added", "adding", "fixes", "fixed"].contains(&verb))
    {
        Some("is no imperative")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects_of_another_form_fail() {
        let long = format!("docs: {}", "a".repeat(MOST));
        for subject in ["Read once more", "sched, server: ask", "docs: mend.", "docs: added a page", ": x", &long] {
            assert!(check(&format!("abc {subject}")).is_some(), "{subject}");
        }
    }

    #[test]
    fn areas_with_an_imperative_pass() {
        for subject in ["docs: split the page", "compiler/cost: charge copies", ".ci: install g++", "xtask: add `ci`"] {
            assert_eq!(check(&format!("abc {subject}")), None, "{subject}");
        }
    }
}
