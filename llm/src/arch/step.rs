//! A step while it is written: its calls, and in each call a function with what its slots are bound to.

mod cache;
mod sight;
mod state;
mod views;

pub(super) use sight::Sight;
pub(super) use views::Views;

use super::plan::{Bind, Call, Functions, Logits, Options, Plan, TokenClass};
use super::tensors::{Weights, scale_of};
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_tensor::tensor::{Dim, Tensor};
use gristmill_uop::Id;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::Function;
use std::cell::{Cell, RefCell};

/// The calls of a step, in order, whose functions are shared.
pub struct StepBuilder<'a> {
    architecture: &'static str,
    pub(super) options: &'a Options,
    functions: &'a mut Functions,
    calls: Vec<Call>,
}

impl<'a> StepBuilder<'a> {
    /// No calls yet, of a model of that architecture.
    pub(super) fn new(
        architecture: &'static str,
        options: &'a Options,
        functions: &'a mut Functions,
    ) -> StepBuilder<'a> {
        StepBuilder { architecture, options, functions, calls: Vec::new() }
    }
    /// One more call, of what `write` writes. `part` names its function.
    pub(super) fn call(&mut self, part: &str, write: impl FnOnce(&Step<'a>)) {
        let step = Step::new(self.architecture, part, self.options);
        write(&step);
        let (function, binds) = step.finish();
        self.calls.push(Call { function: self.functions.share(function), binds });
    }
    /// The step.
    pub(super) fn finish(self) -> Plan {
        Plan { calls: self.calls }
    }
}

/// A capture of one call of a step.
pub(super) struct Step<'o> {
    capture: Capture,
    binds: RefCell<Vec<Bind>>,
    /// The tables of pages of one sequence and of several, those of layers with a window behind the others, and the positions and rows of their tokens, once something has asked for them.
    own: [Cell<Option<Id>>; 2],
    tables: [Cell<Option<Id>>; 2],
    positions: Cell<Option<Id>>,
    slots: Cell<Option<Id>>,
    /// The rows of its sequences' states, once something has asked for them.
    states: Cell<Option<Id>>,
    /// What the step is made for.
    pub options: &'o Options,
}

