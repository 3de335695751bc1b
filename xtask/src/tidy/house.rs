//! House rules for all files.

use super::finding::Finding;
use super::lexer::Token;
use super::tree::{File, MAX_BYTES, Tree};

const MAX_LINES: usize = 800;

/// Root folders of one machine, split so that this file does not contain them.
const MACHINE_ROOTS: &[&str] = &[concat!("/", "work/"), concat!("/", "root/")];

/// Hosts of package registries, split likewise. The choice of a registry is configured per machine,
/// not in the project.
const REGISTRY_HOSTS: &[&str] = &[
    concat!("crates", ".io"),
    concat!("pypi", ".org"),
    concat!("pythonhosted", ".org"),
    concat!("npmjs", ".org"),
    concat!("proxy.golang", ".org"),
    concat!("anaconda", ".org"),
    concat!("rubygems", ".org"),
    concat!("maven", ".org"),
];

/// Source that Cargo.lock records for cargo's default registry, whichever mirror was used.
const DEFAULT_SOURCE: &str = concat!("source = \"registry+https://github.com/rust-lang/crates", ".io-index\"");

/// Finds glob imports outside tests, and globs of the crate's
/// root anywhere: these route every dependency through `lib.rs`.
pub fn globs(tree: &Tree) -> Vec<Finding> {
    let mut found = vec![];
    for file in &tree.files {
        let code: Vec<(&Token, &str)> = file.code().collect();
        for (at, (token, _)) in code.iter().enumerate().filter(|(_, (_, word))| *word == "use") {
            let path: Vec<&str> =
                code[at + 1..].iter().map(|(_, word)| *word).take_while(|word| *word != ";").collect();
            // `impl Trait + use<'a>` is not an import.
            if path.first() == Some(&"<") || !path.contains(&"*") {
                continue;
            }
            let root = matches!(path[..], ["crate", ":", ":", "*"]);
            if root || !(file.test || token.test) {
                let path = path.concat();
                let hint = "import each name, so that the import graph can be read";
                found.push(finding(file, token.line, format!("glob import `use {path}`"), hint));
            }
        }
    }
    found
}

/// Finds unfinished work, in tests too.
pub fn unfinished(tree: &Tree) -> Vec<Finding> {
    let mut found = vec![];
    for file in &tree.files {
        let code: Vec<(&Token, &str)> = file.code().collect();
        for (at, (token, word)) in code.iter().enumerate() {
            let next = code.get(at + 1).map_or("", |(_, word)| word);
            let before = at.checked_sub(1).map_or("", |at| code[at].1);
            let (message, hint) = match *word {
                "todo" | "unimplemented" if next == "!" => {
                    (format!("`{word}!`"), "finish it, or return a typed error that names the unsupported case")
                }
                "dbg" if next == "!" => ("`dbg!`".to_owned(), "remove it, or log under GRISTMILL_LOG"),
                // `#[ignore]`, `#[ignore = "…"]`, `#[cfg_attr(…, ignore)]`.
                "ignore" if token.attribute && ["[", ","].contains(&before) => {
                    ("an ignored test".to_owned(), "make it pass, or skip it at run time where it cannot run")
                }
                _ => continue,
            };
            found.push(finding(file, token.line, message, hint));
        }
    }
    found
}

/// Finds Rust files of more than [`MAX_LINES`] lines.
pub fn long_files(tree: &Tree) -> Vec<Finding> {
    let mut found = vec![];
    for file in tree.files.iter().filter(|file| file.path.ends_with(".rs")) {
        let lines = file.lines().count();
        if lines > MAX_LINES {
            let message = format!("{lines} lines, and {MAX_LINES} are the most");
            found.push(finding(file, MAX_LINES + 1, message, "split it by topic"));
        }
    }
    found
}

