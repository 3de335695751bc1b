//! The ends of a step: embedding and head.

use super::plan::{Bind, Logits};
use super::step::StepBuilder;
use super::tensors::Weights;
use gristmill_tensor::{dims, nn};
use gristmill_uop::dtype::Scalar;

/// Sizes that the ends of a step take.
#[derive(Clone, Copy)]
pub(super) struct Ends {
    pub layers: usize,
    pub d: usize,
    pub vocabulary: usize,
    pub eps: f64,
}

impl Ends {
    /// Token ids `[n]` to hidden rows `[n, d]`.
    pub fn embed(&self, step: &mut StepBuilder, globals: &Weights) {
        step.call("embed", |s| {
            let tokens = s.input("tokens", Bind::Tokens, dims![s.tokens()], Scalar::I32);
            let rows = s.weight(globals, "token_embd.weight");
            // Ids are checked where requests enter; one that slipped through must still not read outside the table.
            s.output("x", Bind::Hidden(0), rows.gather(tokens.clamp_index(self.vocabulary - 1)));
        });
    }
    /// Hidden rows `[n, d]` to logits: `[1, vocabulary]` of the last row, or `[n, vocabulary]`, or none.
    pub fn head(&self, step: &mut StepBuilder, globals: &Weights) {
        let logits = step.options.logits;
        if logits == Logits::None {
            return;
        }
        step.call(if logits == Logits::All { "head.all" } else { "head" }, |s| {
            let mut x = s.hidden(self.layers, self.d);
            if logits != Logits::All {
                x = x.slice(0, s.tokens() - 1, 1);
            }
            let x = nn::rms_norm(x, s.weight(globals, "output_norm.weight"), self.eps);
            let head = if globals.has("output.weight") { "output.weight" } else { "token_embd.weight" };
            s.output("logits", Bind::Logits, x.linear(s.weight(globals, head)));
        });
    }
}
