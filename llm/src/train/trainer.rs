//! A model on a device, ready to be trained: buffers, captured passes, parameters.

use super::optimizer::{self, SCALARS, SQUARES, UpdateScalars};
use super::parameters::Places;
use crate::arch::{
    self, Bind, BoundCall, CacheType, Functions, Model, Options, Plan, Trained, TrainingPlan,
    TrainingProducts, TrainingShape,
};
use crate::engine::expert_tile;
use crate::error::{Error, Progress};
use crate::gguf::Gguf;
use crate::load::{self, Weights};
use gristmill_backend::{Opened, Precision};
use gristmill_runtime::{Buffer, Device, Memory, Replay};
use gristmill_tensor::jit::{Call, Jit, Ready};
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::Function;
use gristmill_uop::machine::MachineKind;
use gristmill_uop::program::Program;
use gristmill_uop::target::Target;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// What a trainer is compiled for.
#[derive(Clone, Debug)]
pub struct TrainerOptions {
    /// Sizes of a step.
    pub shape: TrainingShape,
    /// Adapters, or all weights.
    pub trained: Trained,
    /// Largest norm of all gradients together; larger ones are scaled down.
    pub clip: f64,
    /// Weight decay of tensors of two and more axes.
    pub weight_decay: f64,
    /// Whether all products are computed in f32.
    pub exact: bool,
}

/// Rows of one pass: `sequences · length` of each.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TrainingBatch {
    /// Token ids, row-major `[sequences, length]`.
    pub tokens: Vec<u32>,
    /// Position of each token in its example.
    pub positions: Vec<u32>,
    /// The token that follows each.
    pub targets: Vec<u32>,
    /// Weight of each target in the loss; 0 if it is none.
    pub weights: Vec<f32>,
}

/// Loss and gradient norm of a step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StepLoss {
    /// Sum of weighted negative log-likelihoods, in nats.
    pub loss: f32,
    /// L2 norm of all gradients together, before clipping.
    pub gradient_norm: f32,
}

/// Arrays of one number a parameter; there are [`ARRAYS`].
struct Arrays {
    parameters: Buffer,
    gradients: Buffer,
    first_moments: Buffer,
    second_moments: Buffer,
}

const ARRAYS: u64 = 4;

/// Inputs and results of passes.
struct Activations {
    tokens: Buffer,
    positions: Buffer,
    targets: Buffer,
    weights: Buffer,
    loss: Buffer,
    /// Hidden rows before each layer, and after the last; those of a draft block follow.
    hidden: Vec<Buffer>,
    /// Hidden row before each token, for a draft block.
    draft_rows: Buffer,
    layers: usize,
    gradients: [Buffer; 2],
    layer_input: Option<Buffer>,
    rope: Vec<Buffer>,
}

/// A model being trained.
pub struct Trainer {
    device: Arc<dyn Device>,
    model: Box<dyn Model>,
    options: TrainerOptions,
    places: Places,
    arrays: Arrays,
    activations: Activations,
    /// Numbers of the update of each range of parameters.
    scalars: Vec<RangeScalars>,
    pass: Box<dyn Replay>,
    /// Description of every launch of `pass`.
    launches: Vec<String>,
    evaluation: Box<dyn Replay>,
    squares: Box<dyn Replay>,
    /// Sums of squares of gradients, and the norm that follows from them.
    sums: Buffer,
    norm: f64,
    update: Box<dyn Replay>,
    steps: u64,
    _weights: Weights,
}

/// Memory of a run in bytes, known before anything is allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrainingMemory {
    /// Packed weights that are not trained.
    pub weights: u64,
    /// Parameters, gradients and moments.
    pub parameters: u64,
    /// Hidden rows, tables and intermediates of a pass.
    pub activations: u64,
}

impl TrainingMemory {
    /// Bytes of all three together.
    pub fn total(&self) -> u64 {
        self.weights + self.parameters + self.activations
    }
}

/// Tokens of a pass from which matrix units pay: those that share a dequantised weight.
const MIN_OF_HALVES: usize = 128;
/// f32 operations of a pass by token and weight: two forward, two to compute a layer again, two
/// back.
const OPERATIONS: f64 = 6.0;