/// Finds files of more than [`MAX_BYTES`] bytes.
pub fn big_files(tree: &Tree) -> Vec<Finding> {
    let mut found = vec![];
    for file in tree.files.iter().filter(|file| file.bytes > MAX_BYTES) {
        let message = format!("{} bytes, and {MAX_BYTES} are the most", file.bytes);
        found.push(finding(file, 1, message, "generate it, or keep it outside the repository"));
    }
    found
}

/// Finds absolute paths of the machine that a file was written on.
pub fn machine_paths(tree: &Tree) -> Vec<Finding> {
    let mut found = vec![];
    for file in &tree.files {
        for (line, text) in file.lines() {
            if let Some(root) = MACHINE_ROOTS.iter().find(|root| absolute(text, root)) {
                let hint = "a path relative to the repository, an environment variable or a temporary folder";
                found.push(finding(file, line, format!("a path under {root}"), hint));
            }
        }
    }
    found
}

/// Whether `root` starts a path in `text`, rather than continues one.
fn absolute(text: &str, root: &str) -> bool {
    let continues = |c: char| c.is_alphanumeric() || "_-.~/})$*".contains(c);
    text.match_indices(root).any(|(at, _)| !text[..at].ends_with(continues))
}

/// Finds hosts of package registries, except the default registry's source in Cargo.lock.
pub fn registry_hosts(tree: &Tree) -> Vec<Finding> {
    let mut found = vec![];
    for file in &tree.files {
        let lock = file.path.split('/').next_back() == Some("Cargo.lock");
        for (line, text) in file.lines() {
            let lower = text.to_ascii_lowercase();
            let host = REGISTRY_HOSTS.iter().find(|host| lower.contains(*host));
            let mirror =
                lock && ["registry+", "sparse+"].iter().any(|kind| text.starts_with(&format!("source = \"{kind}")));
            if (host.is_some() || mirror) && !(lock && text == DEFAULT_SOURCE) {
                let message = format!("names a package registry ({})", host.unwrap_or(&"another than the default"));
                let hint = "leave it to the machine's own configuration of cargo, pip or npm";
                found.push(finding(file, line, message, hint));
            }
        }
    }
    found
}

/// Finds unclosed code blocks in pages, and headings directly after text: faulty merges leave them.
pub fn pages(tree: &Tree) -> Vec<Finding> {
    let mut found = vec![];
    for file in tree.files.iter().filter(|file| file.path.ends_with(".md")) {
        let (mut open, mut before) = (None, "");
        for (line, text) in file.lines() {
            match (open, text.trim_start().strip_prefix("```")) {
                (None, Some(_)) => open = Some(line),
                (Some(_), Some("")) => open = None,
                (None, None) if text.starts_with('#') && !before.trim().is_empty() => {
                    found.push(finding(
                        file,
                        line,
                        "a heading right after text".into(),
                        "leave a line empty before it",
                    ));
                }
                _ => {}
            }
            before = text;
        }
        if let Some(line) = open {
            found.push(finding(file, line, "a block of code that is not closed".into(), "close it with ```"));
        }
    }
    found
}

