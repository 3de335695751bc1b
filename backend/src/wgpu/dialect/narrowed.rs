//! Indices of 64 bits computed in 32, for adapters without 64-bit integers.

/// End of a 64-bit literal, which stands in parentheses.
const LITERAL: &str = "li)";

/// Returns a kernel's text with its 64-bit integers computed in 32 bits; `None` if it has literals
/// or words of 64 bits.
///
/// Without those, 64-bit values are indices that depend on numbers in memory, such as counts of
/// rows. An index that is valid lies within 2^31 bytes, and so do the terms that it is made of.
pub fn narrowed(text: &str) -> Option<String> {
    if text.contains("u64") {
        return None;
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(LITERAL) {
        let begin = rest[..at].rfind('(')? + 1;
        rest[begin..at].parse::<i32>().ok()?;
        out += &rest[..at];
        out += "i)";
        rest = &rest[at + LITERAL.len()..];
    }
    out += rest;
    Some(out.replace("i64", "i32"))
}

#[cfg(test)]
mod tests {
    use super::narrowed;

    #[test]
    fn indices_are_narrowed_and_words_of_64_bits_are_not() {
        let text = "let v1: i64 = i64(v0) + (-1li);\nlet v2: i32 = i32(v1 * (32li));";
        let in_words = "let v1: i32 = i32(v0) + (-1i);\nlet v2: i32 = i32(v1 * (32i));";
        assert_eq!(narrowed(text).as_deref(), Some(in_words));
        for wide in ["let v1 = (4294967296li);", "let v1 = i64(u64(v0));"] {
            assert_eq!(narrowed(wide), None, "{wide}");
        }
        assert_eq!(narrowed("let v0 = 1i;").as_deref(), Some("let v0 = 1i;"));
    }
}