/// How a run computes products on a machine: with bf16 operands on matrix units, where they pay,
/// and in f32 elsewhere.
fn products(target: &Target, model: &dyn Model, options: &TrainerOptions) -> TrainingProducts {
    let (machine, shape) = (&target.machine, &options.shape);
    let has_units = machine.kind == MachineKind::Gpu && machine.fragment(Scalar::BF16).is_some();
    let sizes = model
        .tensors()
        .iter()
        .map(|t| t.dims.iter().product::<usize>());
    let weights = sizes.sum::<usize>() as f64;
    let seconds = OPERATIONS * weights * shape.tokens() as f64 / machine.operations;
    let share = shape.tokens().min(shape.loss_rows) >= MIN_OF_HALVES;
    match !options.exact
        && has_units
        && share
        && seconds >= machine.gpu_facts().training_pass_seconds
    {
        true => TrainingProducts {
            operands: Scalar::BF16,
            tile: expert_tile(target),
        },
        false => TrainingProducts {
            operands: Scalar::F32,
            tile: Options::TILE,
        },
    }
}

/// A model whose step of training is planned, not yet loaded.
pub struct PlannedTraining<'a> {
    file: &'a Gguf,
    model: Box<dyn Model>,
    options: TrainerOptions,
    jit: Jit,
    plan: TrainingPlan,
    places: Places,
    updates: Vec<RangeUpdate>,
    squares: Arc<Function>,
    layouts: load::Layouts,
    arena: usize,
}

/// Scalars of the update of one range of parameters, and the range's weight decay.
type RangeScalars = (Buffer, f64);

/// The update of one range of parameters.
struct RangeUpdate {
    function: Arc<Function>,
    range: std::ops::Range<usize>,
    weight_decay: f64,
}

impl<'a> PlannedTraining<'a> {
    /// Plans the steps of a model.
    ///
    /// # Errors
    /// When the model is malformed or unsupported, or needs more memory than there is.
    pub fn new(
        file: &'a Gguf,
        mut opened: Opened,
        options: TrainerOptions,
        progress: &dyn Fn(Progress),
    ) -> Result<PlannedTraining<'a>, Error> {
        // Forward and backward products read a weight in different orders; the file's serves both.
        opened.target.interleave = false;
        let model = arch::load(file.metadata(), file)?;
        check_supported(model.as_ref(), &options.trained)?;
        let products = products(&opened.target, model.as_ref(), &options);
        let opened = opened.with_precision(match products.operands {
            Scalar::F32 => Precision::Exact,
            _ => Precision::Half,
        });
        let jit = Jit::new(opened);
        let mut functions = Functions::new();
        let plan = arch::training_plan(
            model.as_ref(),
            options.shape,
            &options.trained,
            products,
            &mut functions,
        );
        let places = Places::new(plan.parameters());
        let ranges = places.ranges().into_iter().zip([options.weight_decay, 0.0]);
        let updates = ranges
            .filter(|(range, _)| !range.is_empty())
            .map(|(range, weight_decay)| RangeUpdate {
                function: functions.share(optimizer::update(range.len())),
                range,
                weight_decay,
            })
            .collect();
        let squares = functions.share(optimizer::squares(places.len()));
        let mut planned = PlannedTraining {
            file,
            model,
            options,
            jit,
            plan,
            places,
            updates,
            squares,
            layouts: load::Layouts::default(),
            arena: 0,
        };
        let functions = planned.functions();
        let ready = planned.jit.plan(&functions, &|done, total| {
            progress(Progress::Planning(done, total))
        });
        let arenas = ready.iter().map(|f| f.compiled.arena);
        planned.arena = arenas.max().unwrap_or(0).max(64);
        let calls = planned.plan.calls().cloned().collect();
        planned.layouts = load::layouts(&mut planned.jit, &[Plan { calls }])?;
        planned.check_memory()?;
        Ok(planned)
    }
    fn functions(&self) -> Vec<Arc<Function>> {
        let calls = self.plan.calls().map(|call| call.function.clone());
        let updates = self.updates.iter().map(|u| u.function.clone());
        calls.chain(updates).chain([self.squares.clone()]).collect()
    }
    /// Memory that the run will take.
    pub fn memory(&self) -> TrainingMemory {
        let size = size_of::<f32>() as u64;
        let rows = self.options.shape.tokens()
            * Activations::row_floats(self.model.as_ref(), &self.options);
        TrainingMemory {
            weights: load::missing(self.file, &self.layouts, &Weights::default()),
            parameters: ARRAYS * size * self.places.len() as u64,
            activations: self.arena as u64 + size * rows as u64,
        }
    }
    /// Places of the parameters.
    pub fn places(&self) -> &Places {
        &self.places
    }
    fn check_memory(&self) -> Result<(), Error> {
        const MB: u64 = 1_000_000;
        let (memory, available) = (self.memory(), self.jit.device().available());
        let Some(available) = available.filter(|&available| available < memory.total()) else {
            return Ok(());
        };
        // Hidden rows and most intermediates grow with the tokens of a pass.
        let fixed = memory.weights + memory.parameters;
        let of_token = memory.activations / self.options.shape.tokens() as u64;
        Err(Error::TrainingMemory {
            need: memory.total() / MB,
            available: available / MB,
            fits: available.saturating_sub(fixed) / of_token.max(1),
        })
    }
    /// Compiles the kernels, loads the weights and captures the passes. Parameters are zero until
    /// they are written.
    ///
    /// # Errors
    /// When memory is short, or the device fails.
    pub fn load(self, progress: &dyn Fn(Progress)) -> Result<Trainer, Error> {
        let functions = self.functions();
        let PlannedTraining {
            file,
            model,
            options,
            mut jit,
            plan,
            places,
            updates,
            squares,
            layouts,
            arena,
        } = self;
        let ready = jit.prepare(&functions, &|done, total| {
            progress(Progress::Compiling(done, total))
        })?;
        let weights = load::weights(file, &mut jit, &layouts, Weights::default(), progress)?;
        let device = jit.device().clone();
        let arena = device.alloc(arena, Memory::Scratch)?;
        let arrays = Arrays::new(&*device, places.len())?;
        let activations = Activations::new(&*device, model.as_ref(), &options)?;
        let prepared = functions.iter().map(Arc::as_ptr).zip(ready).collect();
        let binder = Binder {
            prepared,
            weights: &weights,
            arrays: &arrays,
            activations: &activations,
            places: &places,
            shape: options.shape,
            width: model.width(),
        };
        let [pass, evaluation] = binder.passes(&plan)?;
        let sums = device.alloc(places.len() / SQUARES * size_of::<f32>(), Memory::Scratch)?;
        let squares = binder.bound(&squares, vec![arrays.gradients.clone(), sums.clone()]);
        let (update, scalars) = binder.updates(&updates, &*device)?;
        let launches = pass.iter().flat_map(launches).collect();
        let capture = |calls: &[Call]| jit.capture(calls, &arena);
        let (pass, evaluation) = (capture(&pass)?, capture(&evaluation)?);
        let (squares, update) = (capture(&[squares])?, capture(&update)?);
        Ok(Trainer {
            device,
            model,
            options,
            places,
            arrays,
            activations,
            scalars,
            pass,
            launches,
            evaluation,
            squares,
            sums,
            norm: 0.0,
            update,
            steps: 0,
            _weights: weights,
        })
    }
}

