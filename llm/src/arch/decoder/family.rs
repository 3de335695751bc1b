//! What families of decoders differ in.

use gristmill_tensor::nn::Pairing;

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
    /// Are feed-forwards experts?
    pub experts: bool,
    /// Has the matrix of `ffn_up` the rows of the gate before its own?
    pub fused_gate: bool,
}

impl Family {
    /// Of a name, with none of the parts that some have.
    pub const fn plain(name: &'static str, pairing: Pairing) -> Family {
        Family { name, pairing, head_norms: false, biases: false, experts: false, fused_gate: false }
    }
}
