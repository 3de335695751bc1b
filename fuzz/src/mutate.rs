//! A small mutator for `cargo test`: no coverage feedback, but the same on every machine.

/// The splitmix64 pseudorandom generator; the field is its state.
pub struct SplitMix(pub u64);

impl SplitMix {
    /// Returns the next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    /// Returns a number below `n`; 0 if `n` is 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n.max(1) as u64) as usize
    }
}

/// Byte values at which lengths and signs overflow.
const EDGES: &[u8] = &[0, 1, 0x7F, 0x80, 0xFE, 0xFF];

/// Mutates one of the inputs one to four times; the result has at most `longest` bytes.
pub fn mutate(
    inputs: &[Vec<u8>],
    words: &[&str],
    longest: usize,
    random: &mut SplitMix,
) -> Vec<u8> {
    let mut out = inputs[random.below(inputs.len())].clone();
    for _ in 0..1 + random.below(4) {
        let at = random.below(out.len() + 1);
        let end = at + random.below((out.len() - at).min(64) + 1);
        match random.below(8) {
            0 if at < out.len() => out[at] ^= 1 << random.below(8),
            1 if at < out.len() => out[at] = random.bits() as u8,
            2 if at < out.len() => out[at] = EDGES[random.below(EDGES.len())],
            // An eight-byte number: small, huge or negative.
            3 if at + 8 <= out.len() => {
                let n =
                    [random.bits() >> random.below(64), u64::MAX, i64::MAX as u64][random.below(3)];
                out[at..at + 8].copy_from_slice(&n.to_le_bytes());
            }
            4 => drop(out.drain(at..end)),
            5 => {
                let piece = out[at..end].to_vec();
                let to = random.below(out.len() + 1);
                out.splice(to..to, piece);
            }
            6 if !words.is_empty() => {
                drop(out.splice(at..at, words[random.below(words.len())].bytes()))
            }
            // Splices the end of another input.
            7 => {
                let other = &inputs[random.below(inputs.len())];
                out.truncate(at);
                out.extend(&other[random.below(other.len() + 1)..]);
            }
            _ => {}
        }
    }
    out.truncate(longest);
    out
}
