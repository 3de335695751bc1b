//! Integer weights of tokens, computed by the host and as tensor ops with identical bits.
//!
//! Integer sums do not depend on the order of addition, nor integer arithmetic on the device. So
//! host and device choose the same token from the same logits and random number.

use super::rng::RANDOM_BITS;
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::dtype::Scalar;

/// The weight of the largest logit. 2^18 tokens (the largest vocabularies) of that weight sum to
/// 2^48, which [`probability_share`] can still multiply; a token with less than 2^-30 of the
/// largest probability is never chosen.
pub const ONE: i64 = 1 << 30;
/// An exponent of two is a multiple of 2^-18: weights are accurate to 3 in a million, and 31
/// halvings are exact in f32.
const EXPONENT_BITS: u32 = 18;
/// The exponent at which a weight becomes 0.
const MIN_EXPONENT: i32 = -31 << EXPONENT_BITS;
/// [`ONE`] · 2^-x for x from 0 to 1, as a polynomial of x: interpolated at Chebyshev nodes,
/// error 4.4e-7.
const POWERS: [i64; 6] = [
    ONE,
    -744_260_865,
    257_928_559,
    -59_494_488,
    10_033_292,
    -1_077_640,
];
/// A probability is a multiple of 2^-24, which f32 holds exactly.
const PROBABILITY_BITS: u32 = 24;

/// Returns the factor from a logit's distance below the largest to an exponent: `log2(e) /
/// temperature`, in units of 2^-18.
pub fn scale(temperature: f32) -> f32 {
    // For a temperature near 0 the largest finite number, so that a distance of 0 stays 0.
    (std::f32::consts::LOG2_E * (1u32 << EXPONENT_BITS) as f32 / temperature).min(f32::MAX)
}

/// Returns a probability in units of 2^-24, at least 1; for 1, which does not limit, a value above
/// all sums.
pub fn probability(p: f32) -> f32 {
    let one = (1u32 << PROBABILITY_BITS) as f32;
    if p < 1.0 {
        (p * one).round().max(1.0)
    } else {
        2.0 * one
    }
}

/// Returns `e^(below / temperature)` in units of 1/[`ONE`], for a logit at distance `below` from
/// the largest, which is at most 0.
pub fn weight(below: f32, scale: f32) -> i64 {
    let exponent = (below * scale).max(MIN_EXPONENT as f32) as i32;
    let halvings = -exponent;
    let fraction = i64::from(halvings & ((1 << EXPONENT_BITS) - 1));
    let [rest @ .., last] = POWERS;
    let power = rest
        .iter()
        .rev()
        .fold(last, |sum, &c| ((sum * fraction) >> EXPONENT_BITS) + c);
    power >> (halvings >> EXPONENT_BITS)
}

/// Computes [`weight`] as tensor ops, i64.
pub fn weight_of<'g>(below: Tensor<'g>, scale: Tensor<'g>) -> Tensor<'g> {
    let exponent = (below * scale)
        .maximum(f64::from(MIN_EXPONENT))
        .cast(Scalar::I32);
    let halvings = (exponent * -1i64).clamp_index(MIN_EXPONENT.unsigned_abs() as usize);
    let fraction = (halvings & ((1i64 << EXPONENT_BITS) - 1)).cast(Scalar::I64);
    let [rest @ .., next, last] = POWERS;
    let bits = i64::from(EXPONENT_BITS);
    let first = ((fraction * last) >> bits) + next;
    let power = rest
        .iter()
        .rev()
        .fold(first, |sum, &c| ((sum * fraction) >> bits) + c);
    power >> (halvings >> bits).cast(Scalar::I64)
}

/// Returns `sum · fraction / 2^bits`, rounded down, without overflow for sums of less than 2^48 and
/// fractions of at most 2^31.
fn product(sum: i64, fraction: i64, bits: u32) -> i64 {
    (sum >> bits) * fraction + (((sum & ((1 << bits) - 1)) * fraction) >> bits)
}

fn product_of<'g>(sum: Tensor<'g>, fraction: Tensor<'g>, bits: u32) -> Tensor<'g> {
    let shift = i64::from(bits);
    (sum >> shift) * fraction + (((sum & ((1i64 << bits) - 1)) * fraction) >> shift)
}

/// Returns the share of a sum given by a [`probability`], at least 1.
pub fn probability_share(sum: i64, probability: f32) -> i64 {
    product(sum, probability as i64, PROBABILITY_BITS).max(1)
}

/// Computes [`probability_share`] as tensor ops.
pub fn probability_share_of<'g>(sum: Tensor<'g>, probability: Tensor<'g>) -> Tensor<'g> {
    product_of(
        sum,
        probability.cast(Scalar::I32).cast(Scalar::I64),
        PROBABILITY_BITS,
    )
    .maximum(1i64)
}

/// Scales a random number to a position in a sum: at least 0 and below the sum.
pub fn target(sum: i64, random: u32) -> i64 {
    product(sum, i64::from(random), RANDOM_BITS)
}

/// Computes [`target`] as tensor ops.
pub fn target_of<'g>(sum: Tensor<'g>, random: Tensor<'g>) -> Tensor<'g> {
    product_of(sum, random.cast(Scalar::I64), RANDOM_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_powers_of_e() {
        for temperature in [0.1f32, 0.8, 1.0, 3.0] {
            let scale = scale(temperature);
            let mut last = ONE;
            for i in 0..200_000 {
                let below = -1e-4 * i as f32 * temperature;
                let (found, exact) = (
                    weight(below, scale),
                    ONE as f64 * f64::from(below / temperature).exp(),
                );
                assert!(
                    (found as f64 - exact).abs() <= exact * 4e-6 + 1.0,
                    "{below} at {temperature}: {found}, {exact}"
                );
                assert!(
                    found <= last,
                    "{below} at {temperature}: {found} after {last}"
                );
                last = found;
            }
        }
    }

    #[test]
    fn extremes_have_weights_too() {
        for temperature in [f32::MIN_POSITIVE, 1e-30, 1.0, f32::MAX] {
            assert_eq!(weight(0.0, scale(temperature)), ONE);
            assert_eq!(weight(f32::NEG_INFINITY, scale(temperature)), 0);
        }
        assert_eq!(
            weight(-1e-30, scale(f32::MIN_POSITIVE)),
            weight(-1e-30, f32::MAX)
        );
        assert_eq!(
            (probability(1.0), probability(1e-30)),
            ((1u32 << 25) as f32, 1.0)
        );
    }

    #[test]
    fn parts_do_not_overflow() {
        let most = ONE << 18;
        let exact = |fraction: i128, bits: u32| ((most as i128 * fraction) >> bits) as i64;
        let last = (1u32 << RANDOM_BITS) - 1;
        assert_eq!(target(most, last), exact(i128::from(last), RANDOM_BITS));
        assert!(target(most, last) < most && target(7, last) < 7);
        assert_eq!(
            probability_share(most, probability(0.95)),
            exact(probability(0.95) as i128, PROBABILITY_BITS)
        );
        assert_eq!(
            (
                probability_share(most, probability(1.0)),
                probability_share(3, probability(1e-9))
            ),
            (2 * most, 1)
        );
    }
}
