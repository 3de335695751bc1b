//! Proposes which fused nodes are staged, and the distance of half-precision rows in shared memory.

use crate::plan::{BANKS, Proposal, StagePlan};

/// Maximum number of fused nodes to propose the opposite for: the first ones,
/// nearest to the output.
const NODES: usize = 6;

/// Alternatives to a stage plan: one node moved into or out of a stage, or another row distance.
pub fn others(first: &StagePlan) -> Vec<Proposal<StagePlan>> {
    let turned = (0..first.staged.len().min(NODES)).map(|i| {
        // The plan ends here: later nodes may be read differently now, so the default
        // rule decides on them.
        let staged = first.staged[..i]
            .iter()
            .copied()
            .chain([!first.staged[i]])
            .collect();
        let name = if first.staged[i] {
            "in place"
        } else {
            "staged"
        };
        Proposal {
            name,
            plan: StagePlan {
                staged,
                ..first.clone()
            },
        }
    });
    let rows = [
        ("rows as they are", 0),
        ("rows a word apart", 16),
        ("rows half apart", BANKS / 2),
    ];
    let rows = rows
        .into_iter()
        .filter(|r| first.banks.is_some_and(|begin| begin != r.1));
    let rows = rows.map(|(name, begin)| {
        (
            name,
            StagePlan {
                banks: Some(begin),
                ..first.clone()
            },
        )
    });
    turned
        .chain(rows.map(|(name, plan)| Proposal { name, plan }))
        .collect()
}

/// Relative number of additional shared memory accesses (bank conflicts) of the other plan, when
/// eight rows are read at once. The rule's row distance equals the bytes read per row.
pub fn conflicts(rule: &StagePlan, other: &StagePlan) -> f64 {
    let (Some(width), Some(begin)) = (rule.banks, other.banks) else {
        return 0.0;
    };
    let times = |begin: i64| {
        let covers = |bank: i64| {
            (0..8)
                .filter(|row| (bank - row * begin).rem_euclid(BANKS) < width)
                .count()
        };
        (0..BANKS).map(covers).max().unwrap_or(1) as f64
    };
    times(begin) / times(width) - 1.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_other_in_each_and_banks_have_a_price() {
        let first = StagePlan {
            banks: Some(16),
            staged: vec![true, false],
        };
        let texts: Vec<String> = others(&first)
            .iter()
            .map(|p| format!("{}: {}", p.name, p.plan))
            .collect();
        assert_eq!(
            texts,
            [
                "in place: stages: banks 16, in place",
                "staged: stages: banks 16, staged, staged",
                "rows as they are: stages: banks 0, staged, in place",
                "rows half apart: stages: banks 64, staged, in place",
            ]
        );
        let with = |begin| StagePlan {
            banks: Some(begin),
            ..first.clone()
        };
        assert_eq!(
            [16, 64, 0].map(|begin| conflicts(&first, &with(begin))),
            [0.0, 3.0, 7.0]
        );
        assert_eq!(others(&StagePlan::default()), []);
    }
}
