//! Files and commits that the checks inspect.

use super::lexer::{self, Token};
use crate::shell;
use anyhow::Result;
use std::path::Path;

/// Maximum bytes of a tracked file: clones stay quick, and weights do not belong in a repository.
pub const MAX_BYTES: u64 = 16 << 20;

/// Commit after which subjects are checked, if the repository has no tag.
const SINCE: &str = "b797f5e2";

pub struct File {
    /// Path relative to the root, with `/` separators.
    pub path: String,
    pub bytes: u64,
    /// Contents; empty for a file that is not text or is larger than [`MAX_BYTES`].
    pub text: String,
    /// Tokens; empty unless the file is Rust.
    pub tokens: Vec<Token>,
    /// Whether the file is test code: under `tests/` or `benches/`,
    /// a `tests.rs`, or a module declared under `#[cfg(test)]`.
    pub test: bool,
}

impl File {
    fn new(path: String, bytes: u64, text: String) -> (File, Vec<String>) {
        let rust = path.ends_with(".rs");
        let lexed = lexer::lex(if rust { &text } else { "" });
        let test = path
            .split('/')
            .any(|part| ["tests", "benches", "tests.rs"].contains(&part));
        (
            File {
                path,
                bytes,
                text,
                tokens: lexed.tokens,
                test,
            },
            lexed.test_modules,
        )
    }

    /// Returns the tokens with their text.
    pub fn code(&self) -> impl Iterator<Item = (&Token, &str)> {
        self.tokens.iter().map(|t| (t, &self.text[t.start..t.end]))
    }

    /// Returns the tokens with their text, tests excluded.
    pub fn shipped(&self) -> impl Iterator<Item = (&Token, &str)> {
        self.code().filter(|(t, _)| !self.test && !t.test)
    }

    /// Returns the comment lines of a Rust file, which lie between its tokens.
    pub fn comments(&self) -> impl Iterator<Item = Comment<'_>> {
        let ends = [0]
            .into_iter()
            .chain(self.tokens.iter().map(|token| token.end));
        let starts = self
            .tokens
            .iter()
            .map(|token| token.start)
            .chain([self.text.len()]);
        let gaps = ends.zip(starts).filter(|_| self.path.ends_with(".rs"));
        // Counting lines from one gap to the next keeps this linear in the file's size.
        let mut line = 1;
        let mut counted = 0;
        gaps.flat_map(move |(end, start)| {
            line += self.text[counted..end].matches('\n').count();
            counted = end;
            let first = line;
            self.text[end..start]
                .lines()
                .enumerate()
                .filter_map(move |(at, text)| {
                    let text = text.trim();
                    let mark = ["//!", "///", "//"]
                        .into_iter()
                        .find(|mark| text.starts_with(mark))?;
                    Some(Comment {
                        line: first + at,
                        mark,
                        text: text[mark.len()..].trim_start(),
                    })
                })
        })
    }

    /// Returns the lines of prose, numbered from 1: comments of a Rust file, all lines of others.
    pub fn prose(&self) -> Vec<(usize, &str)> {
        if self.path.ends_with(".rs") {
            self.comments().map(|c| (c.line, c.text)).collect()
        } else {
            self.lines().collect()
        }
    }

    /// Returns the lines with their numbers, from 1.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text
            .lines()
            .enumerate()
            .map(|(at, line)| (at + 1, line))
    }

    /// Returns the line number, from 1, of a byte offset.
    pub fn line_at(&self, offset: usize) -> usize {
        1 + self.text[..offset].matches('\n').count()
    }
}

/// A line of a comment.
pub struct Comment<'t> {
    /// Line number in the file, from 1.
    pub line: usize,
    /// Marker that begins it: `//!`, `///` or `//`.
    pub mark: &'static str,
    /// Text without the marker.
    pub text: &'t str,
}

pub struct Tree {
    pub files: Vec<File>,
    /// Commits since the last tag: abbreviated hash and subject.
    pub commits: Vec<String>,
}

impl Tree {
    /// Reads tracked files, and untracked ones that are not ignored.
    pub fn read(root: &Path) -> Result<Tree> {
        let listed =
            shell::stdout(shell::git(root).args(["ls-files", "-z", "-co", "--exclude-standard"]))?;
        let mut files = vec![];
        for path in listed.split_terminator('\0') {
            let full = root.join(path);
            // Missing files are deleted but not committed. Links and submodules are skipped.
            let Some(meta) = full.symlink_metadata().ok().filter(|meta| meta.is_file()) else {
                continue;
            };
            let content = if meta.len() > MAX_BYTES {
                vec![]
            } else {
                std::fs::read(&full)?
            };
            let text = String::from_utf8(content)
                .ok()
                .filter(|text| !text.contains('\0'))
                .unwrap_or_default();
            files.push(File::new(path.to_owned(), meta.len(), text));
        }
        Ok(Tree {
            commits: log(root),
            ..Tree::new(files)
        })
    }