impl<'o> Step<'o> {
    /// A function `<architecture>.<part>.<tokens>`, with the depth where that is less than the cache's.
    fn new(architecture: &str, part: &str, options: &'o Options) -> Step<'o> {
        let tokens = match options.tokens {
            TokenClass::One => "one".to_string(),
            TokenClass::Chunk { max } => format!("chunk{max}"),
            TokenClass::Batch { max } => format!("batch{max}"),
            TokenClass::Mixed { piece, others } => format!("mixed{piece}+{others}"),
        };
        let depth = match options.depth {
            depth if depth < options.rows => format!(".{depth}"),
            _ => String::new(),
        };
        let pages = if options.contiguous { "" } else { ".pages" };
        Step {
            capture: Capture::new(format!("{architecture}.{part}.{tokens}{depth}{pages}")),
            binds: RefCell::default(),
            own: Default::default(),
            tables: Default::default(),
            positions: Cell::default(),
            slots: Cell::default(),
            states: Cell::default(),
            options,
        }
    }
    /// Number of tokens: a scalar.
    pub fn tokens(&self) -> Tensor<'_> {
        match self.options.tokens {
            TokenClass::One | TokenClass::Batch { max: 1 } => self.capture.int(1),
            TokenClass::Chunk { max } | TokenClass::Batch { max } => self.capture.var("n", 1, max),
            TokenClass::Mixed { .. } => self.piece() + self.ends() - 1,
        }
    }
    /// Number of tokens of one sequence, neighbours in it, that come first: a scalar. There are some unless all are of several.
    fn piece(&self) -> Tensor<'_> {
        match self.options.tokens {
            TokenClass::Mixed { piece, .. } => self.capture.var("piece", 1, piece),
            _ => self.tokens(),
        }
    }
    /// Number of sequences in the step, each of which ends with a token of its own behind those of the first: a scalar.
    fn ends(&self) -> Tensor<'_> {
        match self.options.tokens {
            TokenClass::Mixed { others, .. } => self.capture.var("rows", 1, others + 1),
            _ => self.tokens(),
        }
    }
    /// Of rows that the step has, `[n, ..]`, those whose logits it gives.
    pub(super) fn with_logits<'g>(&'g self, x: Tensor<'g>) -> Tensor<'g> {
        match self.options.logits {
            Logits::All | Logits::None => x,
            Logits::Last => x.slice(0, self.piece() - 1, 1),
            Logits::Ends => self.of_ends(x),
        }
    }
    /// Of such rows, the last of each sequence.
    fn of_ends<'g>(&'g self, x: Tensor<'g>) -> Tensor<'g> {
        x.slice(0, self.piece() - 1, self.ends())
    }
    /// Position of the first token, where it has neighbours of its sequence: a scalar.
    pub fn position(&self) -> Tensor<'_> {
        let max = match self.options.tokens {
            TokenClass::Mixed { piece, .. } => piece,
            tokens => tokens.max(),
        };
        let depth = self.options.depth.min(self.options.rows);
        assert!(!self.is_batch(), "tokens of several sequences have no position together");
        assert!(depth >= max, "a cache of {depth} rows for steps of {max} tokens");
        self.capture.var("pos", 0, depth - max)
    }
    /// Is every token of another sequence?
    fn is_batch(&self) -> bool {
        matches!(self.options.tokens, TokenClass::Batch { .. })
    }
    /// Is a piece of one sequence beside tokens of others?
    fn is_mixed(&self) -> bool {
        matches!(self.options.tokens, TokenClass::Mixed { .. })
    }
    fn bound<T>(&self, bind: Bind, slot: T) -> T {
        self.binds.borrow_mut().push(bind);
        debug_assert_eq!(self.binds.borrow().len(), self.capture.slot_count());
        slot
    }
    /// A plain input.
    pub fn input(&self, name: &str, bind: Bind, dims: &[Dim], scalar: Scalar) -> Tensor<'_> {
        self.bound(bind, self.capture.input(name, dims, scalar))
    }
    /// Hidden rows `[tokens, d]` before layer `layer`.
    pub fn hidden(&self, layer: usize, d: usize) -> Tensor<'_> {
        self.input("x", Bind::Hidden(layer), dims![self.tokens(), d], Scalar::F32)
    }
    /// What the model has made of the tokens for layer `layer` of `layers`, before the first of them: `[tokens, width]`.
    pub fn layer_input(&self, layer: usize, layers: usize, width: usize) -> Tensor<'_> {
        let rows = dims![self.tokens(), layers * width];
        self.input("layer_input", Bind::LayerInput(layer), rows, Scalar::F32).slice(1, 0, width)
    }
    /// Rows `x [n, in]` through the matrix of that name, `[n, out]`, times the number beside it, if there is one. At most one call for each.
    pub fn linear<'g>(&'g self, weights: &Weights, x: Tensor<'g>, name: &str) -> Tensor<'g> {
        let y = x.linear(self.values(weights, name));
        self.scale(weights, name).map_or(y, |scale| y * scale)
    }
    /// The values of a tensor, f32, times the number beside it, if there is one. At most one call for each.
    pub fn weight(&self, weights: &Weights, name: &str) -> Tensor<'_> {
        let values = self.values(weights, name);
        self.scale(weights, name).map_or(values, |scale| values * scale)
    }
    /// The number that multiplies all of a matrix.
    fn scale(&self, weights: &Weights, name: &str) -> Option<Tensor<'_>> {
        let scale = scale_of(name).filter(|scale| weights.has(scale) && weights.get(scale).dims == [1])?;
        (weights.get(name).dims.len() == 2).then(|| self.values(weights, &scale))
    }
    /// The values of a tensor as they are stored, f32.
    fn values(&self, weights: &Weights, name: &str) -> Tensor<'_> {
        let w = weights.get(name);
        let stem = name.trim_end_matches(".weight").trim_end_matches(".bias");
        // A bias is called as its matrix is, unless there is one.
        let short = if name.ends_with(".bias") && weights.has(&format!("{stem}.weight")) { name } else { stem };
        self.bound(Bind::Weight(w.name.clone()), self.capture.weight(short, &w.dims, w.encoding))
    }
    /// A result.
    pub fn output(&self, name: &str, bind: Bind, value: Tensor<'_>) {
        self.bound(bind, self.capture.output(name, value));
    }
    /// The function and the bind of each slot.
    fn finish(self) -> (Function, Vec<Bind>) {
        (self.capture.finish(), self.binds.into_inner())
    }
}
