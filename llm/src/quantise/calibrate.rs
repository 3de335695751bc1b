//! Makes an importance matrix: runs a model over a text and adds up the squares of the inputs of
//! its matrices.

use super::importance::Entry;
use crate::arch::{
    self, Bind, BoundCall, CacheType, ExpertTile, Functions, Model, Options, Plan, TrainingShape,
};
use crate::error::{Error, Progress};
use crate::gguf::Gguf;
use crate::load::{self, Weights};
use gristmill_backend::{Opened, Precision};
use gristmill_runtime::{Buffer, Device, Memory, Replay};
use gristmill_tensor::jit::{Call, Jit, Ready};
use gristmill_uop::function::Function;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Sums of a weight on the device.
#[derive(Default)]
struct Sums {
    /// Sums of squares, `[matrices, in]`.
    squares: Option<Buffer>,
    /// Rows of each expert, if the weight has experts.
    rows: Option<Buffer>,
}

/// A model that runs over chunks of a text.
pub struct Calibration {
    device: Arc<dyn Device>,
    replay: Box<dyn Replay>,
    tokens: Buffer,
    sums: BTreeMap<String, Sums>,
    chunk: usize,
    chunks: u32,
    vocabulary: usize,
    _weights: Weights,
}

/// Refuses models with layers that a pass without KV cache does not know.
fn check_supported(model: &dyn Model) -> Result<(), Error> {
    let caches = model.caches();
    let found = match () {
        _ if model.state_bytes() > 0 => "recurrent layers",
        // A layer without a cache of its own reads that of another layer.
        _ if caches.iter().any(|c| c.row_bytes(CacheType::F32) == 0) => {
            "layers that share a KV cache"
        }
        _ => return Ok(()),
    };
    Err(Error::Model(arch::Error::Feature {
        key: "an importance matrix".into(),
        found: found.into(),
    }))
}

impl Calibration {
    /// Loads a model for chunks of `chunk` tokens.
    ///
    /// # Errors
    /// When the model is malformed, has recurrent layers or layers that share a KV cache, memory is
    /// short, or the device fails.
    pub fn load(
        file: &Gguf,
        mut opened: Opened,
        chunk: usize,
        progress: &dyn Fn(Progress),
    ) -> Result<Calibration, Error> {
        opened.target.interleave = false;
        let model = arch::load(file.metadata(), file)?;
        check_supported(model.as_ref())?;
        let shape = TrainingShape {
            sequences: 1,
            length: chunk,
            packed: false,
            loss_rows: chunk,
        };
        let tile: ExpertTile = Options::TILE;
        let options = shape.options([1, chunk], tile);
        let plan = arch::calibration_plan(model.as_ref(), &options, &mut Functions::new());
        let mut jit = Jit::new(opened.with_precision(Precision::Exact));
        let functions: Vec<Arc<Function>> = plan.functions().into_iter().cloned().collect();
        let ready = jit.plan(&functions, &|done, total| {
            progress(Progress::Planning(done, total));
        });
        let arena = ready
            .iter()
            .map(|of| of.compiled.arena)
            .max()
            .unwrap_or(0)
            .max(64);
        let layouts = load::layouts(
            &mut jit,
            &[Plan {
                calls: plan.calls.clone(),
            }],
        )?;
        let ready = jit.prepare(&functions, &|done, total| {
            progress(Progress::Compiling(done, total));
        })?;
        let weights = load::weights(file, &mut jit, &layouts, Weights::default(), progress)?;
        let device = jit.device().clone();
        let arena = device.alloc(arena, Memory::Scratch)?;
        let prepared = functions.iter().map(Arc::as_ptr).zip(ready).collect();
        let mut binder = Binder::new(&*device, model.as_ref(), chunk, &weights)?;
        let calls = plan.calls.iter().map(|call| binder.call(call, &prepared));
        let calls: Vec<Call> = calls.collect::<Result<_, _>>()?;
        let (sums, tokens) = (binder.sums, binder.tokens);
        Ok(Calibration {
            replay: jit.capture(&calls, &arena)?,
            device,
            tokens,
            sums,
            chunk,
            chunks: 0,
            vocabulary: model.vocabulary(),
            _weights: weights,
        })
    }
    /// Runs the model over one chunk of tokens.
    ///
    /// # Errors
    /// When a token is not in the vocabulary, or the device fails.
    ///
    /// # Panics
    /// If the chunk has another length.
    pub fn add(&mut self, tokens: &[u32]) -> Result<(), Error> {
        assert_eq!(tokens.len(), self.chunk, "tokens of a chunk");
        let vocabulary = self.vocabulary;
        let bad = tokens.iter().find(|token| **token as usize >= vocabulary);
        if let Some(&token) = bad {
            return Err(Error::Token { token, vocabulary });
        }
        self.device
            .write(&self.tokens, 0, bytemuck::cast_slice(tokens))?;
        self.replay.replay(&[])?;
        self.chunks += 1;
        Ok(())
    }
    /// Returns the sums of every weight over all chunks.
    ///
    /// # Errors
    /// When the device fails.
    pub fn entries(&self) -> Result<BTreeMap<String, Entry>, Error> {
        let read = |buffer: &Buffer| {
            let mut out = vec![0f32; buffer.len() / size_of::<f32>()];
            self.device
                .read(buffer, 0, bytemuck::cast_slice_mut(&mut out))?;
            Ok::<_, Error>(out)
        };
        let mut entries = BTreeMap::new();
        for (name, of) in &self.sums {
            let squares = of
                .squares
                .as_ref()
                .map(read)
                .transpose()?
                .unwrap_or_default();
            let rows = match &of.rows {
                Some(rows) => read(rows)?,
                None => vec![(self.chunks as usize * self.chunk) as f32],
            };
            let mut entry = Entry::default();
            entry.add(&squares, &rows);
            entries.insert(name.clone(), entry);
        }
        Ok(entries)
    }
}