    #[cfg(test)]
    pub fn from_files(files: &[(&str, &str)]) -> Tree {
        Tree::new(
            files
                .iter()
                .map(|(p, t)| File::new(p.to_string(), t.len() as u64, t.to_string()))
                .collect(),
        )
    }

    fn new(files: Vec<(File, Vec<String>)>) -> Tree {
        let mut modules = vec![];
        for (file, names) in &files {
            // Child modules of `x/y.rs` are in `x/y/`; those of `mod.rs`, `lib.rs` and `main.rs`
            // are in their own folder.
            let base = file.path.strip_suffix(".rs").unwrap_or(&file.path);
            let own = ["mod", "lib", "main"]
                .iter()
                .find_map(|name| base.strip_suffix(name))
                .filter(|b| b.ends_with('/'));
            let folder = own.map_or_else(|| format!("{base}/"), str::to_owned);
            modules.extend(names.iter().map(|name| format!("{folder}{name}")));
        }
        let mut files: Vec<File> = files.into_iter().map(|(file, _)| file).collect();
        for file in &mut files {
            let rest = modules
                .iter()
                .find_map(|module| file.path.strip_prefix(module.as_str()));
            file.test |= rest.is_some_and(|rest| rest == ".rs" || rest.starts_with('/'));
        }
        Tree {
            files,
            commits: vec![],
        }
    }
}

/// Reads the commits since the last tag or [`SINCE`], without
/// merges; empty if git cannot list them.
fn log(root: &Path) -> Vec<String> {
    let git = |args: &[&str]| shell::stdout(shell::git(root).args(args)).ok();
    let tag = git(&["describe", "--tags", "--abbrev=0"]).map(|tag| tag.trim_end().to_owned());
    let since = tag.unwrap_or_else(|| SINCE.to_owned());
    let log = git(&[
        "log",
        "--no-merges",
        "--format=%h %s",
        &format!("{since}..HEAD"),
    ])
    .unwrap_or_default();
    log.lines().map(str::to_owned).collect()
}

/// Whether `path` matches `glob`. `*` stays within a folder, `**/` matches any folders or none, and
/// a final `**` matches anything.
pub fn matches(glob: &str, path: &str) -> bool {
    let Some((literal, rest)) = glob.split_once('*') else {
        return glob == path;
    };
    let Some(path) = path.strip_prefix(literal) else {
        return false;
    };
    // Every possible end of the star's match.
    let mut ends = path.char_indices().map(|(at, _)| at).chain([path.len()]);
    if let Some(rest) = rest.strip_prefix("*/") {
        return ends.any(|at| (at == 0 || path[..at].ends_with('/')) && matches(rest, &path[at..]));
    }
    if rest == "*" {
        return true;
    }
    ends.take_while(|&at| !path[..at].contains('/'))
        .any(|at| matches(rest, &path[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs() {
        assert!(matches("a/*/c**", "a/b/c.rs"));
        assert!(matches("a/*/c**", "a/b/cd/e.rs"));
        assert!(!matches("a/*/c**", "a/b/x/c.rs"));
        assert!(matches("a/**/c*", "a/c.rs"));
        assert!(matches("a/**/c*", "a/x/y/c.rs"));
        assert!(!matches("a/**/c*", "a/xc.rs"));
        assert!(!matches("a/c*", "a/c/d"));
        assert!(matches("a", "a"));
        assert!(!matches("a", "ab"));
    }

    #[test]
    fn test_files_are_known() {
        let tree = Tree::from_files(&[
            ("a/src/lib.rs", "#[cfg(test)] mod checks; mod x;"),
            ("a/src/checks.rs", "fn f() {}"),
            ("a/src/checks/deep.rs", "fn f() {}"),
            ("a/src/x.rs", "#[cfg(test)] mod y;"),
            ("a/src/x/y.rs", "fn f() {}"),
            ("a/src/y.rs", "fn f() {}"),
            ("a/tests/t.rs", "fn f() {}"),
        ]);
        let tests: Vec<&str> = tree
            .files
            .iter()
            .filter(|f| f.test)
            .map(|f| f.path.as_str())
            .collect();
        assert_eq!(
            tests,
            [
                "a/src/checks.rs",
                "a/src/checks/deep.rs",
                "a/src/x/y.rs",
                "a/tests/t.rs"
            ]
        );
    }
}
