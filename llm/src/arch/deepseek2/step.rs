//! A function while it is written, with what its slots are bound to.

use super::super::{Bind, Options, StateSpec, TokenClass};
use super::weights::Weights;
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_tensor::tensor::{Dim, Tensor};
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::Function;
use gristmill_uop::rows::group_of;
use std::cell::RefCell;

/// A capture of one call of a step.
pub(super) struct Step<'o> {
    capture: Capture,
    binds: RefCell<Vec<Bind>>,
    /// What the step is made for.
    pub options: &'o Options,
}

impl<'o> Step<'o> {
    /// A function `deepseek2.<part>.<tokens>`, with the depth where that is less than the cache's.
    pub fn new(part: &str, options: &'o Options) -> Step<'o> {
        let tokens = match options.tokens {
            TokenClass::One => "one".to_string(),
            TokenClass::Chunk { max } => format!("chunk{max}"),
        };
        let depth = match options.depth {
            depth if depth < options.rows => format!(".{depth}"),
            _ => String::new(),
        };
        Step { capture: Capture::new(format!("deepseek2.{part}.{tokens}{depth}")), binds: RefCell::default(), options }
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
    /// Writes `row [n, width]` into the state of a layer, at the position of these tokens and after. Returns what the state then holds, in
    /// f32: `[rows, width]`.
    pub fn cached<'g>(&'g self, layer: usize, width: usize, row: Tensor<'g>) -> Tensor<'g> {
        let spec = StateSpec::new(self.options.rows, width, self.options.cache);
        let written = |plane: usize, value: Tensor<'g>| {
            let p = &spec.planes[plane];
            let state = self.capture.state(p.name, dims![spec.rows, p.width], p.scalar);
            let state = self.bound(Bind::State(layer, plane), state).assign(value.cast(p.scalar), self.position());
            self.capture.output_state(state);
            state
        };
        if self.options.cache.is_float() {
            return written(0, row).cast(Scalar::F32);
        }
        let group = group_of(width);
        let (bytes, scales) = row.encode_rows(group);
        written(0, bytes).decode_rows(written(1, scales), group)
    }
    /// What meets a cache of halves, rounded to halves, in f32: 2⁻¹² of a value, as much as the cache's rows were rounded by.
    pub fn as_cached<'g>(&'g self, x: Tensor<'g>) -> Tensor<'g> {
        if self.options.cache == Scalar::F16 { x.cast(Scalar::F16).cast(Scalar::F32) } else { x }
    }
    /// The values of a tensor, f32. At most one call for each.
    pub fn weight(&self, weights: &Weights, name: &str) -> Tensor<'_> {
        let w = weights.get(name);
        let short = name.trim_end_matches(".weight").trim_end_matches(".bias");
        self.bound(Bind::Weight(w.name.clone()), self.capture.weight(short, &w.dims, w.encoding))
    }
    /// A result.
    pub fn output(&self, name: &str, bind: Bind, value: Tensor<'_>) {
        self.bound(bind, self.capture.output(name, value));
    }
    /// The function and the bind of each slot.
    pub fn finish(self) -> (Function, Vec<Bind>) {
        (self.capture.finish(), self.binds.into_inner())
    }
}