fn finding(file: &File, line: usize, message: String, hint: &'static str) -> Finding {
    Finding { path: file.path.clone(), line, message, hint }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(check: fn(&Tree) -> Vec<Finding>, path: &str, text: &str) -> Vec<usize> {
        check(&Tree::from_files(&[(path, text)])).into_iter().map(|f| f.line).collect()
    }

    #[test]
    fn glob_imports_fail() {
        for text in
            ["\nuse a::*;", "\npub use self::b::*;", "\nuse a::{b, c::*};", "\nfn f() { use E::*; }", "\nuse super::*;"]
        {
            assert_eq!(lines(globs, "a/src/b.rs", text), [2], "{text}");
        }
        assert_eq!(lines(globs, "a/src/b.rs", "#[cfg(test)]\nmod t { use crate::*; }"), [2]);
    }

    #[test]
    fn named_imports_and_globs_in_tests_pass() {
        for text in
            ["use a::b; const X: u8 = 2 * 3;", "// use a::*;", "#[cfg(test)] mod t { use super::*; use crate::b::*; }"]
        {
            assert_eq!(lines(globs, "a/src/b.rs", text), [0; 0], "{text}");
        }
        assert_eq!(lines(globs, "a/tests/b.rs", "use a::*;"), [0; 0]);
        assert_eq!(lines(globs, "a/src/b.rs", "fn f(x: &u8) -> impl T + use<'_> { *x }"), [0; 0]);
    }

    #[test]
    fn pages_that_lost_lines_fail() {
        for text in ["a\n```sh\nb\n", "\n```sh\na\n```python\nb\n", "a\n## B\n", "```sh\n```\n## B\n"] {
            assert_eq!(lines(pages, "a.md", text).len(), 1, "{text}");
        }
        for text in ["# A\n\n```sh\n# b\n```\n\n## C\n", "a\n```\nb\n# c\n```\n", "- a\n  ```sh\n  b\n  ```\n"] {
            assert_eq!(lines(pages, "a.md", text), [0; 0], "{text}");
        }
        assert_eq!(lines(pages, "a.rs", "a\n## B\n"), [0; 0]);
    }

    #[test]
    fn unfinished_work_fails() {
        for text in
            ["\ntodo!()", "\nunimplemented!(\"x\")", "\ndbg!(x)", "\n#[ignore] fn f() {}", "\n#[ignore = \"slow\"]"]
        {
            assert_eq!(lines(unfinished, "a/src/b.rs", text), [2], "{text}");
        }
        assert_eq!(lines(unfinished, "a/tests/b.rs", "#[cfg_attr(windows, ignore)] fn f() {}"), [1]);
    }

    #[test]
    fn words_like_unfinished_pass() {
        for text in ["// todo!()", "fn todo() {}", "\"dbg!(x)\"", "let ignore = [1, ignore];", "#[serde(ignore)] x: u8"]
        {
            assert_eq!(lines(unfinished, "a/src/b.rs", text), [0; 0], "{text}");
        }
    }

    #[test]
    fn long_files_fail() {
        assert_eq!(lines(long_files, "a.rs", &"\n".repeat(MAX_LINES)), [0; 0]);
        assert_eq!(lines(long_files, "a.rs", &"\n".repeat(MAX_LINES + 1)), [MAX_LINES + 1]);
        assert_eq!(lines(long_files, "a.md", &"\n".repeat(MAX_LINES + 1)), [0; 0]);
    }

    #[test]
    fn big_files_fail() {
        let mut tree = Tree::from_files(&[("a.bin", "")]);
        tree.files[0].bytes = MAX_BYTES;
        assert_eq!(big_files(&tree), []);
        tree.files[0].bytes += 1;
        assert_eq!(big_files(&tree).len(), 1);
    }

    #[test]
    fn machine_paths_fail() {
        for root in MACHINE_ROOTS {
            assert_eq!(lines(machine_paths, "a.md", &format!("x\nsee {root}x")), [2]);
            assert_eq!(lines(machine_paths, "a.rs", &format!("\"{root}x\"")), [1]);
            assert_eq!(lines(machine_paths, "a.rs", &format!("a{root}b ${{x}}{root} .{root}")), [0; 0]);
        }
    }

    #[test]
    fn registry_hosts_fail() {
        for host in REGISTRY_HOSTS {
            assert_eq!(lines(registry_hosts, "a.toml", &format!("\nx = \"https://{host}/\"")), [2]);
        }
    }

    #[test]
    fn the_lock_file_names_the_default_registry_only() {
        assert_eq!(lines(registry_hosts, "Cargo.lock", DEFAULT_SOURCE), [0; 0]);
        assert_eq!(lines(registry_hosts, "a.txt", DEFAULT_SOURCE), [1]);
        assert_eq!(lines(registry_hosts, "Cargo.lock", "source = \"registry+https://mirror.example/index\""), [1]);
        assert_eq!(lines(registry_hosts, "Cargo.lock", "source = \"sparse+https://mirror.example/index\""), [1]);
    }
}
