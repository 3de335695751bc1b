//! Interface of a model for the runtime.

use super::cache::CacheType;
use super::cache::{CacheSpec, CacheTensor};
use super::error::Result;
use super::lookup::Tensors;
use super::low_rank::AppliedAdapter;
use super::plan::{Functions, Options, Plan};
use super::pools::CacheKinds;
use super::rope::RopeTable;
use super::step::StepBuilder;
use super::tensors::TensorSpec;
use crate::gguf::Metadata;

/// Properties common to all models.
#[derive(Clone, PartialEq, Debug)]
pub struct ModelInfo {
    /// Value of `general.architecture`.
    pub architecture: &'static str,
    /// Number of layers, blocks for draft tokens not counted.
    pub layers: usize,
    /// Length of a logits row.
    pub vocabulary: usize,
    /// Length of a hidden row.
    pub width: usize,
    /// Training context length in tokens.
    pub context: usize,
    /// Name and value of each hyper-parameter read from the file, for display.
    pub summary: Vec<(&'static str, String)>,
    /// Warnings about the file, to be shown to the user.
    pub warnings: Vec<String>,
}

/// A loaded model that builds the functions of its steps.
pub trait Model: Send + Sync {
    /// Returns the properties common to all models.
    fn info(&self) -> &ModelInfo;
    /// Returns the model's tensors: the required ones, and the optional ones found in the file.
    fn tensors(&self) -> &[TensorSpec];
    /// Returns the cache layout of each layer.
    fn caches(&self) -> &[CacheSpec];
    /// Returns the RoPE tables that steps read, for a context of `context` tokens.
    fn rope_tables(&self, context: usize) -> Vec<RopeTable>;
    /// Returns the width of the per-layer token input, computed once before the first layer; 0
    /// if there is none.
    fn layer_input(&self) -> usize {
        0
    }
    /// Returns true for a text encoder: its steps have whole texts and no logits.
    fn is_encoder(&self) -> bool {
        false
    }
    /// Returns the adapters that every step applies.
    fn adapters(&self) -> &[AppliedAdapter] {
        &[]
    }
    /// Returns the number of adapters that rows of a step choose among, if there are any.
    fn choices(&self) -> Option<usize> {
        self.adapters().iter().find_map(|adapter| adapter.choices)
    }
    /// Adds the calls of one step, in order.
    fn build(&self, step: &mut StepBuilder);
    /// Returns the cache layouts of the block that drafts tokens, which follow those of the layers;
    /// empty without one.
    fn draft_caches(&self) -> &[CacheSpec] {
        &[]
    }
    /// Returns the layers with KV caches that the draft block reads in place of one of its own. A
    /// row of such a block sees the positions before its token, which has no row yet.
    fn draft_layers(&self) -> &[usize] {
        &[]
    }
    /// Returns whether the model has a block that drafts tokens.
    fn has_draft_block(&self) -> bool {
        !(self.draft_caches().is_empty() && self.draft_layers().is_empty())
    }
    /// Adds the calls of a step of the draft block; none without one.
    fn build_draft(&self, _: &mut StepBuilder) {}

    /// Returns the value of `general.architecture`.
    fn architecture(&self) -> &'static str {
        self.info().architecture
    }
    /// Returns the number of layers, blocks for draft tokens not counted.
    fn layers(&self) -> usize {
        self.info().layers
    }
    /// Returns the length of a logits row.
    fn vocabulary(&self) -> usize {
        self.info().vocabulary
    }
    /// Returns the length of a hidden row.
    fn width(&self) -> usize {
        self.info().width
    }
    /// Returns the training context length in tokens.
    fn context(&self) -> usize {
        self.info().context
    }
    /// Returns the cache buffers of each layer, for elements of type `cache`.
    fn cache_tensors(&self, cache: CacheType) -> Vec<Vec<CacheTensor>> {
        self.caches().iter().map(|c| c.tensors(cache)).collect()
    }
    /// Returns the bytes of KV cache per token over all layers, for elements of type `cache`.
    fn cache_row_bytes(&self, cache: CacheType) -> usize {
        self.caches().iter().map(|c| c.row_bytes(cache)).sum()
    }
    /// Returns the part of [`Model::cache_row_bytes`] that belongs to sliding-window layers.
    fn window_row_bytes(&self, cache: CacheType) -> usize {
        self.caches()
            .iter()
            .map(|c| c.window_row_bytes(cache))
            .sum()
    }
    /// Returns the longest sliding window of a layer in positions; `None` without windowed layers.
    fn window(&self) -> Option<usize> {
        self.caches().iter().filter_map(CacheSpec::window).max()
    }
    /// Returns the bytes of one sequence's recurrent states over all layers; 0 without states.
    fn state_bytes(&self) -> usize {
        self.caches().iter().map(CacheSpec::state_bytes).sum()
    }
    /// Returns the kinds of cache the model needs in addition to a row per position.
    fn cache_kinds(&self) -> CacheKinds {
        CacheKinds {
            window: self.window(),
            states: self.state_bytes() > 0,
        }
    }
    /// Returns the calls of one step. Plans made with the same `functions` share functions.
    fn plan(&self, options: &Options, functions: &mut Functions) -> Plan {
        let mut step = StepBuilder::new(self.architecture(), options, functions);
        step.apply(self.adapters());
        match options.draft {
            None => self.build(&mut step),
            Some(_) => self.build_draft(&mut step),
        }
        step.finish()
    }
}

/// A model with adapters, or with the cache of its draft block: the rest is that of `model`.
pub(super) struct ExtendedModel {
    pub model: Box<dyn Model>,
    pub adapters: Vec<AppliedAdapter>,
    pub caches: Vec<CacheSpec>,
}

impl Model for ExtendedModel {
    fn info(&self) -> &ModelInfo {
        self.model.info()
    }
    fn tensors(&self) -> &[TensorSpec] {
        self.model.tensors()
    }
    fn caches(&self) -> &[CacheSpec] {
        &self.caches
    }
    fn rope_tables(&self, context: usize) -> Vec<RopeTable> {
        self.model.rope_tables(context)
    }
    fn layer_input(&self) -> usize {
        self.model.layer_input()
    }
    fn is_encoder(&self) -> bool {
        self.model.is_encoder()
    }
    fn adapters(&self) -> &[AppliedAdapter] {
        &self.adapters
    }
    fn build(&self, step: &mut StepBuilder) {
        self.model.build(step);
    }
    fn draft_caches(&self) -> &[CacheSpec] {
        self.model.draft_caches()
    }
    fn draft_layers(&self) -> &[usize] {
        self.model.draft_layers()
    }
    fn build_draft(&self, step: &mut StepBuilder) {
        self.model.build_draft(step);
    }
}

/// Table entry of a supported architecture.
pub struct Architecture {
    /// Value of `general.architecture`.
    pub name: &'static str,
    /// Loads a model of this architecture.
    pub load: fn(&Metadata, &dyn Tensors) -> Result<Box<dyn Model>>,
    /// Lists the tensors of such a model. Reads from the tensor source only the rows of the
    /// embedding and the presence of optional tensors.
    pub tensors: fn(&Metadata, &dyn Tensors) -> Result<Vec<TensorSpec>>,
}
