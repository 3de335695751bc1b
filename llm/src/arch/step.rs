//! Builder of a step: its calls, each a captured function with its bindings.

mod adapters;
mod attention_mask;
mod cache;
mod rotation;
mod squares;
mod state;
mod texts;
mod trained_call;
mod training;
mod views;

pub(super) use attention_mask::AttentionMask;
pub(super) use views::Views;

use super::low_rank::AppliedAdapter;
use super::plan::{Bind, BoundCall, CachedExperts, Functions, Logits, Options, Plan, StepKind};
use super::tensors::{LayerWeights, scale_of};
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_tensor::partition::{PartSlot, without_unused_slots};
use gristmill_tensor::tensor::{Dim, Tensor};
use gristmill_uop::Id;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::Function;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use trained_call::{TrainedCall, Training};

/// Builds the calls of a step; equal functions are shared.
pub struct StepBuilder<'a> {
    architecture: &'static str,
    pub(super) options: &'a Options,
    functions: &'a mut Functions,
    calls: Vec<BoundCall>,
    adapters: &'a [AppliedAdapter],
    training: Option<Training<'a>>,
    /// Calls fill caches alone: their hidden rows are not computed.
    pub(super) fills: bool,
    /// Calls are of the draft block.
    pub(super) drafts: bool,
    /// Tokens are those after the rows' positions: see [`super::Model::draft_layers`].
    pub(super) is_ahead: bool,
}

impl<'a> StepBuilder<'a> {
    /// Creates an empty step for a model of that architecture.
    pub(super) fn new(
        architecture: &'static str,
        options: &'a Options,
        functions: &'a mut Functions,
    ) -> StepBuilder<'a> {
        StepBuilder {
            architecture,
            options,
            functions,
            calls: Vec::new(),
            adapters: &[],
            training: None,
            fills: false,
            drafts: false,
            is_ahead: false,
        }
    }
    /// Applies adapters in all calls that follow.
    pub(super) fn apply(&mut self, adapters: &'a [AppliedAdapter]) {
        self.adapters = adapters;
    }
    /// Adds a call of the function that `write` captures; `part` is a part of its name.
    pub(super) fn call(&mut self, part: &str, write: impl Fn(&StepFunction<'a>)) {
        if self.training.is_some() {
            return self.trained_call(part, &write);
        }
        let suffix = if self.fills { ".fill" } else { "" };
        let part = &format!("{part}{suffix}");
        let mut step = StepFunction::new(self.architecture, part, self.options);
        step.adapters = self.adapters;
        step.fills = self.fills;
        step.is_ahead = self.is_ahead;
        write(&step);
        let (function, binds) = step.finish();
        let call = self.bound_call(function, binds);
        self.calls.push(call);
    }
    fn bound_call(&mut self, function: Function, binds: Vec<Bind>) -> BoundCall {
        BoundCall {
            device: 0,
            function: self.functions.share(function),
            binds,
            misses: None,
        }
    }
    /// Returns the finished step.
    pub(super) fn finish(self) -> Plan {
        Plan { calls: self.calls }
    }
}

/// Captures the function of one call.
pub(super) struct StepFunction<'o> {
    capture: Capture,
    binds: RefCell<Vec<Bind>>,
    /// Values of the weights read so far, by name.
    weights: RefCell<HashMap<String, Id>>,
    /// Inputs created on first use: block tables of one sequence (`own`) and of several (`tables`),
    /// each for full and windowed layers, then token positions and cache rows.
    own: [Cell<Option<Id>>; 2],
    tables: [Cell<Option<Id>>; 2],
    positions: Cell<Option<Id>>,
    slots: Cell<Option<Id>>,
    /// Factors of adapters; created on first use.
    scales: Cell<Option<Id>>,
    /// Signs of the Hadamard matrix; created on first use.
    hadamard: Cell<Option<Id>>,
    /// Rows of the sequences' recurrent states; created on first use.
    states: Cell<Option<Id>>,
    /// Parameters the step is specialised for.
    pub options: &'o Options,
    adapters: &'o [AppliedAdapter],
    /// What a step of training adds.
    trained: Option<TrainedCall<'o>>,
    /// Fills caches alone, without hidden rows.
    fills: bool,
    /// Tokens are those after the rows' positions.
    is_ahead: bool,
}

