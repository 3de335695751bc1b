//! Dependency levels of kernels. Kernels of one level are independent and may
//! share a launch (`merge`).

use crate::cost::Cost;
use crate::kernel::Draft;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use rustc_hash::FxHashSet;

/// The level of each kernel, higher than those of the kernels that it needs.
pub fn levels(
    kernels: &[(Draft, Cost)],
    needs: &[FxHashSet<usize>],
    target: &Target,
) -> Vec<usize> {
    // On a CPU, the cores that run one kernel cannot run another at the same time.
    let is_gpu = target.machine.kind == MachineKind::Gpu;
    let mut level = earliest(needs);
    beside_the_longest(
        needs,
        |i| if is_gpu { kernels[i].1.seconds } else { 0.0 },
        &mut level,
    );
    level
}

/// Earliest level of each kernel, by the longest path. Iterates because `before_write` adds edges
/// against the topological order.
fn earliest(needs: &[FxHashSet<usize>]) -> Vec<usize> {
    let mut level = vec![0usize; needs.len()];
    for _ in 0..needs.len() {
        let mut changed = false;
        for i in 0..needs.len() {
            let l = needs[i].iter().map(|&j| level[j] + 1).max().unwrap_or(0);
            changed |= l != level[i];
            level[i] = l;
        }
        if !changed {
            break;
        }
    }
    level
}

/// Moves each kernel to the level before its readers with the longest launch of
/// kernels that cannot move.
///
/// More independent kernels then share a launch, and next to a long one a kernel is almost free: on
/// an H200 GLM-4.7-Flash 631 → 638, Youtu 1,074 → 1,095 tok/s (docs/experiments/118). Among equal
/// levels it takes the latest, which shortens buffer lifetimes.
fn beside_the_longest(
    needs: &[FxHashSet<usize>],
    seconds: impl Fn(usize) -> f64,
    level: &mut [usize],
) {
    let last = |i: usize, level: &[usize]| {
        let readers = (0..needs.len()).filter(|&j| needs[j].contains(&i));
        readers.map(|j| level[j] - 1).min().unwrap_or(level[i])
    };
    let mut latest = level.to_vec();
    for i in (0..latest.len()).rev() {
        latest[i] = last(i, &latest);
    }
    let mut longest = vec![0.0f64; level.iter().max().map_or(0, |l| l + 1)];
    for i in (0..level.len()).filter(|&i| latest[i] == level[i]) {
        longest[level[i]] = longest[level[i]].max(seconds(i));
    }
    for i in (0..level.len()).rev() {
        let levels = level[i]..=last(i, level);
        level[i] = levels
            .max_by(|&a, &b| longest[a].total_cmp(&longest[b]))
            .unwrap_or(level[i]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The level of kernel 4, which takes one second and is only read by kernel 3; kernels 0 to 3
    /// form a chain with these seconds.
    fn level_of_other(chain: [f64; 4]) -> usize {
        let needs: Vec<FxHashSet<usize>> = [vec![], vec![0], vec![1], vec![2, 4], vec![]]
            .map(FxHashSet::from_iter)
            .into();
        let mut level = earliest(&needs);
        assert_eq!(level, [0, 1, 2, 3, 0]);
        beside_the_longest(&needs, |i| chain.get(i).copied().unwrap_or(1.0), &mut level);
        assert_eq!(level[..4], [0, 1, 2, 3], "those of the longest path stay");
        level[4]
    }

    #[test]
    fn beside_the_longest_launch() {
        assert_eq!(
            level_of_other([2.0, 5.0, 3.0, 9.0]),
            1,
            "its reader's own launch is too late"
        );
        assert_eq!(level_of_other([2.0; 4]), 2, "all alike: the latest");
    }
}
