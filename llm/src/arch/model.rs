//! What a model is to whoever runs it.

use super::cache::{CacheSpec, Plane};
use super::error::Result;
use super::lookup::Tensors;
use super::plan::{Functions, Options, Plan};
use super::pools::CacheKinds;
use super::rope::RopeTable;
use super::step::StepBuilder;
use super::tensors::TensorSpec;
use crate::gguf::Metadata;
use gristmill_uop::dtype::Scalar;

/// What every model has.
#[derive(Clone, PartialEq, Debug)]
pub struct ModelInfo {
    /// `general.architecture`.
    pub architecture: &'static str,
    /// Number of layers, blocks for draft tokens not counted.
    pub layers: usize,
    /// Length of a logits row.
    pub vocabulary: usize,
    /// Length of a hidden row.
    pub width: usize,
    /// The longest context the model was made for, in tokens.
    pub context: usize,
    /// Name and value of what was read from the file, for people.
    pub summary: Vec<(&'static str, String)>,
    /// Remarks on the file that a user should see.
    pub warnings: Vec<String>,
}

/// A model that can be run.
pub trait Model: Send + Sync {
    /// What it is, as far as that can be said of every model.
    fn info(&self) -> &ModelInfo;
    /// Its tensors: those that a file must have, and the others that this one has.
    fn tensors(&self) -> &[TensorSpec];
    /// What each layer keeps of tokens.
    fn caches(&self) -> &[CacheSpec];
    /// The tables of rotations that its steps read, for a context of so many tokens.
    fn rope_tables(&self, context: usize) -> Vec<RopeTable>;
    /// Numbers that each layer gets of every token besides the hidden row, made once before the first layer; 0 if there are none.
    fn layer_input(&self) -> usize {
        0
    }
    /// Writes the calls of one step, in order.
    fn build(&self, step: &mut StepBuilder);

    /// `general.architecture`.
    fn architecture(&self) -> &'static str {
        self.info().architecture
    }
    /// Number of layers (draft blocks not counted).
    fn layers(&self) -> usize {
        self.info().layers
    }
    /// Length of a logits row.
    fn vocabulary(&self) -> usize {
        self.info().vocabulary
    }
    /// Length of a hidden row.
    fn width(&self) -> usize {
        self.info().width
    }
    /// The longest context the model was made for, in tokens.
    fn context(&self) -> usize {
        self.info().context
    }
    /// The buffers of each layer's cache, where numbers are stored so.
    fn planes(&self, cache: Scalar) -> Vec<Vec<Plane>> {
        self.caches().iter().map(|c| c.planes(cache)).collect()
    }
    /// Bytes of the cache that one token takes, in all layers, where numbers are stored so.
    fn cache_row_bytes(&self, cache: Scalar) -> usize {
        self.caches().iter().map(|c| c.row_bytes(cache)).sum()
    }
    /// The same of layers whose tokens see a window, which have no more rows than that needs: see [`Options::ring`].
    fn window_row_bytes(&self, cache: Scalar) -> usize {
        self.caches().iter().map(|c| c.window_row_bytes(cache)).sum()
    }
    /// The widest window of a layer, in positions, where layers have windows.
    fn window(&self) -> Option<usize> {
        self.caches().iter().filter_map(CacheSpec::window).max()
    }
    /// Bytes of the states of all layers, whatever the number of tokens; 0 if there are none.
    fn state_bytes(&self) -> usize {
        self.caches().iter().map(CacheSpec::state_bytes).sum()
    }
    /// What it has of sequences besides a row of every position.
    fn cache_kinds(&self) -> CacheKinds {
        CacheKinds { window: self.window(), states: self.state_bytes() > 0 }
    }
    /// The calls of one step, in order. Functions are shared with every plan made with the same `functions`.
    fn plan(&self, options: &Options, functions: &mut Functions) -> Plan {
        let mut step = StepBuilder::new(self.architecture(), options, functions);
        self.build(&mut step);
        step.finish()
    }
}

/// One architecture.
pub struct Architecture {
    /// `general.architecture`.
    pub name: &'static str,
    /// Reads a model of it.
    pub load: fn(&Metadata, &dyn Tensors) -> Result<Box<dyn Model>>,
    /// The table of tensors of such a model. Of what is there it is asked for the rows of the embedding, and whether a tensor is there whose absence has a meaning.
    pub tensors: fn(&Metadata, &dyn Tensors) -> Result<Vec<TensorSpec>>,
}
