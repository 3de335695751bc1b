//! Constant tables: words, in which narrow entries lie side by side. A few words are a vector; more are a part of one buffer that goes with the kernel. As a variable of the module every thread
//! would fill its own, of up to 16 KiB, and lavapipe kept those of all threads where it waits at barriers: a kernel of such a format took it minutes.

use gristmill_uop::Scalar;
use std::fmt::Write;
use std::sync::Arc;

/// Most words of a table that stands where it is used.
const OF_A_VECTOR: usize = 4;
/// What begins the line of a kernel's text that has the words of its buffer of tables.
const LINE: &str = "// tables:";

/// The tables of a kernel.
#[derive(Default)]
pub struct Tables {
    /// Each with the word of the buffer where it begins, if it lies there.
    all: Vec<(Arc<[i32]>, Option<usize>)>,
    /// The buffer's words.
    words: Vec<u32>,
}

impl Tables {
    /// The entry of a table at an index, as a value of that type.
    pub fn look_up(&mut self, table: &Arc<[i32]>, index: &str, scalar: Scalar) -> String {
        let number = self.all.iter().position(|(known, _)| known == table).unwrap_or_else(|| self.add(table));
        let word = |index: String| match self.all[number].1 {
            None => format!("table{number}[{index}]"),
            Some(0) => format!("tables[{index}]"),
            Some(first) => format!("tables[{first}u + {index}]"),
        };
        let entry = match bits(table) {
            32 => format!("i32({})", word(format!("u32({index})"))),
            bits => {
                let each = 32 / bits;
                let word = word(format!("u32({index}) / {each}u"));
                format!("extractBits(i32({word}), u32({index}) % {each}u * {bits}u, {bits}u)")
            }
        };
        match scalar {
            Scalar::I32 => entry,
            Scalar::I64 => format!("i64({entry})"),
            scalar if scalar.is_float() => format!("f32({entry})"),
            _ => format!("u32({entry})"),
        }
    }
    /// Adds one: its number.
    fn add(&mut self, table: &Arc<[i32]>) -> usize {
        let words = words(table);
        let first = (words.len() > OF_A_VECTOR).then_some(self.words.len());
        if first.is_some() {
            self.words.extend(words);
        }
        self.all.push((table.clone(), first));
        self.all.len() - 1
    }
    /// Their definitions, with the buffer at that binding.
    pub fn definitions(&self, binding: usize) -> String {
        let mut out = String::new();
        for (number, (table, _)) in self.all.iter().enumerate().filter(|(_, (_, first))| first.is_none()) {
            let mut words: Vec<String> = words(table).iter().map(|word| format!("{word}u")).collect();
            words.resize(OF_A_VECTOR, "0u".into());
            let _ = writeln!(out, "const table{number} = vec4<u32>({});", words.join(", "));
        }
        if !self.words.is_empty() {
            let words: Vec<String> = self.words.iter().map(u32::to_string).collect();
            let _ = writeln!(out, "{LINE} {}", words.join(" "));
            let _ = writeln!(out, "@group(0) @binding({binding}) var<storage, read> tables: array<u32>;");
        }
        out
    }
}

/// The words of the buffer of tables of a kernel's text, if it has one: it is bound behind all else.
pub fn words_of_tables(text: &str) -> Option<Vec<u32>> {
    let words = text.lines().find_map(|line| line.strip_prefix(LINE))?;
    words.split_ascii_whitespace().map(|word| word.parse().ok()).collect()
}

/// A table's words.
fn words(table: &[i32]) -> Vec<u32> {
    let bits = bits(table);
    let mask = u32::MAX >> (32 - bits);
    let word = |entries: &[i32]| entries.iter().rev().fold(0u64, |w, &e| w << bits | u64::from(e as u32 & mask)) as u32;
    table.chunks(32 / bits).map(word).collect()
}

/// Bits of an entry, signed.
fn bits(table: &[i32]) -> usize {
    let fits = |bits: usize| table.iter().all(|&v| (-(1i64 << (bits - 1))..1i64 << (bits - 1)).contains(&v.into()));
    match () {
        () if fits(8) => 8,
        () if fits(16) => 16,
        () => 32,
    }
}
