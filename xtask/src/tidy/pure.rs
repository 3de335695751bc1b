//! Crates below the backends access no files, processes or sockets.

use super::finding::Finding;
use super::lexer::Token;
use super::tree::{File, Tree};

/// Crates of pure functions: compiled kernels are cached by their inputs, on any machine.
const HOMES: &[&str] = &["uop/src/", "encodings/src/", "compiler/src/"];

/// Modules of `std` with effects outside the process.
const OUTSIDE: &[&str] = &["fs", "process", "net"];

/// Finds paths into a module of [`OUTSIDE`] in these crates, tests excluded.
pub fn pure(tree: &Tree) -> Vec<Finding> {
    tree.files.iter().filter(|file| HOMES.iter().any(|home| file.path.starts_with(home))).flat_map(of_file).collect()
}

fn of_file(file: &File) -> Vec<Finding> {
    let code: Vec<(&Token, &str)> = file.shipped().collect();
    let begins = |at: &usize| code[*at..].iter().map(|c| c.1).take(3).eq(["std", ":", ":"]);
    let modules = (0..code.len()).filter(begins).flat_map(|at| modules(&code, at + 3));
    let outside = modules.filter(|(_, word)| OUTSIDE.contains(word));
    let finding = |(token, word): (&Token, &str)| Finding {
        path: file.path.clone(),
        line: token.line,
        message: format!("`std::{word}` in a crate that neither reads files nor starts anything"),
        hint: "let runtime, backend or the caller do it, and pass the data in",
    };
    outside.map(finding).collect()
}

/// Returns the modules of `std` that a path leads into: one, or those of a group. The rest of the
/// path begins at `at`.
fn modules<'f>(code: &[(&'f Token, &'f str)], at: usize) -> Vec<(&'f Token, &'f str)> {
    let Some(&first) = code.get(at) else { return vec![] };
    if first.1 != "{" {
        return vec![first];
    }
    let (mut depth, mut begins, mut found) = (0, false, vec![]);
    for &(token, word) in &code[at..] {
        match word {
            "{" => depth += 1,
            "}" => depth -= 1,
            _ if begins && depth == 1 => found.push((token, word)),
            _ => {}
        }
        begins = matches!(word, "{" | ",");
        if depth == 0 {
            break;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(path: &str, text: &str) -> Vec<usize> {
        pure(&Tree::from_files(&[(path, text)])).into_iter().map(|f| f.line).collect()
    }

    #[test]
    fn files_processes_and_sockets_fail_below_the_backends() {
        for text in ["use std::fs;", "use std::{fmt, process::Command};", "fn f() { std::net::lookup(); }"] {
            assert_eq!(lines("compiler/src/a.rs", text), [1], "{text}");
            assert_eq!(lines("uop/src/a/b.rs", &format!("\n{text}")), [2], "{text}");
            assert!(lines("runtime/src/a.rs", text).is_empty(), "{text}");
            assert!(lines("encodings/tests/a.rs", text).is_empty(), "{text}");
        }
    }

    #[test]
    fn other_modules_and_names_pass() {
        for text in ["use std::{fmt::{self, Write}, sync::Arc};", "use a::fs;", "fn net() {}", "use std::{x::{fs}};"] {
            assert!(lines("compiler/src/a.rs", text).is_empty(), "{text}");
        }
    }

    #[test]
    fn tests_may_read_files() {
        let text = "#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
        assert!(lines("uop/src/a.rs", text).is_empty());
    }
}
