//! Numbers in code that a measurement of one machine or model justifies: they belong to the facts
//! of machines (`uop/src/facts`), where another machine may have others.

use super::finding::Finding;
use super::tree::{File, Tree};

/// Such numbers that may stay: bounds of files and of time, which no machine changes.
const MOST: usize = 10;

/// Beginnings of the names of machines and models.
const NAMES: &[&str] = &[
    "A100", "DeepSeek", "EPYC", "GLM", "Gemma", "H100", "H200", "Kimi", "Llama", "Qwen", "RTX",
    "V2", "Xeon", "Youtu", "Zen", "gpt",
];
/// Types of numbers, and of lists of them.
const TYPES: &[&str] = &[
    "f32", "f64", "i32", "i64", "u8", "u16", "u32", "u64", "usize", "Duration",
];

pub fn fitted(tree: &Tree) -> Vec<Finding> {
    let files = tree.files.iter().filter(|file| is_code(&file.path));
    let found: Vec<Finding> = files.flat_map(numbers).collect();
    match found.len() > MOST {
        true => found,
        false => vec![],
    }
}

fn is_code(path: &str) -> bool {
    path.ends_with(".rs") && path.contains("/src/") && !path.starts_with("xtask/")
}

/// Constants of a file whose comment names a machine or a model.
fn numbers(file: &File) -> Vec<Finding> {
    let (mut found, mut comment) = (vec![], None);
    for (line, text) in file.lines() {
        let text = text.trim_start();
        if let Some(said) = text.strip_prefix("//") {
            comment = comment.or_else(|| named(said));
        } else if !text.starts_with("#[") {
            let name = comment.take().filter(|_| is_number(text));
            found.extend(name.map(|name| Finding {
                path: file.path.clone(),
                line,
                message: format!("a number that `{name}` justifies, and more than {MOST} of them"),
                hint: "make it a fact (uop/src/facts), a margin (compiler/src/margins.txt) or several candidates",
            }));
        }
    }
    found
}

/// Whether a line defines a number or a list of numbers.
fn is_number(line: &str) -> bool {
    let name = line.split_once("const ").map(|(_, rest)| rest);
    let of = name
        .and_then(|rest| rest.split_once(": "))
        .map(|(_, rest)| rest);
    of.is_some_and(|of| {
        let of = of.trim_start_matches(['[', '(']);
        TYPES.iter().any(|word| {
            let rest = of.strip_prefix(word);
            rest.is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
        })
    })
}

/// The name of a machine or model that a comment has.
fn named(comment: &str) -> Option<&str> {
    let mut words = comment.split(|c: char| !c.is_ascii_alphanumeric());
    words.find(|word| NAMES.iter().any(|name| word.starts_with(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, times: usize) -> usize {
        let text = text.repeat(times);
        fitted(&Tree::from_files(&[("compiler/src/a.rs", &text)])).len()
    }

    #[test]
    fn more_than_ten_numbers_of_machines_fail() {
        for text in [
            "/// 62 us on an H200.\nconst A: i64 = 1;\n",
            "/// Of GLM,\n/// measured.\n#[rustfmt::skip]\npub const A: [f64; 2] = [1.0, 2.0];\n",
            "    // Qwen3.5: so.\n    const A: usize = 1;\n",
        ] {
            assert_eq!((found(text, 10), found(text, 11)), (0, 11), "{text}");
        }
    }

    #[test]
    fn other_numbers_and_other_constants_pass() {
        for text in [
            "/// Not measured.\nconst A: i64 = 1;\n",
            "/// GLM's roles.\nconst A: [&str; 2] = [];\n",
            "/// An H200.\nfn a() {}\n\nconst A: i64 = 1;\n",
        ] {
            assert_eq!(found(text, 20), 0, "{text}");
        }
    }
}
