//! Counter-based random numbers for sampling.

use std::ops::Range;

/// Bits of a random number: those of a non-negative 32-bit integer.
pub const RANDOM_BITS: u32 = 31;

/// Random numbers of one seed, as a function of the token's position alone.
///
/// Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"). There is no
/// stream state: host and device, and a recomputation, get the same number at a position. It is
/// implemented here, not taken from a library, so that a seed gives the same text in every version
/// of this program. Other engines use other generators, so the same seed gives other text there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PositionRng {
    key: [u32; 2],
}

impl PositionRng {
    /// Creates the generator of a seed.
    pub fn new(seed: u64) -> Self {
        Self { key: halves(seed) }
    }

    /// Returns the number of a position, uniform in 0..2³¹ ([`RANDOM_BITS`]).
    pub fn at(self, position: usize) -> u32 {
        let [low, high] = halves(position as u64);
        philox([low, high, 0, 0], self.key)[0] >> (u32::BITS - RANDOM_BITS)
    }

    /// Returns the numbers of these positions.
    pub fn all(self, positions: Range<usize>) -> Vec<u32> {
        positions.map(|position| self.at(position)).collect()
    }
}

/// Splits into the lower and upper 32 bits.
fn halves(x: u64) -> [u32; 2] {
    [x as u32, (x >> 32) as u32]
}

/// Ten rounds of Philox4x32; the constants are the paper's.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let [low_0, high_0] = halves(0xD251_1F53 * u64::from(counter[0]));
        let [low_1, high_1] = halves(0xCD9E_8D57 * u64::from(counter[2]));
        counter = [
            high_1 ^ counter[1] ^ key[0],
            low_1,
            high_0 ^ counter[3] ^ key[1],
            low_0,
        ];
        key = [
            key[0].wrapping_add(0x9E37_79B9),
            key[1].wrapping_add(0xBB67_AE85),
        ];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of the authors' library, Random123.
    #[test]
    fn the_published_answers() {
        assert_eq!(
            philox([0; 4], [0; 2]),
            [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]
        );
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        let counter = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        let want = [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1];
        assert_eq!(philox(counter, [0xa409_3822, 0x299f_31d0]), want);
    }

    #[test]
    fn numbers_are_uniform_and_know_their_seed_and_position() {
        let random = PositionRng::new(0);
        let numbers: Vec<u32> = (0..10_000).map(|position| random.at(position)).collect();
        assert!(numbers.iter().all(|&n| n >> RANDOM_BITS == 0));
        let mean = numbers.iter().map(|&n| f64::from(n)).sum::<f64>()
            / 1e4
            / 2f64.powi(RANDOM_BITS as i32);
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
        let other = (0..10_000)
            .filter(|&position| PositionRng::new(1).at(position) == numbers[position])
            .count();
        assert!(
            other < 3,
            "{other} of 10,000 are the same with another seed"
        );
    }
}