/// Finds the buffers of a plan's calls.
struct Binder<'a> {
    device: &'a dyn Device,
    weights: &'a Weights,
    tokens: Buffer,
    /// Two alternating buffers of hidden rows.
    hidden: [Buffer; 2],
    layer_input: Option<Buffer>,
    /// Bytes of the input of one layer.
    layer_input_bytes: usize,
    rope: Vec<Buffer>,
    sums: BTreeMap<String, Sums>,
}

impl<'a> Binder<'a> {
    fn new(
        device: &'a dyn Device,
        model: &dyn Model,
        chunk: usize,
        weights: &'a Weights,
    ) -> Result<Binder<'a>, Error> {
        let numbers = |count: usize| device.alloc(count * size_of::<f32>(), Memory::Scratch);
        let table = |table: &arch::RopeTable| {
            let values = table.rows(chunk);
            let buffer = numbers(values.len())?;
            device.write(&buffer, 0, bytemuck::cast_slice(&values))?;
            Ok::<_, Error>(buffer)
        };
        let rope = model
            .rope_tables(chunk)
            .iter()
            .map(table)
            .collect::<Result<_, _>>()?;
        let rows = || numbers(chunk * model.width());
        let layer_input = model.layer_input() * model.layers() * chunk;
        Ok(Binder {
            device,
            weights,
            tokens: numbers(chunk)?,
            hidden: [rows()?, rows()?],
            layer_input: (layer_input > 0)
                .then(|| numbers(layer_input))
                .transpose()?,
            layer_input_bytes: model.layer_input() * size_of::<f32>(),
            rope,
            sums: BTreeMap::new(),
        })
    }
    fn call(
        &mut self,
        call: &BoundCall,
        prepared: &FxHashMap<*const Function, Arc<Ready>>,
    ) -> Result<Call, Error> {
        let slots = call.binds.iter().zip(&call.function.slots);
        let args = slots.map(|(bind, slot)| {
            let elements: i64 = slot.dims.iter().product();
            self.buffer(bind, elements as usize)
        });
        Ok(Call {
            args: args.collect::<Result<_, _>>()?,
            function: prepared[&Arc::as_ptr(&call.function)].clone(),
        })
    }
    fn buffer(&mut self, bind: &Bind, elements: usize) -> Result<Buffer, Error> {
        match bind {
            Bind::Tokens => Ok(self.tokens.clone()),
            Bind::Hidden(layer) => Ok(self.hidden[layer % 2].clone()),
            Bind::LayerInput(layer) => {
                let all = self
                    .layer_input
                    .as_ref()
                    .expect("a model with layer inputs");
                let at = layer * self.layer_input_bytes;
                Ok(all.slice(at, all.len() - at)?)
            }
            Bind::Rope(table) => Ok(self.rope[*table].clone()),
            Bind::Weight(name) => Ok(self.weights.get(name).expect("a loaded weight").clone()),
            Bind::Squares(name) => {
                let sums = self.sums.entry(name.clone()).or_default();
                zeros(self.device, &mut sums.squares, elements)
            }
            Bind::ExpertRows(name) => {
                let sums = self.sums.entry(name.clone()).or_default();
                zeros(self.device, &mut sums.rows, elements)
            }
            other => panic!("a pass that measures activations has no {other:?}"),
        }
    }
}

/// Returns a buffer of zeros, or the one that is there.
fn zeros(
    device: &dyn Device,
    buffer: &mut Option<Buffer>,
    elements: usize,
) -> Result<Buffer, Error> {
    if let Some(known) = buffer {
        return Ok(known.clone());
    }
    let new = device.alloc(elements * size_of::<f32>(), Memory::State)?;
    device.write(&new, 0, bytemuck::cast_slice(&vec![0f32; elements]))?;
    *buffer = Some(new.clone());
    Ok(new)
}
