//! Constant lookup tables of a WGSL kernel (`Op::Table`).
//!
//! A few words are an inline vector; longer tables share one buffer of the kernel. As a module
//! variable, a table of up to 16 KiB would be copied by each thread, and lavapipe saved the copies
//! of all threads at barriers, so that a kernel took minutes.

use std::fmt::Write;
use std::sync::Arc;

/// Maximum words of an inline table.
const MAX_INLINE_WORDS: usize = 4;
/// Prefix of the comment line in a kernel's text that holds the words of the table buffer.
const TABLE_COMMENT: &str = "// tables:";

/// Tables of a kernel.
#[derive(Default)]
pub struct Tables {
    /// Tables in the buffer, each with the index of its first word.
    all: Vec<(Arc<[i32]>, usize)>,
    /// Words of the buffer.
    words: Vec<u32>,
}

impl Tables {
    /// Renders the lookup of a table's entry.
    pub fn look_up(&mut self, table: &Arc<[i32]>, index: &str) -> String {
        let word = match table.len() <= MAX_INLINE_WORDS {
            true => {
                let words = (0..MAX_INLINE_WORDS)
                    .map(|i| format!("{}u", table.get(i).map_or(0, |&v| v as u32)));
                format!(
                    "vec{MAX_INLINE_WORDS}<u32>({})[u32({index})]",
                    words.collect::<Vec<_>>().join(", ")
                )
            }
            false => format!("tables[{}u + u32({index})]", self.first(table)),
        };
        format!("i32({word})")
    }
    /// Returns the index of a table's first word in the buffer.
    fn first(&mut self, table: &Arc<[i32]>) -> usize {
        let known = self
            .all
            .iter()
            .find(|(known, _)| known == table)
            .map(|of| of.1);
        known.unwrap_or_else(|| {
            let first = self.words.len();
            self.all.push((table.clone(), first));
            self.words.extend(table.iter().map(|&v| v as u32));
            first
        })
    }
    /// Returns the declaration of the table buffer, if there is one.
    pub fn definitions(&self, binding: usize) -> String {
        let mut out = String::new();
        if !self.words.is_empty() {
            let words: Vec<String> = self.words.iter().map(u32::to_string).collect();
            let _ = writeln!(out, "{TABLE_COMMENT} {}", words.join(" "));
            let _ = writeln!(
                out,
                "@group(0) @binding({binding}) var<storage, read> tables: array<u32>;"
            );
        }
        out
    }
}

/// Parses the words of the table buffer from a kernel's text; None if it has none.
pub fn words_of_tables(text: &str) -> Option<Vec<u32>> {
    let words = text
        .lines()
        .find_map(|line| line.strip_prefix(TABLE_COMMENT))?;
    words
        .split_ascii_whitespace()
        .map(|word| word.parse().ok())
        .collect()
}