/// Descriptions of a call's launches: the function, and what each kernel computes.
fn launches(call: &Call) -> Vec<String> {
    let (function, compiled) = (&call.function.function, &call.function.compiled);
    let title = |p: &Arc<Program>| {
        let last = p.notes.last().map_or("", String::as_str);
        format!("{}: {}; {last}", function.name, p.title)
    };
    compiled.programs.iter().map(title).collect()
}

/// Refuses models with layers that training does not know.
fn check_supported(model: &dyn Model, trained: &Trained) -> Result<(), Error> {
    let refused = |key: &str, found: &str| {
        Err(Error::Model(arch::Error::Feature {
            key: key.into(),
            found: found.into(),
        }))
    };
    if model.state_bytes() > 0 {
        return refused("training", "recurrent layers");
    }
    // A layer without a cache of its own reads that of another layer.
    if model
        .caches()
        .iter()
        .any(|c| c.row_bytes(CacheType::F32) == 0)
    {
        return refused("training", "layers that share a KV cache");
    }
    match *trained == Trained::Full && model.layer_input() > 0 {
        true => refused("training of all weights", "inputs of every layer"),
        false => Ok(()),
    }
}

impl Trainer {
    /// The model that is trained.
    pub fn model(&self) -> &dyn Model {
        self.model.as_ref()
    }
    /// Places of the parameters in [`Trainer::parameters`].
    pub fn places(&self) -> &Places {
        &self.places
    }
    /// Number of updates so far.
    pub fn steps(&self) -> u64 {
        self.steps
    }
    /// Adds the gradients of a batch, and its loss to the step's.
    ///
    /// # Errors
    /// When the device fails.
    pub fn accumulate(&mut self, batch: &TrainingBatch) -> Result<(), Error> {
        self.write_batch(batch)?;
        Ok(self.pass.replay(&[])?)
    }
    /// Works like [`Trainer::accumulate`]; returns the kernel and the seconds of every launch, in
    /// order.
    ///
    /// # Errors
    /// When the device fails.
    pub fn accumulate_timed(&mut self, batch: &TrainingBatch) -> Result<Vec<(String, f64)>, Error> {
        self.write_batch(batch)?;
        let seconds = self.pass.replay_timed(&[])?;
        Ok(self.launches.iter().cloned().zip(seconds).collect())
    }
    /// Returns loss and gradient norm of the batches since the last update, and begins a new sum of
    /// losses.
    ///
    /// # Errors
    /// When the device fails.
    pub fn finish_gradients(&mut self) -> Result<StepLoss, Error> {
        self.squares.replay(&[])?;
        let mut sums = vec![0f32; self.places.len() / SQUARES];
        self.device
            .read(&self.sums, 0, bytemuck::cast_slice_mut(&mut sums))?;
        self.norm = sums.iter().map(|&s| f64::from(s)).sum::<f64>().sqrt();
        Ok(StepLoss {
            loss: self.take_loss()?,
            gradient_norm: self.norm as f32,
        })
    }
    /// Changes the parameters by their gradients, and clears these.
    ///
    /// # Errors
    /// When the device fails.
    pub fn update(&mut self, rate: f64) -> Result<(), Error> {
        self.steps += 1;
        for (buffer, weight_decay) in &self.scalars {
            let of = UpdateScalars {
                rate,
                weight_decay: *weight_decay,
                clip: self.options.clip,
                norm: self.norm,
                step: self.steps,
            };
            self.device
                .write(buffer, 0, bytemuck::cast_slice(&of.values()))?;
        }
        Ok(self.update.replay(&[])?)
    }
    /// Returns the loss of a batch; changes no gradients.
    ///
    /// # Errors
    /// When the device fails.
    pub fn evaluate(&mut self, batch: &TrainingBatch) -> Result<f32, Error> {
        self.write_batch(batch)?;
        self.evaluation.replay(&[])?;
        self.take_loss()
    }
    /// Reads all parameters, in the order of [`Trainer::places`].
    ///
    /// # Errors
    /// When the device fails.
    pub fn parameters(&self) -> Result<Vec<f32>, Error> {
        self.array(&self.arrays.parameters)
    }
    /// Reads all gradients, in the order of [`Trainer::places`].
    ///
    /// # Errors
    /// When the device fails.
    pub fn gradients(&self) -> Result<Vec<f32>, Error> {
        self.array(&self.arrays.gradients)
    }
    /// Sets one parameter.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// If there is no such parameter, or it has another length.
    pub fn set_parameter(&mut self, name: &str, values: &[f32]) -> Result<(), Error> {
        let range = self.places.get(name).expect("a parameter").range.clone();
        assert_eq!(range.len(), values.len(), "{name}");
        let at = range.start * size_of::<f32>();
        let bytes = bytemuck::cast_slice(values);
        Ok(self.device.write(&self.arrays.parameters, at, bytes)?)
    }
    /// Reads parameters and both moments, for a checkpoint.
    ///
    /// # Errors
    /// When the device fails.
    pub fn state(&self) -> Result<[Vec<f32>; 3], Error> {
        let Arrays {
            parameters,
            first_moments,
            second_moments,
            ..
        } = &self.arrays;
        Ok([
            self.array(parameters)?,
            self.array(first_moments)?,
            self.array(second_moments)?,
        ])
    }
    /// Continues from a checkpoint: what [`Trainer::state`] read after `steps` updates.
    ///
    /// # Errors
    /// When the device fails.
    pub fn restore(&mut self, state: &[Vec<f32>; 3], steps: u64) -> Result<(), Error> {
        let Arrays {
            parameters,
            first_moments,
            second_moments,
            ..
        } = &self.arrays;
        for (buffer, values) in [parameters, first_moments, second_moments]
            .into_iter()
            .zip(state)
        {
            self.device.write(buffer, 0, bytemuck::cast_slice(values))?;
        }
        self.steps = steps;
        Ok(())
    }
    fn array(&self, buffer: &Buffer) -> Result<Vec<f32>, Error> {
        let mut out = vec![0f32; self.places.len()];
        self.device
            .read(buffer, 0, bytemuck::cast_slice_mut(&mut out))?;
        Ok(out)
    }
    fn number(&self, buffer: &Buffer) -> Result<f32, Error> {
        let mut value = [0f32];
        self.device
            .read(buffer, 0, bytemuck::cast_slice_mut(&mut value))?;
        Ok(value[0])
    }
    fn take_loss(&self) -> Result<f32, Error> {
        let loss = self.number(&self.activations.loss)?;
        self.device
            .write(&self.activations.loss, 0, &0f32.to_le_bytes())?;
        Ok(loss)
    }
    fn write_batch(&self, batch: &TrainingBatch) -> Result<(), Error> {
        let n = self.options.shape.tokens();
        let lengths = [&batch.tokens, &batch.positions, &batch.targets].map(Vec::len);
        assert_eq!(
            (lengths, batch.weights.len()),
            ([n; 3], n),
            "rows of a batch"
        );
        let vocabulary = self.model.vocabulary();
        let bad = |&&token: &&u32| token as usize >= vocabulary;
        if let Some(&token) = batch.tokens.iter().chain(&batch.targets).find(bad) {
            return Err(Error::Token { token, vocabulary });
        }
        let of = &self.activations;
        self.device
            .write(&of.tokens, 0, bytemuck::cast_slice(&batch.tokens))?;
        self.device
            .write(&of.positions, 0, bytemuck::cast_slice(&batch.positions))?;
        self.device
            .write(&of.targets, 0, bytemuck::cast_slice(&batch.targets))?;
        // The first token of an example has none before it.
        let positions = (0..).zip(&batch.positions);
        let before =
            positions.map(|(row, &position): (i32, _)| if position == 0 { -1 } else { row - 1 });
        let before: Vec<i32> = before.collect();
        self.device
            .write(&of.draft_rows, 0, bytemuck::cast_slice(&before))?;
        Ok(self
            .device
            .write(&of.weights, 0, bytemuck::cast_slice(&batch.weights))?)
    }
}

