//! Several adapters as one, among which each row of a step chooses.

use super::adapter::{Adapter, AdapterTensor};
use crate::arch::LowRank;
use std::collections::{BTreeMap, BTreeSet};

/// Joins adapters of one model: the rank of a weight is that of the largest, for each of them, and
/// `B` has the factor of its adapter. What an adapter lacks is zero.
pub fn stacked(adapters: &[Adapter]) -> Adapter {
    let weights: BTreeSet<&str> = adapters.iter().flat_map(Adapter::weights).collect();
    let tensors = weights.into_iter().flat_map(|weight| {
        let names = LowRank::matrices(weight);
        names.into_iter().zip(matrices(adapters, weight))
    });
    Adapter {
        architecture: adapters
            .first()
            .map_or_else(String::new, |a| a.architecture.clone()),
        alpha: 0.0,
        tensors: tensors.collect::<BTreeMap<_, _>>(),
    }
}

/// Matrices `A [.., n·r, in]` and `B [.., out, n·r]` of a weight.
fn matrices(adapters: &[Adapter], weight: &str) -> [AdapterTensor; 2] {
    let names = LowRank::matrices(weight);
    let pairs: Vec<Option<[&AdapterTensor; 2]>> = adapters
        .iter()
        .map(|adapter| {
            Some([
                adapter.tensors.get(&names[0])?,
                adapter.tensors.get(&names[1])?,
            ])
        })
        .collect();
    let known: Vec<[&AdapterTensor; 2]> = pairs.iter().copied().flatten().collect();
    let rank_of = |[a, _]: [&AdapterTensor; 2]| a.dims[a.dims.len() - 2];
    let rank = known.iter().copied().map(rank_of).max().unwrap_or(0);
    let [a, b] = known[0];
    let (axes, all) = (a.dims.len(), adapters.len() * rank);
    let (width, out) = (a.dims[axes - 1], b.dims[axes - 2]);
    let front = a.dims[..axes - 2].iter().product::<usize>();
    let mut stacked = [vec![0.0; front * all * width], vec![0.0; front * out * all]];
    for (place, (adapter, pair)) in adapters.iter().zip(&pairs).enumerate() {
        let Some([a, b]) = *pair else { continue };
        let (own, scale) = (rank_of([a, b]), adapter.scale_of(weight));
        for part in 0..front {
            let from = part * own * width;
            let to = (part * all + place * rank) * width;
            stacked[0][to..to + own * width].copy_from_slice(&a.values[from..from + own * width]);
            for row in 0..out {
                let from = (part * out + row) * own;
                let to = (part * out + row) * all + place * rank;
                let scaled = b.values[from..from + own].iter().map(|v| v * scale);
                stacked[1][to..to + own]
                    .iter_mut()
                    .zip(scaled)
                    .for_each(|(y, x)| *y = x);
            }
        }
    }
    let dims = |last: [usize; 2]| [&a.dims[..axes - 2], &last[..]].concat();
    let [a_values, b_values] = stacked;
    [
        AdapterTensor {
            dims: dims([all, width]),
            values: a_values,
        },
        AdapterTensor {
            dims: dims([out, all]),
            values: b_values,
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter(alpha: f32, rank: usize, weight: &str, begin: f32) -> Adapter {
        let tensor = |dims: [usize; 2]| AdapterTensor {
            dims: dims.to_vec(),
            values: (0..dims[0] * dims[1]).map(|i| begin + i as f32).collect(),
        };
        let names = LowRank::matrices(weight);
        let tensors = names
            .into_iter()
            .zip([tensor([rank, 2]), tensor([3, rank])]);
        Adapter {
            architecture: "llama".into(),
            alpha,
            tensors: tensors.collect(),
        }
    }

    #[test]
    fn ranks_lie_side_by_side() {
        let all = stacked(&[adapter(2.0, 1, "w", 1.0), adapter(0.0, 2, "w", 10.0)]);
        let [a, b] = LowRank::matrices("w").map(|name| all.tensors[&name].clone());
        assert_eq!((a.dims, b.dims), (vec![4, 2], vec![3, 4]));
        assert_eq!(a.values, [1.0, 2.0, 0.0, 0.0, 10.0, 11.0, 12.0, 13.0]);
        // The factor of the first is 2 / 1, of the second 1.
        assert_eq!(b.values[..8], [2.0, 0.0, 10.0, 11.0, 4.0, 0.0, 12.0, 13.0]);
    }

    #[test]
    fn a_weight_that_an_adapter_lacks_is_zero() {
        let all = stacked(&[adapter(1.0, 1, "v", 1.0), adapter(1.0, 1, "w", 1.0)]);
        let [a, b] = LowRank::matrices("w").map(|name| all.tensors[&name].clone());
        assert_eq!(a.values, [0.0, 0.0, 1.0, 2.0]);
        assert_eq!(b.values, [0.0, 1.0, 0.0, 2.0, 0.0, 3.0]);
    }
}
