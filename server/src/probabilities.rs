//! How probable a token was, and which were the most probable ones.

use crate::job::Chosen;
use std::cmp::Ordering;

/// Logits that are looked at together: their greatest one says at once whether any of them is among the most probable, which in a
/// vocabulary of 150,000 is so for a few hundred.
const TOGETHER: usize = 64;

/// The probability of a token, and the `top` most probable ones.
pub fn probabilities(logits: &[f32], token: u32, top: usize) -> Chosen {
    let best = best(logits, top);
    let max = greatest(logits);
    // Exponentials in single precision are off by as much as the result is rounded by; their sum is not.
    let sum: f64 = logits.iter().map(|logit| f64::from((logit - max).exp())).sum();
    let norm = f64::from(max) + sum.ln();
    let logprob = |logit: f32| (f64::from(logit) - norm) as f32;
    Chosen {
        token,
        logprob: logits.get(token as usize).map_or(f32::NEG_INFINITY, |&logit| logprob(logit)),
        top: best.into_iter().map(|(logit, id)| (id, logprob(logit))).collect(),
    }
}

fn greatest(logits: &[f32]) -> f32 {
    logits.iter().copied().fold(f32::NEG_INFINITY, f32::max)
}

/// The greatest logits and their ids in descending order, of equal ones the first: one pass, and no copy of the vocabulary.
fn best(logits: &[f32], top: usize) -> Vec<(f32, u32)> {
    let top = top.min(logits.len());
    let mut best: Vec<(f32, u32)> = Vec::with_capacity(top + 1);
    for (together, first) in logits.chunks(TOGETHER).zip((0u32..).step_by(TOGETHER)) {
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
        assert_eq!(chosen.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 3, 0]);
        assert_eq!(chosen.logprob, chosen.top[2].1);
        let all = probabilities(&[0.0, 2.0, -1.0, 2.0], 0, 9);
        let sum: f32 = all.top.iter().map(|t| t.1.exp()).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        assert!(probabilities(&[1.0], 0, 0).top.is_empty());
    }

    #[test]
    fn the_best_of_many_are_those_of_a_sort() {
        // Many equal ones among them.
        let logits: Vec<f32> = (0..20_001u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32 * 0.01).collect();
        let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
        ids.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        for top in [1, 5, 20, 63, 64, 65] {
            let best: Vec<u32> = best(&logits, top).iter().map(|entry| entry.1).collect();
            assert_eq!(best, ids[..top], "{top}");
        }
    }
}
