//! Blocks that draft tokens (multi-token prediction, `nextn`): a further layer, with a KV cache of
//! its own, that guesses the token after next from the last layer's output and the next token.
//!
//! For the token `x` at a position, and the hidden row `h` of the position before it:
//!
//! ```text
//! y = eh_proj [rms(embedding of x, enorm), rms(rms(h, output_norm), hnorm)]
//! y = block(y)                            with its own KV cache, at the token's position
//! logits = head(rms(y, shared_head_norm))
//! ```
//!
//! The logits are of the token behind `x`. A block may be run again on its own output: `y` takes
//! the place of `h`, with `shared_head_norm` in place of `output_norm`. `h` is 0 for the first
//! token.
//! Formula: DeepSeek-V3 technical report, section 2.2; names of tensors: llama.cpp.

use super::embed_head::{EMBEDDING, EmbedAndHead, OUTPUT_NORM};
use super::plan::{Bind, DraftOptions, DraftSource, Logits};
use super::step::{StepBuilder, StepFunction};
use super::tensors::{Checked, LayerWeights, TensorTable};
use crate::gguf::Role;
use gristmill_tensor::dims;
use gristmill_tensor::nn;
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::dtype::Scalar;

/// Name of a draft block's projection, without the prefix of the block: blocks that have it draft.
pub const DRAFT_PROJECTION: &str = "nextn.eh_proj.weight";
/// Further tensors of a draft block, in addition to those of a layer.
const EMBEDDING_NORM: &str = "nextn.enorm.weight";
const HIDDEN_NORM: &str = "nextn.hnorm.weight";
/// Those that may be missing: the model's own are used then.
const OWN_EMBEDDING: &str = "nextn.embed_tokens.weight";
const NORM: &str = "nextn.shared_head_norm.weight";
const HEAD: &str = "nextn.shared_head_head.weight";

impl TensorTable<'_> {
    /// Lists the tensors of all layers, and of the draft block after them if the source has one;
    /// `block` lists those of a layer.
    pub fn blocks(
        &mut self,
        layers: usize,
        [vocabulary, d]: [usize; 2],
        block: &dyn Fn(&mut Self, usize),
    ) {
        for layer in 0..layers {
            self.block(layer);
            block(self, layer);
        }
        self.block(layers);
        if !self.has(DRAFT_PROJECTION) {
            return;
        }
        block(self, layers);
        self.need(DRAFT_PROJECTION, Role::Matrix, &[d, 2 * d]);
        self.need(EMBEDDING_NORM, Role::Norm, &[d]);
        self.need(HIDDEN_NORM, Role::Norm, &[d]);
        self.optional(NORM, Role::Norm, &[d]);
        self.optional(OWN_EMBEDDING, Role::Matrix, &[vocabulary, d]);
        self.optional(HEAD, Role::Output, &[vocabulary, d]);
    }
}

impl Checked {
    /// Returns the number of draft blocks in the table, 0 or 1.
    pub fn draft_blocks(&self) -> usize {
        usize::from(self.draft_block().is_some())
    }
    fn draft_block(&self) -> Option<(usize, &LayerWeights)> {
        let last = self.blocks.len().checked_sub(1)?;
        let block = &self.blocks[last];
        block.has(DRAFT_PROJECTION).then_some((last, block))
    }
    /// Returns the weights of all layers, without those of a draft block.
    pub fn layers(&self) -> impl Iterator<Item = (usize, &LayerWeights)> {
        let layers = self.blocks.len() - self.draft_blocks();
        self.blocks.iter().enumerate().take(layers)
    }
}

/// Returns the weights that have a tensor, and its name: the block's own, or the model's.
fn own_or<'w>(
    own: (&'w LayerWeights, &'static str),
    model: (&'w LayerWeights, &'static str),
) -> (&'w LayerWeights, &'static str) {
    match own.0.has(own.1) {
        true => own,
        false => model,
    }
}

impl EmbedAndHead {
    /// Builds a step of the draft block; `layer` builds its layer, by its number, which follows
    /// that of the model's last one, and its weights.
    pub fn draft(
        &self,
        step: &mut StepBuilder,
        tensors: &Checked,
        layer: &dyn Fn(&mut StepBuilder, usize, &LayerWeights),
    ) {
        let globals = &tensors.globals;
        let (Some(options), Some((number, block))) = (step.options.draft, tensors.draft_block())
        else {
            return;
        };
        let norm = own_or((block, NORM), (globals, OUTPUT_NORM));
        let first = match options.source {
            DraftSource::Model => (globals, OUTPUT_NORM),
            DraftSource::Block => norm,
        };
        step.drafts = true;
        step.call("draft", |s| {
            let hidden = self.hidden_before(s, options);
            let hidden = nn::rms_norm(hidden, s.weight(first.0, first.1), self.eps);
            let hidden = nn::rms_norm(hidden, s.weight(block, HIDDEN_NORM), self.eps);
            let token = self.embedding(s, own_or((block, OWN_EMBEDDING), (globals, EMBEDDING)));
            let token = nn::rms_norm(token, s.weight(block, EMBEDDING_NORM), self.eps);
            let y = s.linear(block, Tensor::cat(&[token, hidden], 1), DRAFT_PROJECTION);
            s.output("y", Bind::Hidden(self.layers + 1), y);
        });
        step.fills = step.options.logits == Logits::None;
        layer(step, number, block);
        step.fills = false;
        // The model's hidden rows must outlive the step, for further ones; training keeps all.
        let drafted = match step.is_training() {
            true => Bind::Hidden(self.layers + 2),
            false => Bind::Drafted,
        };
        step.rebind_last(&|bind| match bind {
            Bind::Hidden(at) if *at == self.layers => Bind::Hidden(self.layers + 1),
            Bind::Hidden(_) => drafted.clone(),
            Bind::HiddenGradient(at) => Bind::HiddenGradient(at + 1),
            bind => bind.clone(),
        });
        let matrix = (globals, EmbedAndHead::head_name(globals));
        self.logits(step, &drafted, [norm, own_or((block, HEAD), matrix)]);
        step.drafts = false;
    }
    /// Returns the hidden row before each token, `[n, d]`: 0 where there is none.
    pub(super) fn hidden_before<'g>(&self, s: &'g StepFunction, of: DraftOptions) -> Tensor<'g> {
        let bind = match of.source {
            DraftSource::Model => Bind::Hidden(self.layers),
            DraftSource::Block => Bind::Drafted,
        };
        let all = s.input("hidden", bind, dims![of.rows, self.d], Scalar::F32);
        let from = s.input("from", Bind::DraftRows, dims![s.tokens()], Scalar::I32);
        let row = all.gather(from.clamp_index(of.rows - 1));
        from.gt(-1).unsqueeze(1).select(row, 0.0)
    }
}
