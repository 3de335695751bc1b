//! What families of decoders differ in.

use super::super::attention::Norms;
use super::super::moe::Kind;
use gristmill_tensor::nn::{Glu, Pairing};

/// What distinguishes a family of decoders.
#[derive(Clone, Copy)]
pub(in super::super) struct Family {
    /// `general.architecture`.
    pub name: &'static str,
    /// Which elements of a head rotate together.
    pub pairing: Pairing,
    /// Norms of queries and keys.
    pub norms: Norms,
    /// Have queries, keys and values biases?
    pub biases: bool,
    /// What experts are, where feed-forwards are experts.
    pub experts: Option<Kind>,
    /// What a dense feed-forward does with gate and up.
    pub glu: Glu,
    /// Has the matrix of `ffn_up` the rows of the gate before its own?
    pub fused_gate: bool,
    /// The norm of what a feed-forward reads.
    pub ffn_norm: &'static str,
}

impl Family {
    /// Of a name, with none of the parts that some have.
    pub const fn plain(name: &'static str, pairing: Pairing) -> Family {
        let (norms, experts, glu) = (Norms::No, None, Glu::Swiglu);
        let ffn_norm = "ffn_norm.weight";
        Family { name, pairing, norms, biases: false, experts, glu, fused_gate: false, ffn_norm }
    }
}
