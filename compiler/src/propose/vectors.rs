//! Proposes alternatives to the vectorisation that the heuristic of `map/simd.rs` chose for a nest.

use crate::plan::{NestPlan, OutputLanes, Proposal, SumLanes, Vectors, proposals};

/// The heuristic's plan, then its alternatives.
pub fn vectors(first: &NestPlan) -> Vec<Proposal<NestPlan>> {
    let NestPlan::Vectors(done) = first else {
        return proposals(first.clone(), []);
    };
    let ones: Vec<i64> = done.copies.iter().map(|_| 1).collect();
    let sums = |change: &dyn Fn(SumLanes) -> Option<SumLanes>| -> Vec<Option<SumLanes>> {
        done.sums.iter().map(|s| s.and_then(change)).collect()
    };
    let single = |o: OutputLanes| OutputLanes { copies: 1, ..o };
    let half = |lanes: i64| if lanes > 4 { lanes / 2 } else { lanes };
    let narrow = |o: OutputLanes| OutputLanes {
        lanes: half(o.lanes),
        ..o
    };
    let others = [
        (
            "no copies",
            Vectors {
                output: done.output.map(single),
                copies: ones.clone(),
                ..done.clone()
            },
        ),
        (
            "no unrolling",
            Vectors {
                sums: sums(&|s| Some(SumLanes { unroll: 1, ..s })),
                ..done.clone()
            },
        ),
        (
            "sums apart",
            Vectors {
                fused: false,
                ..done.clone()
            },
        ),
        (
            "narrow vectors",
            Vectors {
                output: done.output.map(narrow),
                sums: sums(&|s| {
                    Some(SumLanes {
                        lanes: half(s.lanes),
                        ..s
                    })
                }),
                ..done.clone()
            },
        ),
        (
            "scalar loops",
            Vectors {
                output: None,
                sums: sums(&|_| None),
                copies: ones,
                ..done.clone()
            },
        ),
    ];
    proposals(
        first.clone(),
        others.map(|(name, plan)| (name, NestPlan::Vectors(plan))),
    )
}
