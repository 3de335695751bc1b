//! A model on a device, ready to be trained: buffers, captured passes, parameters.

use super::optimizer::{self, SCALARS, UpdateScalars};
use super::parameters::Places;
use crate::arch::{
    self, Bind, BoundCall, Functions, Model, Plan, Trained, TrainingPlan, TrainingShape,
};
use crate::error::{Error, Progress};
use crate::gguf::Gguf;
use crate::load::{self, Weights};
use gristmill_backend::Opened;
use gristmill_runtime::{Buffer, Device, Memory, Replay};
use gristmill_tensor::jit::{Call, Jit, Ready};
use gristmill_uop::function::Function;
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// What a trainer is compiled for.
#[derive(Clone, Debug)]
pub struct TrainerOptions {
    /// Sizes of a step.
    pub shape: TrainingShape,
    /// What is trained.
    pub trained: Trained,
    /// Largest norm of all gradients together; larger ones are scaled down.
    pub clip: f64,
    /// Weight decay of tensors of two and more axes.
    pub weight_decay: f64,
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

/// Arrays of one number a parameter.
struct Arrays {
    parameters: Buffer,
    gradients: Buffer,
    first_moments: Buffer,
    second_moments: Buffer,
}

/// Inputs and results of passes.
struct Activations {
    tokens: Buffer,
    positions: Buffer,
    targets: Buffer,
    weights: Buffer,
    loss: Buffer,
    norm: Buffer,
    /// Hidden rows before each layer, and after the last.
    hidden: Vec<Buffer>,
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
    scalars: Vec<(Buffer, f64)>,
    pass: Box<dyn Replay>,
    evaluation: Box<dyn Replay>,
    norm: Box<dyn Replay>,
    update: Box<dyn Replay>,
    steps: u64,
    _weights: Weights,
}

impl Trainer {
    /// Loads a model for training. Parameters are zero until they are written.
    ///
    /// # Errors
    /// When the model is malformed, memory is short, or the device fails.
    pub fn new(
        file: &Gguf,
        mut opened: Opened,
        options: TrainerOptions,
        progress: &dyn Fn(Progress),
    ) -> Result<Trainer, Error> {
        // Forward and backward products read a weight in different orders; the file's serves both.
        opened.target.interleave = false;
        let model = arch::load(file.metadata(), file)?;
        let mut jit = Jit::new(opened);
        let mut functions = Functions::new();
        let plan = TrainingPlan::new(
            model.as_ref(),
            options.shape,
            &options.trained,
            &mut functions,
        );
        let places = Places::new(plan.parameters());
        let calls: Vec<BoundCall> = plan.calls().cloned().collect();
        let updates: Vec<(Arc<Function>, std::ops::Range<usize>, f64)> = places
            .ranges()
            .into_iter()
            .zip([options.weight_decay, 0.0])
            .filter(|(range, _)| !range.is_empty())
            .map(|(range, decay)| {
                let function = functions.share(optimizer::update(range.len()));
                (function, range, decay)
            })
            .collect();
        let norm = functions.share(optimizer::norm(places.len()));
        let mut all: Vec<Arc<Function>> = calls.iter().map(|c| c.function.clone()).collect();
        all.extend(updates.iter().map(|u| u.0.clone()));
        all.push(norm.clone());
        jit.plan(&all, &|done, total| {
            progress(Progress::Planning(done, total))
        });
        let ready = jit.prepare(&all, &|done, total| {
            progress(Progress::Compiling(done, total))
        })?;
        let layouts = load::layouts(&mut jit, &[Plan { calls }])?;
        let weights = load::weights(file, &mut jit, &layouts, Weights::default(), progress)?;
        let device = jit.device().clone();
        let arena = device.alloc(Jit::arena(&ready).max(64), Memory::Scratch)?;
        let arrays = Arrays::new(&*device, places.len())?;
        let activations = Activations::new(&*device, model.as_ref(), &options)?;
        let prepared: FxHashMap<*const Function, Arc<Ready>> = all
            .iter()
            .map(Arc::as_ptr)
            .zip(ready.iter().cloned())
            .collect();
        let binder = Binder {
            prepared,
            weights: &weights,
            arrays: &arrays,
            activations: &activations,
            places: &places,
            shape: options.shape,
            width: model.width(),
        };
        let [pass, evaluation] = binder
            .passes(&plan)?
            .map(|calls| jit.capture(&calls, &arena));
        let call = |function: &Arc<Function>, args: Vec<Buffer>| Call {
            function: binder.prepared[&Arc::as_ptr(function)].clone(),
            args,
        };
        let norm = call(
            &norm,
            vec![arrays.gradients.clone(), activations.norm.clone()],
        );
        let mut scalars = Vec::new();
        let mut update = Vec::new();
        for (function, range, decay) in &updates {
            let own = device.alloc(SCALARS * size_of::<f32>(), Memory::Scratch)?;
            let mut args = arrays.of(range)?;
            args.extend([activations.norm.clone(), own.clone()]);
            scalars.push((own, *decay));
            update.push(call(function, args));
        }
        let [norm, update] = [vec![norm], update].map(|calls| jit.capture(&calls, &arena));
        let (pass, evaluation, norm, update) = (pass?, evaluation?, norm?, update?);
        Ok(Trainer {
            device,
            model,
            options,
            places,
            arrays,
            activations,
            scalars,
            pass,
            evaluation,
            norm,
            update,
            steps: 0,
            _weights: weights,
        })
    }
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
    /// Returns loss and gradient norm of the batches since the last update, and begins a new sum of
    /// losses.
    ///
    /// # Errors
    /// When the device fails.
    pub fn finish_gradients(&mut self) -> Result<StepLoss, Error> {
        self.norm.replay(&[])?;
        let gradient_norm = self.number(&self.activations.norm)?;
        Ok(StepLoss {
            loss: self.take_loss()?,
            gradient_norm,
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
    fn of(&self, range: &std::ops::Range<usize>) -> Result<Vec<Buffer>, Error> {
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
    fn new(
        device: &dyn Device,
        model: &dyn Model,
        options: &TrainerOptions,
    ) -> Result<Activations, Error> {
        let n = options.shape.tokens();
        let numbers = |count: usize| device.alloc(count * size_of::<f32>(), Memory::Scratch);
        let rows = || numbers(n * model.width());
        let hidden = (0..=model.layers())
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
            norm: numbers(1)?,
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
            Bind::Hidden(layer) => rows(&of.hidden[*layer], self.width),
            Bind::HiddenGradient(layer) => rows(&of.gradients[layer % 2], self.width),
            Bind::LayerInput(layer) => {
                let all = of.layer_input.as_ref().expect("a model with layer inputs");
                let at = layer * all.len() / (of.hidden.len() - 1) / self.shape.tokens();
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
