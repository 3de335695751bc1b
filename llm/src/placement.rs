//! Placement of a model's parts on several devices: which layer is where, and its experts.
//!
//! Device 0 is the main device: it has the embedding, the head and the sampler. A layer is on one
//! device, with its KV cache; its routed experts may be on another. [`Splitter`] rewrites the plan
//! of a step for a placement.

mod candidates;
mod choose;
mod expert_uses;
mod layer_place;
mod link;
mod miss_costs;
mod parts;
mod split;

pub use candidates::Priced;
pub use choose::{Goal, OtherDevice, PlacementChoice, PlacementRequest, TensorPattern};
pub(crate) use expert_uses::ExpertUses;
pub use layer_place::{LayerPlace, Placement};
pub(crate) use layer_place::{is_cached, is_of_experts, layer_of};
pub use link::{measure_link, renew_link, stored_link};
pub(crate) use miss_costs::MissCosts;
pub use split::{PlanFor, Splitter};

#[cfg(test)]
mod tests;
