//! The random numbers of sampling.

/// xoshiro256++ (Blackman and Vigna 2018), seeded with four outputs of splitmix64 (Steele et al. 2014).
///
/// Defined here, not taken from a library, so that a seed gives the same text in every version of this program. It does
/// not give the text of other engines with that seed: those use other generators.
#[derive(Debug, Clone)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The stream of `seed`. Every seed gives a usable state (splitmix64 is a bijection: at most one output is zero).
    pub fn new(seed: u64) -> Self {
        let mut counter = seed;
        Self { state: std::array::from_fn(|_| splitmix64(&mut counter)) }
    }

    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in [0, 1): the upper 53 bits times 2⁻⁵³.
    pub fn next_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

fn splitmix64(counter: &mut u64) -> u64 {
    *counter = counter.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = *counter;
    let z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_sequences() {
        let mut counter = 1_234_567;
        assert_eq!(splitmix64(&mut counter), 6_457_827_717_110_365_317);
        assert_eq!(splitmix64(&mut counter), 3_203_168_211_198_807_973);
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let first: [u64; 4] = std::array::from_fn(|_| rng.next_u64());
        assert_eq!(first, [41_943_041, 58_720_359, 3_588_806_011_781_223, 3_591_011_842_654_386]);
    }

    #[test]
    fn uniform_numbers_stay_in_range() {
        let mut rng = Rng::new(0);
        let mean = (0..10_000).map(|_| rng.next_f64()).inspect(|u| assert!((0.0..1.0).contains(u))).sum::<f64>() / 1e4;
        assert!((mean - 0.5).abs() < 0.01, "{mean}");
    }
}
