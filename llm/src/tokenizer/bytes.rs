//! Byte-to-character map of byte-level BPE, and incremental UTF-8 decoding.
//!
//! Byte-level BPE (GPT-2, Radford et al. 2019) writes each byte of a token as one printable code
//! point, so that a vocabulary is ordinary text. Bytes 33–126, 161–172 and 174–255 map to
//! themselves; the other 68 bytes, in ascending order, map to U+0100, U+0101, …

/// Code points used by the map: 256 bytes, of which 68 map to U+0100..U+0144.
const MAPPED: usize = 256 + 68;

const fn is_printable(byte: u32) -> bool {
    matches!(byte, 33..=126 | 161..=172 | 174..=255)
}

const fn tables() -> ([u16; 256], [i16; MAPPED]) {
    let (mut to, mut from) = ([0; 256], [-1; MAPPED]);
    let (mut byte, mut next) = (0, 256);
    while byte < 256 {
        let code = if is_printable(byte as u32) {
            byte
        } else {
            next += 1;
            next - 1
        };
        to[byte] = code as u16;
        from[code] = byte as i16;
        byte += 1;
    }
    (to, from)
}

const TABLES: ([u16; 256], [i16; MAPPED]) = tables();

/// Returns the code point that represents `byte`.
pub(crate) fn byte_to_char(byte: u8) -> char {
    // Every entry is below 0x144, hence a valid code point.
    char::from_u32(u32::from(TABLES.0[usize::from(byte)])).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// Returns the byte that `c` represents, if it is in the map.
pub(super) fn char_to_byte(c: char) -> Option<u8> {
    TABLES
        .1
        .get(c as usize)
        .and_then(|&byte| u8::try_from(byte).ok())
}

/// Appends the bytes that a byte-mapped token text represents. Code points outside the map become
/// their UTF-8 bytes; text that is not UTF-8 is copied.
pub(super) fn unmap(text: &[u8], out: &mut Vec<u8>) {
    let Ok(text) = std::str::from_utf8(text) else {
        out.extend_from_slice(text);
        return;
    };
    for c in text.chars() {
        match char_to_byte(c) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// Decodes a stream of bytes, split at any position, to text.
///
/// Buffers an incomplete trailing character (at most three bytes) until the rest arrives. Invalid
/// bytes become U+FFFD, one for each *maximal subpart* (Unicode 15, §3.9, like
/// [`String::from_utf8_lossy`]). Any split of the same bytes gives the same output.
#[derive(Debug, Clone, Default)]
pub struct Utf8Stream {
    pending: Vec<u8>,
}

impl Utf8Stream {
    /// Appends `bytes` and writes complete characters to `out`.
    pub fn push(&mut self, bytes: &[u8], out: &mut String) {
        self.pending.extend_from_slice(bytes);
        let mut done = 0;
        for chunk in self.pending.utf8_chunks() {
            out.push_str(chunk.valid());
            done += chunk.valid().len();
            let rest = &self.pending[done..];
            match std::str::from_utf8(rest) {
                // A proper prefix of a character at the very end: wait for more.
                Err(e) if e.valid_up_to() == 0 && e.error_len().is_none() => break,
                _ if !chunk.invalid().is_empty() => {
                    out.push(char::REPLACEMENT_CHARACTER);
                    done += chunk.invalid().len();
                }
                _ => {}
            }
        }
        self.pending.drain(..done);
    }

    /// Ends the stream; an incomplete character becomes U+FFFD.
    pub fn finish(&mut self, out: &mut String) {
        if !self.pending.is_empty() {
            out.push_str(&String::from_utf8_lossy(&self.pending));
            self.pending.clear();
        }
    }

    /// Returns the buffered bytes, at most three.
    pub fn pending(&self) -> &[u8] {
        &self.pending
    }
}

/// Represents a space in token texts.
pub(super) const SPACE: &str = "\u{2581}";
/// Returns the byte that a token text of the form `<0x0A>` represents.
pub(super) fn byte_of(text: &[u8]) -> Option<u8> {
    let digits = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    let hex = digits.len() == 2 && digits.iter().all(u8::is_ascii_hexdigit);
    let digits = std::str::from_utf8(digits).ok().filter(|_| hex)?;
    u8::from_str_radix(digits, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_map_is_a_bijection_with_the_known_values() {
        for byte in 0..=255 {
            assert_eq!(char_to_byte(byte_to_char(byte)), Some(byte));
        }
        let known = [
            (0x00, 'Ā'),
            (0x20, 'Ġ'),
            (0x0A, 'Ċ'),
            (0x7F, '\u{121}'),
            (0xAD, '\u{143}'),
            (b'A', 'A'),
        ];
        for (byte, c) in known {
            assert_eq!(byte_to_char(byte), c);
        }
        assert_eq!(char_to_byte('\u{144}'), None);
    }

    #[test]
    fn any_split_of_any_bytes_decodes_alike() {
        let samples: [&[u8]; 6] = [
            "añ€😀".as_bytes(),
            b"\xF0\x9F\x98a\xE2\x82",
            b"\xFF\xFE\x80",
            b"\xC0\x80\xED\xA0\x80\xF4\x90\x80\x80",
            b"\xF0\x9F\xE2\x82\xC3\xA9",
            b"",
        ];
        for bytes in samples {
            for chunk in 1..5 {
                let (mut stream, mut out) = (Utf8Stream::default(), String::new());
                for part in bytes.chunks(chunk) {
                    stream.push(part, &mut out);
                    assert!(stream.pending().len() <= 3);
                }
                stream.finish(&mut out);
                assert_eq!(out, String::from_utf8_lossy(bytes), "{bytes:x?} by {chunk}");
            }
        }
    }

    #[test]
    fn bytes_are_spelled_in_two_digits() {
        assert_eq!(byte_of(b"<0x0A>"), Some(10));
        assert_eq!(byte_of(b"<0xff>"), Some(255));
        assert_eq!(byte_of(b"<0x123>"), None);
        assert_eq!(byte_of(b"<0x+1>"), None);
    }
}
