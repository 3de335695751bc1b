//! `deepseek2`: latent attention (MLA) with dense or mixture-of-experts feed-forwards. DeepSeek-V2 and V3, GLM-4.7-Flash,
//! Youtu-LLM, Kimi-K2 and Moonlight are this one graph with different numbers: `docs/deepseek2.md`.

pub mod hyper;
mod layer;
mod summary;
mod tensors;

use super::cache::CacheSpec;
use super::ends::Ends;
use super::rope::{RopeTable, frequencies};
use super::step::StepBuilder;
use super::tensors::{Checked, TensorSpec};
use super::{Architecture, Model, ModelInfo, Result, Tensors};
pub use hyper::Hyper;
use hyper::NAME;

/// This architecture.
pub(super) const ARCHITECTURE: Architecture = Architecture {
    name: NAME,
    load: |metadata, tensors| Ok(Box::new(Deepseek2::new(Hyper::read(metadata, tensors)?, tensors)?)),
    tensors: |metadata, there| Ok(tensors::table(&Hyper::read(metadata, there)?, there)),
};

/// A model of this architecture.
#[derive(Clone, Debug)]
pub struct Deepseek2 {
    /// What it is, in numbers.
    hyper: Hyper,
    info: ModelInfo,
    tensors: Checked,
    caches: Vec<CacheSpec>,
}

impl Deepseek2 {
    /// A model of these hyper-parameters, whose tensors are checked against them. Blocks for draft tokens and tensors it
    /// does not know are ignored.
    ///
    /// # Errors
    /// When a tensor is missing or has other dims.
    pub fn new(hyper: Hyper, tensors: &dyn Tensors) -> Result<Deepseek2> {
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
        let caches = vec![CacheSpec { components: vec![h.cache()], ..CacheSpec::default() }; h.layers];
        let tensors = Checked::new(tensors::table(h, tensors), h.layers, tensors)?;
        Ok(Deepseek2 { hyper, info, tensors, caches })
    }
    /// What it is, in numbers.
    pub fn hyper(&self) -> &Hyper {
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
        vec![RopeTable { magnitude: h.magnitude, ..RopeTable::new(frequencies) }]
    }
    fn build(&self, step: &mut StepBuilder) {
        let h = &self.hyper;
        let ends = Ends::plain(h.layers, h.d, h.vocabulary, h.eps);
        ends.embed(step, &self.tensors.globals);
        for (layer, weights) in self.tensors.blocks.iter().enumerate() {
            layer::block(step, h, weights, layer);
        }
        ends.head(step, &self.tensors.globals);
    }
}
