//! Memory plan: intermediates with disjoint lifetimes share bytes of one arena.

/// Size and lifetime of an intermediate: levels from its first write to its last read, inclusive.
#[derive(Clone, Copy, Debug)]
pub struct Lifetime {
    /// Size of the intermediate in bytes.
    pub bytes: usize,
    /// Level of its writer.
    pub from: usize,
    /// Level of its last reader.
    pub to: usize,
}

/// Minimum alignment of an intermediate: a cache line, and any vector.
const ALIGN: usize = 64;

/// Assigns offsets, in the order of `lifetimes`, and returns them with the arena size.
///
/// Places the largest first, each at the lowest multiple of `alignment` (a power of two) that is
/// free during its lifetime.
pub fn plan(lifetimes: &[Lifetime], alignment: usize) -> (Vec<usize>, usize) {
    let alignment = alignment.max(ALIGN);
    let mut order: Vec<usize> = (0..lifetimes.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(lifetimes[i].bytes), i));
    let mut offsets = vec![0; lifetimes.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut total = 0;
    for i in order {
        let l = lifetimes[i];
        let mut busy: Vec<(usize, usize)> = placed
            .iter()
            .filter(|&&j| lifetimes[j].from <= l.to && l.from <= lifetimes[j].to)
            .map(|&j| (offsets[j], offsets[j] + lifetimes[j].bytes))
            .collect();
        busy.sort();
        let mut at = 0;
        for (begin, end) in busy {
            if at + l.bytes <= begin {
                break;
            }
            at = at.max(end.next_multiple_of(alignment));
        }
        offsets[i] = at;
        total = total.max(at + l.bytes);
        placed.push(i);
    }
    (offsets, total.next_multiple_of(alignment))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lives_that_overlap_do_not_share() {
        let l = |bytes, from, to| Lifetime { bytes, from, to };
        let lives = [l(100, 0, 1), l(200, 1, 2), l(100, 2, 3), l(300, 0, 3)];
        let (at, total) = plan(&lives, 1);
        let (apart, _) = plan(&lives, 256);
        assert!(apart.iter().all(|at| at % 256 == 0) && at.iter().any(|at| at % 256 != 0));
        for i in 0..lives.len() {
            for j in 0..i {
                let alive = lives[i].from <= lives[j].to && lives[j].from <= lives[i].to;
                let apart = at[i] + lives[i].bytes <= at[j] || at[j] + lives[j].bytes <= at[i];
                assert!(!alive || apart, "{i} and {j}: {at:?}");
            }
        }
        assert!(total < 64 * 12);
    }
}
