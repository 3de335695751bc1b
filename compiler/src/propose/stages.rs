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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thing_is_other_in_each() {
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
        assert_eq!(others(&StagePlan::default()), []);
    }
}
