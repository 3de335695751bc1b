//! First and last function of a step: token embedding and output head.

use super::plan::{Bind, Logits};
use super::step::StepBuilder;
use super::tensors::LayerWeights;
use gristmill_tensor::{dims, nn};
use gristmill_uop::dtype::Scalar;

/// Shape and options of the embedding and the output head.
#[derive(Clone, Copy)]
pub(super) struct EmbedAndHead {
    pub layers: usize,
    pub d: usize,
    pub vocabulary: usize,
    pub eps: f64,
    /// Multiplies rows of the embedding.
    pub embedding_scale: f64,
    pub logit_scale: f64,
    /// Soft cap `c` of logits: `c·tanh(logit/c)`.
    pub cap: Option<f64>,
}

impl EmbedAndHead {
    /// Creates an embedding and a head without scale factors or soft cap.
    pub fn plain(layers: usize, d: usize, vocabulary: usize, eps: f64) -> EmbedAndHead {
        EmbedAndHead {
            layers,
            d,
            vocabulary,
            eps,
            embedding_scale: 1.0,
            logit_scale: 1.0,
            cap: None,
        }
    }
    /// Builds the embedding: token ids `[n]` to hidden rows `[n, d]`.
    pub fn embed(&self, step: &mut StepBuilder, globals: &LayerWeights) {
        step.call("embed", |s| {
            let tokens = s.input("tokens", Bind::Tokens, dims![s.tokens()], Scalar::I32);
            let rows = s.weight(globals, "token_embd.weight");
            // Ids are validated at request admission; the clamp keeps an invalid id from reading
            // out of bounds.
            let rows = rows.gather(tokens.clamp_index(self.vocabulary - 1));
            s.output(
                "x",
                Bind::Hidden(0),
                if self.embedding_scale == 1.0 {
                    rows
                } else {
                    rows * self.embedding_scale
                },
            );
        });
    }
    /// Builds the output head: hidden rows `[n, d]` to logits of the rows that [`Logits`] selects.
    pub fn head(&self, step: &mut StepBuilder, globals: &LayerWeights) {
        let logits = step.options.logits;
        if logits == Logits::None {
            return;
        }
        let part = match logits {
            Logits::All => "head.all",
            Logits::LastOfEach => "head.ends",
            _ => "head",
        };
        step.head(part, |s| {
            let x = s.with_logits(s.hidden(self.layers, self.d));
            let x = nn::rms_norm(x, s.weight(globals, "output_norm.weight"), self.eps);
            let head = if globals.has("output.weight") {
                "output.weight"
            } else {
                "token_embd.weight"
            };
            let logits = s.linear(globals, x, head);
            let logits = if self.logit_scale == 1.0 {
                logits
            } else {
                logits * self.logit_scale
            };
            s.output(
                "logits",
                Bind::Logits,
                self.cap.map_or(logits, |cap| nn::soft_cap(logits, cap)),
            );
        });
    }
}
