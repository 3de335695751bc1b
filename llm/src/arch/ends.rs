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
    /// Factor on rows of the embedding.
    pub embedding_scale: f64,
    /// Factor on logits.
    pub logit_scale: f64,
    /// Bound `c` of logits, which become `c·tanh(logit/c)`.
    pub cap: Option<f64>,
}

impl Ends {
    /// Of these sizes, with nothing done to the embedding and to logits.
    pub fn plain(layers: usize, d: usize, vocabulary: usize, eps: f64) -> Ends {
        Ends { layers, d, vocabulary, eps, embedding_scale: 1.0, logit_scale: 1.0, cap: None }
    }
    /// Token ids `[n]` to hidden rows `[n, d]`.
    pub fn embed(&self, step: &mut StepBuilder, globals: &Weights) {
        step.call("embed", |s| {
            let tokens = s.input("tokens", Bind::Tokens, dims![s.tokens()], Scalar::I32);
            let rows = s.weight(globals, "token_embd.weight");
            // Ids are checked where requests enter; one that slipped through must still not read outside the table.
            let rows = rows.gather(tokens.clamp_index(self.vocabulary - 1));
            s.output(
                "x",
                Bind::Hidden(0),
                if self.embedding_scale == 1.0 { rows } else { rows * self.embedding_scale },
            );
        });
    }
    /// Hidden rows `[n, d]` to logits: `[1, vocabulary]` of the last row, or `[n, vocabulary]`, or of the last of each sequence, or none.
    pub fn head(&self, step: &mut StepBuilder, globals: &Weights) {
        let logits = step.options.logits;
        if logits == Logits::None {
            return;
        }
        let part = match logits {
            Logits::All => "head.all",
            Logits::Ends => "head.ends",
            _ => "head",
        };
        step.call(part, |s| {
            let x = s.with_logits(s.hidden(self.layers, self.d));
            let x = nn::rms_norm(x, s.weight(globals, "output_norm.weight"), self.eps);
            let head = if globals.has("output.weight") { "output.weight" } else { "token_embd.weight" };
            let logits = s.linear(globals, x, head);
            let logits = if self.logit_scale == 1.0 { logits } else { logits * self.logit_scale };
            s.output("logits", Bind::Logits, self.cap.map_or(logits, |cap| nn::soft_cap(logits, cap)));
        });
    }
}
