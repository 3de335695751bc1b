//! A step while it is written: its calls, and in each call a function with what its slots are bound to.

use super::cache::Component;
use super::plan::{Bind, Call, Functions, Options, Plan, TokenClass};
use super::tensors::Weights;
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_tensor::tensor::{Dim, Tensor};
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::Function;
use gristmill_uop::rows::group_of;
use std::cell::RefCell;

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
    /// What the step is made for.
    pub options: &'o Options,
}

impl<'o> Step<'o> {
    /// A function `<architecture>.<part>.<tokens>`, with the depth where that is less than the cache's.
    fn new(architecture: &str, part: &str, options: &'o Options) -> Step<'o> {
        let tokens = match options.tokens {
            TokenClass::One => "one".to_string(),
            TokenClass::Chunk { max } => format!("chunk{max}"),
        };
        let depth = match options.depth {
            depth if depth < options.rows => format!(".{depth}"),
            _ => String::new(),
        };
        Step {
            capture: Capture::new(format!("{architecture}.{part}.{tokens}{depth}")),
            binds: RefCell::default(),
            options,
        }
    }
    /// Number of tokens: a scalar.
    pub fn tokens(&self) -> Tensor<'_> {
        match self.options.tokens {
            TokenClass::One => self.capture.int(1),
            TokenClass::Chunk { max } => self.capture.var("n", 1, max),
        }
    }
    /// Position of the first token: a scalar.
    pub fn position(&self) -> Tensor<'_> {
        let (depth, max) = (self.options.depth.min(self.options.rows), self.options.tokens.max());
        assert!(depth >= max, "a cache of {depth} rows for steps of {max} tokens");
        self.capture.var("pos", 0, depth - max)
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
    /// The model's table of rotations of that number, `[rows, dims/2, 2]`. At most one call for each.
    pub fn rope(&self, table: usize, dims: usize) -> Tensor<'_> {
        let name = if table == 0 { "rope".to_string() } else { format!("rope{table}") };
        self.input(&name, Bind::Rope(table), dims![self.options.rows, dims / 2, 2], Scalar::F32)
    }
    /// Writes `row [n, width]` into a component of a layer's cache whose buffers begin with number `plane`, at the position of these tokens and
    /// after. Returns what the cache then holds, in f32: `[rows, width]`, and the number of the next component's first buffer.
    pub fn cached<'g>(&'g self, layer: usize, plane: usize, c: Component, row: Tensor<'g>) -> (Tensor<'g>, usize) {
        let rows = self.options.rows;
        let written = |plane: usize, name: &str, width: usize, scalar: Scalar, value: Tensor<'g>| {
            let state = self.capture.state(name, dims![rows, width], scalar);
            let state = self.bound(Bind::State(layer, plane), state).assign(value.cast(scalar), self.position());
            self.capture.output_state(state);
            state
        };
        let cache = self.options.cache;
        if cache.is_float() {
            return (written(plane, c.name, c.width, cache, row).cast(Scalar::F32), plane + 1);
        }
        let group = group_of(c.width);
        let (bytes, scales) = row.encode_rows(group);
        let bytes = written(plane, c.name, c.width, cache, bytes);
        let scales = written(plane + 1, "scales", c.width / group, Scalar::F16, scales);
        (bytes.decode_rows(scales, group), plane + 2)
    }
    /// What a component of a layer's cache holds by now, as [`Step::cached`] returns it: for whoever reads another layer's. `layer` comes before it.
    pub fn cache(&self, layer: usize, plane: usize, c: Component) -> (Tensor<'_>, usize) {
        let read = |plane: usize, name: &str, width: usize, scalar: Scalar| {
            self.bound(Bind::State(layer, plane), self.capture.state(name, dims![self.options.rows, width], scalar))
        };
        let cache = self.options.cache;
        if cache.is_float() {
            return (read(plane, c.name, c.width, cache).cast(Scalar::F32), plane + 1);
        }
        let group = group_of(c.width);
        let bytes = read(plane, c.name, c.width, cache);
        (bytes.decode_rows(read(plane + 1, "scales", c.width / group, Scalar::F16), group), plane + 2)
    }
    /// A state of a layer, in the buffer of that number: itself, and what it is before these tokens, which is zeros before the first.
    pub fn state<'g>(&'g self, layer: usize, plane: usize, name: &str, dims: &[Dim]) -> (Tensor<'g>, Tensor<'g>) {
        let state = self.bound(Bind::State(layer, plane), self.capture.state(name, dims, Scalar::F32));
        (state, self.position().gt(0).select(state, 0.0))
    }
    /// Makes `value` what a state is after these tokens.
    pub fn keep<'g>(&'g self, state: Tensor<'g>, value: Tensor<'g>) {
        self.capture.output_state(state.assign(value, self.capture.int(0)));
    }
    /// What meets a cache of halves, rounded to halves, in f32: 2⁻¹² of a value, as much as the cache's rows were rounded by.
    pub fn as_cached<'g>(&'g self, x: Tensor<'g>) -> Tensor<'g> {
        if self.options.cache == Scalar::F16 { x.cast(Scalar::F16).cast(Scalar::F32) } else { x }
    }
    /// The values of a tensor, f32. At most one call for each.
    pub fn weight(&self, weights: &Weights, name: &str) -> Tensor<'_> {
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