impl Arrays {
    fn new(device: &dyn Device, length: usize) -> Result<Arrays, Error> {
        let array = || device.alloc(length.max(1) * size_of::<f32>(), Memory::State);
        Ok(Arrays {
            parameters: array()?,
            gradients: array()?,
            first_moments: array()?,
            second_moments: array()?,
        })
    }
    /// Parts of all arrays, in the order of the slots of an update.
    fn parts(&self, range: &std::ops::Range<usize>) -> Result<Vec<Buffer>, Error> {
        let all = [
            &self.parameters,
            &self.gradients,
            &self.first_moments,
            &self.second_moments,
        ];
        all.into_iter()
            .map(|buffer| floats(buffer, range))
            .collect()
    }
}

/// Part of a buffer of floats.
fn floats(buffer: &Buffer, range: &std::ops::Range<usize>) -> Result<Buffer, Error> {
    let size = size_of::<f32>();
    Ok(buffer.slice(range.start * size, range.len() * size)?)
}

impl Activations {
    /// Floats of one token in all buffers.
    fn row_floats(model: &dyn Model, options: &TrainerOptions) -> usize {
        let rows = Activations::hidden_rows(model, options) + 2;
        let tables = model.rope_tables(1);
        let rope: usize = tables.iter().map(|table| table.rows(1).len()).sum();
        rows * model.width() + model.layer_input() * model.layers() + rope + 5
    }
    /// Number of hidden rows of a token.
    fn hidden_rows(model: &dyn Model, options: &TrainerOptions) -> usize {
        match options.trained {
            Trained::DraftBlock(_) => model.layers() + 3,
            _ => model.layers() + 1,
        }
    }
    fn new(
        device: &dyn Device,
        model: &dyn Model,
        options: &TrainerOptions,
    ) -> Result<Activations, Error> {
        let n = options.shape.tokens();
        let numbers = |count: usize| device.alloc(count * size_of::<f32>(), Memory::Scratch);
        let rows = || numbers(n * model.width());
        let hidden = (0..Activations::hidden_rows(model, options))
            .map(|_| rows())
            .collect::<Result<_, _>>()?;
        let layer_input = model.layer_input() * model.layers() * n;
        let rope = model
            .rope_tables(options.shape.length)
            .iter()
            .map(|table| {
                let values = table.rows(options.shape.length);
                let buffer = numbers(values.len())?;
                device.write(&buffer, 0, bytemuck::cast_slice(&values))?;
                Ok::<_, Error>(buffer)
            })
            .collect::<Result<_, _>>()?;
        Ok(Activations {
            tokens: numbers(n)?,
            positions: numbers(n)?,
            targets: numbers(n)?,
            weights: numbers(n)?,
            loss: numbers(1)?,
            draft_rows: numbers(n)?,
            layers: model.layers(),
            hidden,
            gradients: [rows()?, rows()?],
            layer_input: (layer_input > 0)
                .then(|| numbers(layer_input))
                .transpose()?,
            rope,
        })
    }
}

