//! `deepseek2`: multi-head latent attention (MLA) with dense or mixture-of-experts feed-forwards.
//!
//! DeepSeek-V2 and V3, GLM-4.7-Flash, Youtu-LLM, Kimi-K2 and Moonlight share this graph and differ
//! in hyper-parameters only: `docs/deepseek2.md`.

pub mod hyper;
mod layer;
mod summary;
mod tensors;

use super::cache::CacheSpec;
use super::embed_head::EmbedAndHead;
use super::rope::{RopeTable, frequencies};
use super::step::StepBuilder;
use super::tensors::{Checked, TensorSpec};
use super::{Architecture, Model, ModelInfo, Result, Tensors};
pub use hyper::DeepseekHparams;
use hyper::NAME;

pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    load: |metadata, tensors| {
        Ok(Box::new(Deepseek2::new(
            DeepseekHparams::read(metadata, tensors)?,
            tensors,
        )?))
    },
    tensors: |metadata, there| {
        Ok(tensors::table(
            &DeepseekHparams::read(metadata, there)?,
            there,
        ))
    },
};

/// A loaded `deepseek2` model.
#[derive(Clone, Debug)]
pub struct Deepseek2 {
    hyper: DeepseekHparams,
    info: ModelInfo,
    tensors: Checked,
    caches: Vec<CacheSpec>,
    draft_caches: Vec<CacheSpec>,
}

impl Deepseek2 {
    /// Creates a model and checks its tensors against the hyper-parameters.Ignores unknown
    /// tensors.
    ///
    /// # Errors
    /// Returns an error if a tensor is missing or has other dims.
    pub fn new(hyper: DeepseekHparams, tensors: &dyn Tensors) -> Result<Deepseek2> {
        let h = &hyper;
        let info = ModelInfo {
            architecture: NAME,
            layers: h.layers,
            vocabulary: h.vocabulary,
            width: h.d,
            context: h.context,
            summary: summary::summary(h),
            warnings: h.warnings.clone(),
        };
        let cache = CacheSpec {
            components: vec![h.cache()],
            ..CacheSpec::default()
        };
        let caches = vec![cache.clone(); h.layers];
        let tensors = Checked::new(tensors::table(h, tensors), h.layers, tensors)?;
        Ok(Deepseek2 {
            hyper,
            info,
            draft_caches: vec![cache; tensors.draft_blocks()],
            tensors,
            caches,
        })
    }
    fn ends(&self) -> EmbedAndHead {
        let h = &self.hyper;
        EmbedAndHead::plain(h.layers, h.d, h.vocabulary, h.eps)
    }
    /// Returns the validated hyper-parameters.
    pub fn hyper(&self) -> &DeepseekHparams {
        &self.hyper
    }
}

impl Model for Deepseek2 {
    fn info(&self) -> &ModelInfo {
        &self.info
    }
    fn tensors(&self) -> &[TensorSpec] {
        &self.tensors.table
    }
    fn caches(&self) -> &[CacheSpec] {
        &self.caches
    }
    fn rope_tables(&self, _: usize) -> Vec<RopeTable> {
        let h = &self.hyper;
        let frequencies = frequencies(h.rope, h.base, h.scaling);
        vec![RopeTable {
            magnitude: h.magnitude,
            ..RopeTable::new(frequencies)
        }]
    }
    fn build(&self, step: &mut StepBuilder) {
        let (h, ends) = (&self.hyper, self.ends());
        ends.embed(step, &self.tensors.globals);
        for (layer, weights) in self.tensors.layers() {
            layer::block(step, h, weights, layer);
        }
        ends.head(step, &self.tensors.globals);
    }
    fn draft_caches(&self) -> &[CacheSpec] {
        &self.draft_caches
    }
    fn build_draft(&self, step: &mut StepBuilder) {
        self.ends()
            .draft(step, &self.tensors, &|step, layer, weights| {
                layer::block(step, &self.hyper, weights, layer);
            });
    }
}
