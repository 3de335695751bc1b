//! Decides whether attention reads a quantised KV cache as it is stored or dequantised to f16.
//!
//! Only the attentions differ, so only they are scheduled for the comparison, with the decoding of
//! the rows and what else the two forms do not share, each in the cheapest form that the rewrite
//! rules find.

use super::part::Subfunction;
use super::region;
use crate::decision::{CACHE_ROWS, Decider};
use crate::decompose::dequantise_rows::{dequantised, is_stored};
use gristmill_uop::concurrent::map_each;
use gristmill_uop::function::Function;
use gristmill_uop::target::Target;

/// Returns the function with attention over dequantised rows, if that is decided.
pub fn choose(function: &Function, target: &Target, decider: &mut Decider) -> Option<Function> {
    let (other, attentions) = dequantised(function, target)?;
    let g = &other.graph;
    let mut shared = region::shared(g, &attentions);
    shared.retain(|&id| !is_stored(g, id));
    let parts = attentions.map(|outputs| region::one(g, function, &outputs, &shared));
    let best = |part: &Subfunction| {
        region::best_seconds(part, target, |function, decider| {
            super::choose(function, target, decider)
        })
    };
    let seconds = map_each(&parts, best);
    let seconds = [seconds[0], seconds[1]];
    let decision = CACHE_ROWS.at(function.full_name(), seconds);
    (decider.choose(decision) == 1).then_some(other)
}
