//! Log-probabilities of a sampled token and of the most probable tokens.

use crate::core::event::Chosen;
use std::cmp::Ordering;

/// Logits per group in the top-k search. A group whose maximum is below the current top logits is
/// skipped.
const GROUP: usize = 64;

/// Returns the log-probability of a token, and the `top` most probable tokens.
pub fn probabilities(logits: &[f32], token: u32, top: usize) -> Chosen {
    let best = top_logits(logits, top);
    let max = greatest(logits);
    let norm = f64::from(max) + sum_of_exponentials(logits, max).ln();
    let logprob = |logit: f32| (f64::from(logit) - norm) as f32;
    Chosen {
        token,
        logprob: Some(
            logits
                .get(token as usize)
                .map_or(f32::NEG_INFINITY, |&logit| logprob(logit)),
        ),
        top: best
            .into_iter()
            .map(|(logit, id)| (id, logprob(logit)))
            .collect(),
    }
}

/// Elements that are processed in parallel: two AVX2 registers.
const SIMD_LANES: usize = 16;
/// Exponentials that are summed in f32; the error stays below the rounding of the result.
const F32_SUM_LENGTH: usize = 1024;

fn greatest(logits: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; SIMD_LANES];
    for some in logits.chunks(SIMD_LANES) {
        lanes
            .iter_mut()
            .zip(some)
            .for_each(|(lane, &logit)| *lane = if logit > *lane { logit } else { *lane });
    }
    lanes.into_iter().fold(f32::NEG_INFINITY, f32::max)
}

/// Returns the sum of e^(x − max).
fn sum_of_exponentials(logits: &[f32], max: f32) -> f64 {
    let part = |logits: &[f32]| {
        let mut lanes = [0.0; SIMD_LANES];
        let (whole, rest) = logits.as_chunks::<SIMD_LANES>();
        for some in whole {
            lanes
                .iter_mut()
                .zip(some)
                .for_each(|(lane, logit)| *lane += exponential(logit - max));
        }
        lanes
            .iter_mut()
            .zip(rest)
            .for_each(|(lane, logit)| *lane += exponential(logit - max));
        lanes.into_iter().map(f64::from).sum::<f64>()
    };
    logits.chunks(F32_SUM_LENGTH).map(part).sum()
}

/// Computes e^x for x ≤ 0, to the relative rounding error of x, or 1e-37 absolute. It has neither
/// branches nor calls, so that it vectorises.
fn exponential(x: f32) -> f32 {
    // 1.5 · 2^23: adding it rounds to an integer.
    const ROUND: f32 = 12_582_912.0;
    let twos = (x * std::f32::consts::LOG2_E).max(-126.0);
    let rounded = twos + ROUND;
    let rest = (twos - (rounded - ROUND)) * std::f32::consts::LN_2;
    // Taylor series to the sixth power, for |rest| below 0.35.
    let series = [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    let mantissa = series
        .into_iter()
        .fold(1.0 / 720.0, |sum, term| sum * rest + term);
    // The lowest bits of the rounded number are the integer; shifted left they form the exponent.
    mantissa * f32::from_bits(rounded.to_bits().wrapping_add(127) << 23)
}

/// Returns the greatest logits with their ids, in descending order and then by id. One pass,
/// without a copy of the logits.
fn top_logits(logits: &[f32], top: usize) -> Vec<(f32, u32)> {
    let top = top.min(logits.len());
    let mut best: Vec<(f32, u32)> = Vec::with_capacity(top + 1);
    for (together, first) in logits.chunks(GROUP).zip((0u32..).step_by(GROUP)) {
        let least = best.last().map(|entry| entry.0);
        if best.len() == top && least.is_none_or(|least| greatest(together) <= least) {
            continue;
        }
        for (&logit, id) in together.iter().zip(first..) {
            let place = best.partition_point(|entry| entry.0.total_cmp(&logit) != Ordering::Less);
            if place < top {
                best.insert(place, (logit, id));
                best.truncate(top);
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probabilities_sum_to_one_and_are_in_order() {
        let chosen = probabilities(&[0.0, 2.0, -1.0, 2.0], 0, 3);
        assert_eq!(
            chosen.top.iter().map(|t| t.0).collect::<Vec<_>>(),
            [1, 3, 0]
        );
        assert_eq!(chosen.logprob, Some(chosen.top[2].1));
        let all = probabilities(&[0.0, 2.0, -1.0, 2.0], 0, 9);
        let sum: f32 = all.top.iter().map(|t| t.1.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        assert!(probabilities(&[1.0], 0, 0).top.is_empty());
    }

    #[test]
    fn the_best_of_many_are_those_of_a_sort() {
        // Many of the logits are equal.
        let logits: Vec<f32> = (0..20_001u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32 * 0.01)
            .collect();
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        ids.sort_by(|&a, &b| {
            logits[b as usize]
                .total_cmp(&logits[a as usize])
                .then(a.cmp(&b))
        });
        for top in [1, 5, 20, 63, 64, 65] {
            let best: Vec<u32> = top_logits(&logits, top)
                .iter()
                .map(|entry| entry.1)
                .collect();
            assert_eq!(best, ids[..top], "{top}");
        }
    }

    #[test]
    fn exponentials_are_those_of_the_library() {
        for i in 0..40_000 {
            let x = i as f32 * -0.002;
            let (ours, theirs) = (f64::from(exponential(x)), f64::from(x).exp());
            // The rounding error of x is proportional to its magnitude.
            let bound = 3e-7 * theirs * f64::from(1.0 - x) + 1e-37;
            assert!((ours - theirs).abs() <= bound, "e^{x}: {ours} {theirs}");
        }
        assert_eq!(
            (exponential(0.0), exponential(f32::NEG_INFINITY) < 2e-38),
            (1.0, true)
        );
        let logits: Vec<f32> = (0..5000).map(|i| (i % 97) as f32 * -0.3).collect();
        let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        assert!((sum_of_exponentials(&logits, 0.0) / sum - 1.0).abs() < 1e-6);
    }
}
