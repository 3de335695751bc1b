//! First and last function of a step: token embedding and output head.

use super::plan::{Bind, Logits};
use super::step::{StepBuilder, StepFunction};
use super::tensors::LayerWeights;
use gristmill_tensor::tensor::Tensor;
use gristmill_tensor::{dims, nn};
use gristmill_uop::dtype::Scalar;

/// Names of the embedding and of the norm before the head.
pub(super) const EMBEDDING: &str = "token_embd.weight";
pub(super) const OUTPUT_NORM: &str = "output_norm.weight";

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
            s.output(
                "x",
                Bind::Hidden(0),
                self.embedding(s, (globals, EMBEDDING)),
            );
        });
    }
    /// Returns the rows of an embedding for the step's tokens, `[n, d]`.
    pub(super) fn embedding<'g>(
        &self,
        s: &'g StepFunction,
        (weights, name): (&LayerWeights, &str),
    ) -> Tensor<'g> {
        let tokens = s.input("tokens", Bind::Tokens, dims![s.tokens()], Scalar::I32);
        let rows = s.weight(weights, name);
        // Ids are validated at request admission; the clamp keeps an invalid id from reading
        // out of bounds.
        let rows = rows.gather(tokens.clamp_index(self.vocabulary - 1));
        match self.embedding_scale == 1.0 {
            true => rows,
            false => rows * self.embedding_scale,
        }
    }
    /// Returns the name of the head's matrix: without one the embedding is tied.
    pub(super) fn head_name(globals: &LayerWeights) -> &'static str {
        match globals.has("output.weight") {
            true => "output.weight",
            false => EMBEDDING,
        }
    }
    /// Builds the output head: hidden rows `[n, d]` to logits of the rows that [`Logits`] selects.
    pub fn head(&self, step: &mut StepBuilder, globals: &LayerWeights) {
        let matrix = EmbedAndHead::head_name(globals);
        let weights = [(globals, OUTPUT_NORM), (globals, matrix)];
        self.logits(step, &Bind::Hidden(self.layers), weights);
    }
    /// Builds an output head with this norm and matrix, on the hidden rows of a binding.
    pub(super) fn logits(
        &self,
        step: &mut StepBuilder,
        hidden: &Bind,
        [norm, matrix]: [(&LayerWeights, &str); 2],
    ) {
        let logits = step.options.logits;
        if logits == Logits::None {
            return;
        }
        let part = match logits {
            Logits::All | Logits::Drafted => "head.all",
            Logits::LastOfEach => "head.ends",
            _ => "head",
        };
        step.head(part, |s| {
            let x = match hidden {
                Bind::Hidden(layer) => s.hidden(*layer, self.d),
                bind => s.input("x", bind.clone(), dims![s.tokens(), self.d], Scalar::F32),
            };
            let x = nn::rms_norm(s.with_logits(x), s.weight(norm.0, norm.1), self.eps);
            let logits = s.linear(matrix.0, x, matrix.1);
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