/// Finds the buffers of a plan's calls.
struct Binder<'a> {
    prepared: FxHashMap<*const Function, Arc<Ready>>,
    weights: &'a Weights,
    arrays: &'a Arrays,
    activations: &'a Activations,
    places: &'a Places,
    shape: TrainingShape,
    width: usize,
}

impl Binder<'_> {
    /// Calls of a pass with gradients, and of one that computes the loss alone.
    fn passes(&self, plan: &TrainingPlan) -> Result<[Vec<Call>; 2], Error> {
        let of = |calls: &[BoundCall]| -> Result<Vec<Call>, Error> {
            calls.iter().map(|call| self.call(call, None)).collect()
        };
        let chunks = |call: &BoundCall| -> Result<Vec<Call>, Error> {
            let begins = (0..self.shape.tokens()).step_by(self.shape.loss_rows);
            begins.map(|begin| self.call(call, Some(begin))).collect()
        };
        let forward = of(&plan.forward)?;
        let pass = [forward.clone(), chunks(&plan.loss)?, of(&plan.backward)?].concat();
        let evaluation = [forward, chunks(&plan.evaluation)?].concat();
        Ok([pass, evaluation])
    }
    /// Calls of the updates, and the scalars of each with its weight decay.
    fn updates(
        &self,
        updates: &[RangeUpdate],
        device: &dyn Device,
    ) -> Result<(Vec<Call>, Vec<RangeScalars>), Error> {
        let (mut calls, mut scalars) = (Vec::new(), Vec::new());
        for update in updates {
            let own = device.alloc(SCALARS * size_of::<f32>(), Memory::Scratch)?;
            let mut args = self.arrays.parts(&update.range)?;
            args.push(own.clone());
            scalars.push((own, update.weight_decay));
            calls.push(self.bound(&update.function, args));
        }
        Ok((calls, scalars))
    }
    /// A call of a function with these buffers.
    fn bound(&self, function: &Arc<Function>, args: Vec<Buffer>) -> Call {
        Call {
            function: self.prepared[&Arc::as_ptr(function)].clone(),
            args,
        }
    }
    /// A call with its buffers; those of the loss are its rows from `begin` on.
    fn call(&self, call: &BoundCall, begin: Option<usize>) -> Result<Call, Error> {
        let args = call.binds.iter().map(|bind| self.buffer(bind, begin));
        Ok(Call {
            function: self.prepared[&Arc::as_ptr(&call.function)].clone(),
            args: args.collect::<Result<_, _>>()?,
        })
    }
    fn buffer(&self, bind: &Bind, begin: Option<usize>) -> Result<Buffer, Error> {
        let of = self.activations;
        let rows = |buffer: &Buffer, width: usize| match begin {
            None => Ok(buffer.clone()),
            Some(begin) => floats(
                buffer,
                &(begin * width..(begin + self.shape.loss_rows) * width),
            ),
        };
        let place = |buffer: &Buffer, name: &str| {
            let place = self.places.get(name).expect("places of all parameters");
            floats(buffer, &place.range)
        };
        match bind {
            Bind::Tokens => Ok(of.tokens.clone()),
            Bind::Positions => Ok(of.positions.clone()),
            Bind::Targets => rows(&of.targets, 1),
            Bind::TargetWeights => rows(&of.weights, 1),
            Bind::Loss => Ok(of.loss.clone()),
            Bind::DraftRows => Ok(of.draft_rows.clone()),
            Bind::Hidden(layer) => rows(&of.hidden[*layer], self.width),
            Bind::HiddenGradient(layer) => rows(&of.gradients[layer % 2], self.width),
            Bind::LayerInput(layer) => {
                let all = of.layer_input.as_ref().expect("a model with layer inputs");
                let at = layer * all.len() / of.layers / self.shape.tokens();
                Ok(all.slice(at, all.len() - at)?)
            }
            Bind::Rope(table) => Ok(of.rope[*table].clone()),
            Bind::Weight(name) => Ok(self.weights.get(name).expect("a loaded weight").clone()),
            Bind::Parameter(name) => place(&self.arrays.parameters, name),
            Bind::Gradient(name) => place(&self.arrays.gradients, name),
            other => panic!("a step of training has no {other:?}"),
        }
    }
}