impl<'o> StepFunction<'o> {
    /// Starts a function named `<architecture>.<part>.<tokens>`, plus the depth if it is less
    /// than the cache's.
    fn new(architecture: &str, part: &str, options: &'o Options) -> StepFunction<'o> {
        let tokens = match options.tokens {
            StepKind::Decode => "one".to_string(),
            StepKind::Prefill { max } => format!("chunk{max}"),
            StepKind::BatchedDecode { max } => format!("batch{max}"),
            StepKind::Mixed { piece, others } => format!("mixed{piece}+{others}"),
            StepKind::Train {
                sequences,
                length,
                packed,
            } => {
                let packed = if packed { ".packed" } else { "" };
                format!("train{sequences}x{length}{packed}")
            }
        };
        let depth = match options.depth {
            depth if depth < options.rows => format!(".{depth}"),
            _ => String::new(),
        };
        let pages = if options.contiguous { "" } else { ".pages" };
        let cached = if options.cached.is_some() {
            ".cached"
        } else {
            ""
        };
        StepFunction {
            capture: Capture::new(format!(
                "{architecture}.{part}.{tokens}{depth}{pages}{cached}"
            )),
            binds: RefCell::default(),
            weights: RefCell::default(),
            own: Default::default(),
            tables: Default::default(),
            positions: Cell::default(),
            slots: Cell::default(),
            scales: Cell::default(),
            hadamard: Cell::default(),
            states: Cell::default(),
            options,
            adapters: &[],
            trained: None,
            fills: false,
            is_ahead: false,
        }
    }
    /// Returns the number of tokens as a scalar.
    pub fn tokens(&self) -> Tensor<'_> {
        match self.options.tokens {
            StepKind::Decode | StepKind::BatchedDecode { max: 1 } => self.capture.int(1),
            StepKind::Prefill { max } | StepKind::BatchedDecode { max } => {
                self.capture.var("n", 1, max)
            }
            tokens @ StepKind::Train { .. } => self.capture.int(tokens.max()),
            StepKind::Mixed { .. } => self.chunk_tokens() + self.logit_rows() - 1,
        }
    }
    /// Returns the number of leading tokens of one sequence (the prefill chunk) as a scalar. Not
    /// meaningful for batched decode.
    fn chunk_tokens(&self) -> Tensor<'_> {
        match self.options.tokens {
            StepKind::Mixed { piece, .. } => self.capture.var("piece", 1, piece),
            _ => self.tokens(),
        }
    }
    /// Returns the number of sequences as a scalar: the chunk's, and one per decode token after it.
    fn logit_rows(&self) -> Tensor<'_> {
        match self.options.tokens {
            StepKind::Mixed { others, .. } => self.capture.var("rows", 1, others + 1),
            _ => self.tokens(),
        }
    }
    /// Selects from rows `[n, ..]` those for which logits are computed.
    pub(super) fn with_logits<'g>(&'g self, x: Tensor<'g>) -> Tensor<'g> {
        match self.options.logits {
            Logits::All | Logits::Drafted | Logits::None => x,
            Logits::Last => x.slice(0, self.chunk_tokens() - 1, 1),
            Logits::LastOfEach => self.gather_last(x),
        }
    }
    /// Selects the last row of each sequence of a mixed batch.
    fn gather_last<'g>(&'g self, x: Tensor<'g>) -> Tensor<'g> {
        x.slice(0, self.chunk_tokens() - 1, self.logit_rows())
    }
    /// Returns the position of the first token as a scalar. Panics in batched decode.
    pub fn position(&self) -> Tensor<'_> {
        let max = match self.options.tokens {
            StepKind::Mixed { piece, .. } => piece,
            StepKind::Train { .. } => return self.capture.int(0),
            tokens => tokens.max(),
        };
        let depth = self.options.depth.min(self.options.rows);
        assert!(
            !self.is_batch(),
            "tokens of several sequences have no position together"
        );
        assert!(
            depth >= max,
            "a cache of {depth} rows for steps of {max} tokens"
        );
        self.capture.var("pos", 0, depth - max)
    }
    /// Returns true for batched decode.
    fn is_batch(&self) -> bool {
        matches!(self.options.tokens, StepKind::BatchedDecode { .. })
    }
    /// Returns true for a mixed batch.
    fn is_mixed(&self) -> bool {
        matches!(self.options.tokens, StepKind::Mixed { .. })
    }
    fn bound<T>(&self, bind: Bind, slot: T) -> T {
        self.binds.borrow_mut().push(bind);
        debug_assert_eq!(self.binds.borrow().len(), self.capture.slot_count());
        slot
    }
    /// Returns the factor of each adapter for each token, `[tokens, choices]`.
    fn adapter_scales(&self, choices: usize) -> Tensor<'_> {
        if let Some(known) = self.scales.get() {
            return self.capture.tensor(known);
        }
        let dims = dims![self.tokens(), choices];
        let scales = self.input("scales", Bind::AdapterScales, dims, Scalar::F32);
        self.scales.set(Some(scales.id()));
        scales
    }
    /// Adds an input that is neither weight nor cache.
    pub fn input(&self, name: &str, bind: Bind, dims: &[Dim], scalar: Scalar) -> Tensor<'_> {
        self.bound(bind, self.capture.input(name, dims, scalar))
    }
    /// Returns hidden rows `[tokens, d]` before layer `layer`.
    pub fn hidden(&self, layer: usize, d: usize) -> Tensor<'_> {
        let x = self.input(
            "x",
            Bind::Hidden(layer),
            dims![self.tokens(), d],
            Scalar::F32,
        );
        self.keep_hidden(layer, x);
        x
    }
    /// Returns the token input of layer `layer` of `layers`: `[tokens, width]`.
    pub fn layer_input(&self, layer: usize, layers: usize, width: usize) -> Tensor<'_> {
        let rows = dims![self.tokens(), layers * width];
        self.input("layer_input", Bind::LayerInput(layer), rows, Scalar::F32)
            .slice(1, 0, width)
    }
    /// Multiplies `x [n, in]` by the matrix `name`, and by its scale if there is one. Returns
    /// `[n, out]`.
    pub fn linear<'g>(&'g self, weights: &LayerWeights, x: Tensor<'g>, name: &str) -> Tensor<'g> {
        self.add_squares(weights, name, x);
        let y = self.product(x, self.values(weights, name));
        let y = self.scale(weights, name).map_or(y, |scale| y * scale);
        let adapters = self.adapters_of(weights, name);
        adapters.iter().fold(y, |y, adapter| {
            y + adapter.apply(self, x, |side| side, |row| row)
        })
    }
    /// Returns the values of a tensor in f32, times its scale if there is one.
    pub fn weight(&self, weights: &LayerWeights, name: &str) -> Tensor<'_> {
        let values = self.values(weights, name);
        self.scale(weights, name)
            .map_or(values, |scale| values * scale)
    }
    /// Returns the scalar that multiplies a whole matrix, if there is one.
    fn scale(&self, weights: &LayerWeights, name: &str) -> Option<Tensor<'_>> {
        let scale =
            scale_of(name).filter(|scale| weights.has(scale) && weights.get(scale).dims == [1])?;
        (weights.get(name).dims.len() == 2).then(|| self.values(weights, &scale))
    }
    /// Returns a tensor with an entry for each of `slots` slots that hold experts; without, one for
    /// each expert.
    pub fn of_experts(
        &self,
        weights: &LayerWeights,
        name: &str,
        slots: Option<usize>,
    ) -> Tensor<'_> {
        let Some(slots) = slots else {
            return self.weight(weights, name);
        };
        let w = weights.get(name);
        let mut dims = w.dims.clone();
        dims[0] = slots;
        let slot = format!("{}{name}", CachedExperts::PREFIX);
        let bind = Bind::Weight(format!("{}{}", CachedExperts::PREFIX, w.name));
        self.bound(bind, self.capture.weight(&slot, &dims, w.encoding))
    }
    /// Returns the stored values of a tensor in f32, without its scale.
    fn values(&self, weights: &LayerWeights, name: &str) -> Tensor<'_> {
        let w = weights.get(name);
        let stem = name.trim_end_matches(".weight").trim_end_matches(".bias");
        // A bias gets the name of its matrix, unless the layer has both.
        let short = if name.ends_with(".bias") && weights.has(&format!("{stem}.weight")) {
            name
        } else {
            stem
        };
        let known = self.weights.borrow().get(&w.name).copied();
        if let Some(id) = known {
            return self.capture.tensor(id);
        }
        if let Some(parameter) = self.full_parameter(w, short) {
            self.weights
                .borrow_mut()
                .insert(w.name.clone(), parameter.id());
            return parameter;
        }
        let values = self.bound(
            Bind::Weight(w.name.clone()),
            self.capture.weight(short, &w.dims, w.encoding),
        );
        self.weights
            .borrow_mut()
            .insert(w.name.clone(), values.id());
        values
    }
    /// Adds an output bound to `bind`.
    ///
    /// In training, results that have a gradient are kept instead: see `training.rs`.
    pub fn output(&self, name: &str, bind: Bind, value: Tensor<'_>) {
        let is_dropped = self.fills && matches!(bind, Bind::Hidden(_));
        if is_dropped || self.keep_result(&bind, value) {
            return;
        }
        self.bound(bind, self.capture.output(name, value));
    }
    /// Returns the function and the binding of each slot.
    fn finish(self) -> (Function, Vec<Bind>) {
        let (function, binds) = (self.capture.finish(), self.binds.into_inner());
        if !self.fills {
            return (function, binds);
        }
        let used = without_unused_slots(&function);
        let kept = used.slots.iter().filter_map(|slot| match slot {
            PartSlot::Whole(slot) => Some(binds[*slot as usize].clone()),
            PartSlot::Value(_) => None,
        });
        (used.function, kept.collect())
    }
}
