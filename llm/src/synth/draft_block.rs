//! A new block for draft tokens of a model, with random weights: what its training begins with.

use super::config::tensor;
use super::plan::file_type;
use super::{Error, SynthPlan, fill};
use crate::arch::{self, DRAFT_PROJECTION, Tensors};
use crate::gguf::{Gguf, Metadata};
use gristmill_encodings::F32;
use gristmill_uop::encoding::EncodingRef;

/// Option of a quantisation that adds a block for draft tokens: see [`super::plan`].
pub const DRAFT_BLOCK: &str = "mtp";

/// A model's tensors, and those of a block like its last one behind it.
struct Extended<'a> {
    file: &'a Gguf,
    /// Number of the new block.
    block: u32,
}

impl Tensors for Extended<'_> {
    fn find(&self, name: &str) -> Option<(Vec<u64>, EncodingRef)> {
        let own = format!("blk.{}.", self.block);
        let Some(short) = name.strip_prefix(&own) else {
            return Tensors::find(self.file, name);
        };
        match short == DRAFT_PROJECTION {
            true => Some((Vec::new(), &F32)),
            false => Tensors::find(self.file, &format!("blk.{}.{short}", self.block - 1)),
        }
    }
    fn floats(&self, name: &str) -> arch::Result<Vec<f32>> {
        Tensors::floats(self.file, name)
    }
}

/// Adds a block for draft tokens with random weights in f32, a function of names and `seed`, to a
/// model, unless it has one: normal with a standard deviation of 0.02, less where it adds to its
/// residual stream; norms are 1, biases 0.
///
/// # Errors
/// Returns an error if the architecture knows no such block.
pub fn add_draft_block(file: &mut Gguf, seed: u64) -> Result<(), Error> {
    let architecture = file.architecture()?.to_owned();
    let key = |name: &str| format!("{architecture}.{name}");
    let mut metadata = file.metadata().clone();
    let blocks = metadata.need(&key("block_count"), Metadata::u32)?;
    let drafts = metadata.u32(&key("nextn_predict_layers"))?.unwrap_or(0);
    let block = blocks.saturating_sub(drafts);
    metadata.insert(key("block_count"), block + 1);
    metadata.insert(key("nextn_predict_layers"), 1u32);
    let specs = arch::tensors(&metadata, &Extended { file, block })?;
    let own = specs
        .into_iter()
        .filter(|spec| spec.layer == Some(block as usize));
    let plain = file_type("f32")?;
    let tensors = own.map(|spec| {
        let mut tensor = tensor(spec, plain, u64::from(block) + 1)?;
        tensor.seed = fill::seed(&tensor.name).wrapping_add(fill::word(seed, 0));
        Ok::<_, Error>(tensor)
    });
    let tensors = tensors.collect::<Result<Vec<_>, _>>()?;
    if tensors.is_empty() {
        return Err(Error::Option(DRAFT_BLOCK.to_owned()));
    }
    let plan = SynthPlan { metadata, tensors };
    let side = plan.open()?;
    Ok(file.attach_draft_block(side)?)
}
