//! `deepseek2`: latent attention (MLA) with dense or mixture-of-experts feed-forwards. DeepSeek-V2 and V3, GLM-4.7-Flash,
//! Youtu-LLM, Kimi-K2 and Moonlight are this one graph with different numbers: `docs/deepseek2.md`.

mod blocks;
mod feed_forward;
pub mod hyper;
mod moe;
pub mod rope;
mod step;
mod summary;
mod weights;

use super::{AttentionForm, Bind, Call, Functions, Logits, Model, Options, Plan, Result, StateSpec, Tensors};
use crate::gguf::Metadata;
use gristmill_uop::function::Function;
pub use hyper::Hyper;
use weights::Weights;

/// A model of this architecture.
#[derive(Clone, Debug)]
pub struct Deepseek2 {
    /// What it is, in numbers.
    hyper: Hyper,
    globals: Weights,
    blocks: Vec<Weights>,
}

/// The model of a file.
///
/// # Errors
/// See [`Deepseek2::new`].
pub fn load(metadata: &Metadata, tensors: &dyn Tensors) -> Result<Box<dyn Model>> {
    Ok(Box::new(Deepseek2::new(Hyper::read(metadata, tensors)?, tensors)?))
}

impl Deepseek2 {
    /// A model of these hyper-parameters, whose tensors are checked against them. Blocks for draft tokens and tensors it
    /// does not know are ignored.
    ///
    /// # Errors
    /// When a tensor is missing or has other dims.
    pub fn new(hyper: Hyper, tensors: &dyn Tensors) -> Result<Deepseek2> {
        let globals = weights::globals(&hyper, tensors)?;
        let blocks = (0..hyper.layers).map(|l| weights::block(&hyper, l, tensors)).collect::<Result<_>>()?;
        Ok(Deepseek2 { hyper, globals, blocks })
    }
    /// What it is, in numbers.
    pub fn hyper(&self) -> &Hyper {
        &self.hyper
    }
}

impl Model for Deepseek2 {
    fn architecture(&self) -> &'static str {
        "deepseek2"
    }
    fn layers(&self) -> usize {
        self.hyper.layers
    }
    fn vocabulary(&self) -> usize {
        self.hyper.vocabulary
    }
    fn width(&self) -> usize {
        self.hyper.d
    }
    fn partial(&self, form: AttentionForm) -> usize {
        let h = &self.hyper;
        // With its largest score and its sum, each twice.
        h.heads * (4 + if form == AttentionForm::Absorbed { h.kv_rank } else { h.value })
    }
    fn context(&self) -> usize {
        self.hyper.context
    }
    fn rope_table(&self, positions: usize) -> Vec<f32> {
        rope::table(&self.hyper, positions)
    }
    fn state(&self, options: &Options) -> StateSpec {
        StateSpec::new(options.rows, self.hyper.cached(), options.cache)
    }
    fn summary(&self) -> Vec<(&'static str, String)> {
        summary::summary(&self.hyper)
    }
    fn warnings(&self) -> &[String] {
        &self.hyper.warnings
    }
    fn plan(&self, options: &Options, functions: &mut Functions) -> Plan {
        let h = &self.hyper;
        let mut calls = Vec::new();
        let mut call = |(function, binds): (Function, Vec<Bind>)| {
            calls.push(Call { function: functions.share(function), binds });
        };
        call(blocks::embed(h, &self.globals, options));
        for (layer, weights) in self.blocks.iter().enumerate() {
            call(blocks::block(h, weights, layer, options));
        }
        if options.logits != Logits::None {
            call(blocks::head(h, &self.globals, options));
        }
        Plan { calls }
    }
}
