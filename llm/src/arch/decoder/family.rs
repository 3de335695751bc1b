//! What families of decoders differ in.

use super::super::moe::Kind;
use gristmill_tensor::nn::{Glu, Pairing};

/// What distinguishes a family of decoders.
pub(in super::super) struct Family {
    /// `general.architecture`.
    pub name: &'static str,
    /// Which elements of a head rotate together.
    pub pairing: Pairing,
    /// Has every head a norm of its queries and keys?
    pub head_norms: bool,
    /// Have queries, keys and values biases?
    pub biases: bool,
    /// What experts are, where feed-forwards are experts.
    pub experts: Option<Kind>,
    /// What a dense feed-forward does with gate and up.
    pub glu: Glu,
    /// Has the matrix of `ffn_up` the rows of the gate before its own?
    pub fused_gate: bool,
}

impl Family {
    /// Of a name, with none of the parts that some have.
    pub const fn plain(name: &'static str, pairing: Pairing) -> Family {
        let (experts, glu) = (None, Glu::Swiglu);
        Family { name, pairing, head_norms: false, biases: false, experts, glu, fused_gate: false }
    }
}
