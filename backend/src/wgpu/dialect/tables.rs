//! Constant tables of words. A few words are a vector; more are a part of one buffer that goes with the kernel. As a variable of the module every thread would fill its own, of up to 16 KiB, and
//! lavapipe kept those of all threads where it waits at barriers: a kernel of such a format took it minutes.

use std::fmt::Write;
use std::sync::Arc;

/// Most words of a table that stands where it is used.
const MAX_INLINE_WORDS: usize = 4;
/// What begins the line of a kernel's text that has the words of its buffer of tables.
const TABLE_COMMENT: &str = "// tables:";

/// The tables of a kernel.
#[derive(Default)]
pub struct Tables {
    /// Those of the buffer, each with the word where it begins.
    all: Vec<(Arc<[i32]>, usize)>,
    /// The buffer's words.
    words: Vec<u32>,
}

impl Tables {
    /// The entry of a table at an index.
    pub fn look_up(&mut self, table: &Arc<[i32]>, index: &str) -> String {
        let word = match table.len() <= MAX_INLINE_WORDS {
            true => {
                let words = (0..MAX_INLINE_WORDS).map(|i| format!("{}u", table.get(i).map_or(0, |&v| v as u32)));
                format!("vec{MAX_INLINE_WORDS}<u32>({})[u32({index})]", words.collect::<Vec<_>>().join(", "))
            }
            false => format!("tables[{}u + u32({index})]", self.first(table)),
        };
        format!("i32({word})")
    }
    /// The word where one begins.
    fn first(&mut self, table: &Arc<[i32]>) -> usize {
        let known = self.all.iter().find(|(known, _)| known == table).map(|of| of.1);
        known.unwrap_or_else(|| {
            let first = self.words.len();
            self.all.push((table.clone(), first));
            self.words.extend(table.iter().map(|&v| v as u32));
            first
        })
    }
    /// The definition of the buffer at that binding, if there is one.
    pub fn definitions(&self, binding: usize) -> String {
        let mut out = String::new();
        if !self.words.is_empty() {
            let words: Vec<String> = self.words.iter().map(u32::to_string).collect();
            let _ = writeln!(out, "{TABLE_COMMENT} {}", words.join(" "));
            let _ = writeln!(out, "@group(0) @binding({binding}) var<storage, read> tables: array<u32>;");
        }
        out
    }
}

/// The words of the buffer of tables of a kernel's text, if it has one: it is bound behind all else.
pub fn words_of_tables(text: &str) -> Option<Vec<u32>> {
    let words = text.lines().find_map(|line| line.strip_prefix(TABLE_COMMENT))?;
    words.split_ascii_whitespace().map(|word| word.parse().ok()).collect()
}
