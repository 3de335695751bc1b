//! Node numbers that do not depend on the arena.

use std::collections::HashMap;
use std::fmt::Write;

/// Renumbers `%12` in order of first use: arena numbers of linear code count unprinted nodes.
pub fn renumbered(text: &str) -> String {
    let mut known: HashMap<&str, usize> = HashMap::new();
    let mut parts = text.split('%');
    let mut out = parts.next().unwrap_or_default().to_string();
    for part in parts {
        let end = part
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(part.len());
        let (number, rest) = part.split_at(end);
        let next = known.len();
        let _ = write!(out, "%{}{rest}", known.entry(number).or_insert(next));
    }
    out
}
