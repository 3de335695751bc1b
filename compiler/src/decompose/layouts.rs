//! Chooses the layouts of a function's weights.
//!
//! Functions that bind the same weight must agree on its layout without seeing one another. A
//! decision is therefore made per format and shape, and its answer depends on these alone
//! ([`Decision::everywhere`]). Candidates are only layouts with which products stay in integers, so
//! that results do not depend on the policy.

use super::int8::Layouts;
use crate::decision::{Alternative, Decider, Decision, LAYOUT};
use crate::ir::layout::Layout;
use crate::plan::{Proposal, proposals};
use gristmill_uop::encoding::EncodingRef;
use gristmill_uop::function::{Function, Storage};
use gristmill_uop::machine::MachineKind;
use gristmill_uop::target::Target;
use std::collections::BTreeMap;

/// Candidate layouts of a weight, the default first; only the default unless `all`.
fn could(
    first: Layout,
    e: EncodingRef,
    dims: &[i64],
    target: &Target,
    all: bool,
) -> Vec<Proposal<Layout>> {
    let rows = |n: i64| Layout::Rows(n as u16);
    let others = match (target.machine.kind, first.lanes()) {
        _ if !all => vec![],
        (MachineKind::Cpu, n) => vec![
            ("half as many rows", rows((n / 2).max(1))),
            ("twice as many rows", rows(2 * n)),
            ("rows as planes", Layout::Planes),
        ],
        (MachineKind::Gpu, _) => vec![("rows of a subgroup", rows(target.machine.subgroup))],
    };
    // Only rows of one matrix are interleaved, not those of the next expert.
    let matrix = &dims[dims.len().saturating_sub(2)..];
    proposals(
        first,
        others
            .into_iter()
            .filter(|(_, layout)| layout.bytes(e, matrix).is_some()),
    )
}

/// Replaces the default layouts in `found` by those decided on.
///
/// Weights that stay as in their file are logged without asking the policy.
pub fn decided(
    function: &Function,
    mut found: Layouts,
    target: &Target,
    decider: &mut Decider,
) -> Layouts {
    let mut known: BTreeMap<String, Layout> = BTreeMap::new();
    for (slot, info) in function.slots.iter().enumerate() {
        let Storage::Packed(e) = info.storage else {
            continue;
        };
        if e.elements == 1 {
            continue;
        }
        let site = format!("{} {:?}", e.name, info.dims);
        let of = Decision {
            everywhere: true,
            ..Decision::new(LAYOUT, site, vec![])
        };
        let option = |Proposal { name, plan }: &Proposal<Layout>| {
            let bytes = plan.bytes(e, &info.dims).unwrap_or_default();
            Alternative {
                name,
                plan: plan.to_string(),
                seconds: bytes as f64 / target.machine.bandwidth,
            }
        };
        let Some(own) = found.get_mut(&(slot as u32)) else {
            let options = vec![option(&Proposal {
                name: "as in the file",
                plan: Layout::File,
            })];
            let told = Decision { options, ..of };
            if decider
                .log
                .iter()
                .all(|d| d.key() != told.key() || d.options != told.options)
            {
                decider.log.push(told);
            }
            continue;
        };
        own.0 = *known.entry(of.key()).or_insert_with(|| {
            let plans = could(own.0, e, &info.dims, target, decider.explores(&of));
            let options = plans.iter().map(option).collect();
            plans[decider.choose(Decision { options, ..of })].plan
        });
    }
    found
}
