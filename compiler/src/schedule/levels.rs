//! Levels: when kernels run. Those of one level wait for none of one another, and may share a launch (`merge`).

use super::kernel::Draft;
use crate::nest::workgroups;
use crate::price::{Price, occupancy};
use gristmill_uop::Graph;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use rustc_hash::FxHashSet;

/// What a kernel takes beside others of a launch.
#[derive(Clone, Copy)]
struct Beside {
    seconds: f64,
    workgroups: i64,
}

/// The level of each kernel, which needs those before it.
pub fn levels(g: &Graph, kernels: &[(Draft, Price)], needs: &[FxHashSet<usize>], target: &Target) -> Vec<usize> {
    // On a processor cores that run a kernel run nothing beside it.
    let room = if target.machine.kind == MachineKind::Gpu { occupancy::room(target) } else { 0 };
    let beside = |k: &(Draft, Price)| Beside { seconds: k.1.seconds, workgroups: workgroups(g, &k.0.nests) };
    let of: Vec<Beside> = kernels.iter().map(beside).collect();
    let mut level = earliest(needs);
    beside_the_longest(needs, &of, room, &mut level);
    level
}

/// By the longest path. Kernels are in topological order, except for the edges that `before_write` adds: hence the rounds.
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

/// Moves every kernel to that level before its readers whose launch takes longest and leaves room for its workgroups, by the kernels that cannot move: more kernels without a path
/// between them meet in one launch, and beside a long one of few workgroups a kernel costs nothing (GLM-4.7-Flash's and Youtu's keys and values beside queries through a low rank,
/// one token on an H200: 638 tokens a second for 631, 1,095 for 1,074). Of equal ones to the latest, where buffers live shorter.
fn beside_the_longest(needs: &[FxHashSet<usize>], of: &[Beside], room: i64, level: &mut [usize]) {
    let last = |i: usize, level: &[usize]| {
        let readers = (0..needs.len()).filter(|&j| needs[j].contains(&i));
        readers.map(|j| level[j] - 1).min().unwrap_or(level[i])
    };
    let mut latest = level.to_vec();
    for i in (0..latest.len()).rev() {
        latest[i] = last(i, &latest);
    }
    let mut launches = vec![Beside { seconds: 0.0, workgroups: 0 }; level.iter().max().map_or(0, |l| l + 1)];
    for i in (0..level.len()).filter(|&i| latest[i] == level[i]) {
        let launch = &mut launches[level[i]];
        launch.seconds = launch.seconds.max(of[i].seconds);
        launch.workgroups = launch.workgroups.saturating_add(of[i].workgroups);
    }
    for i in (0..level.len()).rev() {
        let hidden = |l: usize| {
            let Beside { seconds, workgroups } = launches[l];
            if workgroups.saturating_add(of[i].workgroups) <= room { seconds } else { 0.0 }
        };
        let levels = level[i]..=last(i, level);
        level[i] = levels.max_by(|&a, &b| hidden(a).total_cmp(&hidden(b))).unwrap_or(level[i]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kernels 0 to 3 in a chain, of so many seconds and workgroups; 4 is read by the last of them and reads nothing.
    fn level_of_other(chain: [(f64, i64); 4], other: i64, room: i64) -> usize {
        let needs: Vec<FxHashSet<usize>> =
            [vec![], vec![0], vec![1], vec![2, 4], vec![]].map(FxHashSet::from_iter).into();
        let mut of = chain.map(|(seconds, workgroups)| Beside { seconds, workgroups }).to_vec();
        of.push(Beside { seconds: 1.0, workgroups: other });
        let mut level = earliest(&needs);
        assert_eq!(level, [0, 1, 2, 3, 0]);
        beside_the_longest(&needs, &of, room, &mut level);
        assert_eq!(level[..4], [0, 1, 2, 3], "those of the longest path stay");
        level[4]
    }

    #[test]
    fn beside_the_longest_launch_with_room() {
        let chain = [(2.0, 8), (5.0, 8), (3.0, 8), (9.0, 8)];
        assert_eq!(level_of_other(chain, 4, 16), 1, "its reader's own launch is too late");
        let full = [(2.0, 8), (5.0, 14), (3.0, 8), (9.0, 8)];
        assert_eq!(level_of_other(full, 4, 16), 2, "the longest has no room");
        assert_eq!(level_of_other(chain, 4, 0), 2, "nowhere: the latest");
        assert_eq!(level_of_other([(2.0, 8); 4], 4, 16), 2, "all alike: the latest");
    }
}
