//! Buffers shared by all steps: hidden rows, RoPE tables and logits.

use super::footprint::layer_input_bytes;
use crate::arch::{Bind, CacheType, Model, RopeTable, hadamard};
use crate::error::Error;
use gristmill_runtime::{Buffer, Device, Memory};

/// RoPE tables are filled in multiples of this many positions.
const ROPE_STEP: usize = 1024;

pub(super) struct Activations {
    hidden: [Buffer; 2],
    /// Per-layer inputs that the model computes from the tokens, and the bytes of one layer's row.
    layer_input: Option<Buffer>,
    layer_bytes: usize,
    rope_tables: Vec<RopeTable>,
    rope: Vec<Buffer>,
    /// Constants of a quantised KV cache: mean rows of the RoPE tables, and signs of the Hadamard
    /// matrix.
    rope_means: Vec<Buffer>,
    hadamard: Option<Buffer>,
    /// Positions with filled RoPE rows, and the capacity in positions.
    rope_filled: usize,
    rows: usize,
    pub logits: Buffer,
    /// Hidden rows that a step of the draft block leaves for the next one, and those between its
    /// layers.
    drafted: Option<[Buffer; 3]>,
}

impl Activations {
    /// Allocates buffers for `tokens` tokens and `logits` rows of logits in a step, and a KV
    /// cache of `rows` positions and type `cache`.
    pub fn new(
        device: &dyn Device,
        model: &dyn Model,
        [tokens, logits, rows]: [usize; 3],
        context: usize,
        cache: CacheType,
    ) -> Result<Activations, Error> {
        let state = |bytes: usize| device.alloc(bytes, Memory::State);
        let hidden = tokens * model.width() * size_of::<f32>();
        let layer_input = layer_input_bytes(model, tokens);
        let rope_tables = model.rope_tables(context);
        let constant = |bytes: &[u8]| -> Result<Buffer, Error> {
            let buffer = state(bytes.len())?;
            device.write(&buffer, 0, bytes)?;
            Ok(buffer)
        };
        let transformed = if cache.is_quantised() {
            &rope_tables[..]
        } else {
            &[]
        };
        let rope_means = transformed
            .iter()
            .map(|t| constant(bytemuck::cast_slice(&t.mean())))
            .collect::<Result<_, _>>()?;
        let hadamard = cache.has_scales().then(|| constant(&hadamard::signs()));
        Ok(Activations {
            hidden: [state(hidden)?, state(hidden)?],
            layer_input: (layer_input > 0).then(|| state(layer_input)).transpose()?,
            layer_bytes: model.layer_input() * size_of::<f32>(),
            rope: rope_tables
                .iter()
                .map(|t| state(rows * t.row_bytes()))
                .collect::<Result<_, _>>()?,
            rope_tables,
            rope_means,
            hadamard: hadamard.transpose()?,
            rope_filled: 0,
            rows,
            logits: state(logits * model.vocabulary() * size_of::<f32>())?,
            drafted: None,
        })
    }
    /// Allocates `bytes` bytes for each buffer of hidden rows of a draft block, if there are any.
    pub fn with_drafted(self, device: &dyn Device, bytes: usize) -> Result<Activations, Error> {
        let alloc = || device.alloc(bytes, Memory::State);
        let drafted = match bytes {
            0 => None,
            _ => Some([alloc()?, alloc()?, alloc()?]),
        };
        Ok(Activations { drafted, ..self })
    }
    /// Returns the input hidden rows of layer `layer`; two buffers alternate.
    pub fn hidden(&self, layer: usize) -> &Buffer {
        &self.hidden[layer % self.hidden.len()]
    }
    /// Returns the buffer for `bind` if it is an activation.
    pub fn bound(&self, bind: &Bind) -> Option<Buffer> {
        match bind {
            Bind::Rope(table) => Some(self.rope[*table].clone()),
            Bind::RopeMean(table) => self.rope_means.get(*table).cloned(),
            Bind::Hadamard => self.hadamard.clone(),
            Bind::Hidden(layer) => Some(self.hidden(*layer).clone()),
            Bind::LayerInput(layer) => {
                let (all, begin) = (self.layer_input.as_ref(), layer * self.layer_bytes);
                let part = all.and_then(|all| all.slice(begin, all.len() - begin).ok());
                Some(part.expect("a model whose layers have inputs says so"))
            }
            Bind::Logits => Some(self.logits.clone()),
            Bind::Drafted => self.drafted.as_ref().map(|[last, ..]| last.clone()),
            Bind::Drafting(layer) => {
                let between = self.drafted.as_ref().map(|[_, between @ ..]| between);
                between.map(|of| of[layer % of.len()].clone())
            }
            _ => None,
        }
    }
    /// Returns whether the RoPE tables cover `positions` positions.
    pub fn has_rope(&self, positions: usize) -> bool {
        positions <= self.rope_filled
    }
    /// Fills the RoPE tables for `positions` positions, rounded up to a multiple of `ROPE_STEP`.
    pub fn fill_rope(&mut self, device: &dyn Device, positions: usize) -> Result<(), Error> {
        if self.has_rope(positions) {
            return Ok(());
        }
        let want = positions.next_multiple_of(ROPE_STEP).min(self.rows);
        for (table, buffer) in self.rope_tables.iter().zip(&self.rope) {
            device.write(buffer, 0, bytemuck::cast_slice(&table.rows(want)))?;
        }
        self.rope_filled = want;
        Ok(())
    }
    pub fn buffers(&self) -> impl Iterator<Item = &Buffer> {
        let Activations {
            hidden,
            layer_input,
            rope,
            rope_means,
            hadamard,
            logits,
            drafted,
            ..
        } = self;
        std::iter::once(logits)
            .chain(drafted.iter().flatten())
            .chain(hidden)
            .chain(rope)
            .chain(rope_means)
            .chain(hadamard)
            .chain(layer_input)
    }
}
