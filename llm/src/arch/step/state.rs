//! States: what a layer keeps of all tokens so far, of one sequence, or of several in a row for each.
//!
//! A step has tokens of one sequence, or one token each of several. Of one a state has its own dims, and so do the step's rows; of several an axis of sequences comes before both.

use super::super::plan::{Bind, TokenClass};
use super::Step;
use gristmill_tensor::dims;
use gristmill_tensor::tensor::{Dim, Tensor};
use gristmill_uop::dtype::Scalar;

/// A state of a layer.
pub(in super::super) struct State<'g> {
    /// What it is before the step's tokens, zeros before a sequence's first: `[dims..]`, or `[sequences, dims..]`.
    pub before: Tensor<'g>,
    /// The whole buffer and the rows of it that the sequences have; in a contiguous step, the
    /// sequence's row alone.
    buffer: Tensor<'g>,
    rows: Option<Tensor<'g>>,
}

impl Step<'_> {
    /// How many sequences have tokens in the step, and how many tokens each has: scalars, of which one is 1.
    pub fn sequences(&self) -> [Tensor<'_>; 2] {
        assert!(!self.is_mixed(), "states of a piece and of tokens of others");
        let one = self.capture.int(1);
        if self.is_batch() { [self.tokens(), one] } else { [one, self.tokens()] }
    }
    /// Rows `[n, ..]` of the step as each sequence has them, `[tokens, ..]` or `[sequences, tokens, ..]`, and the axis of its tokens.
    pub fn of_each<'g>(&'g self, rows: Tensor<'g>) -> (Tensor<'g>, usize) {
        if self.is_batch() { (rows.unsqueeze(1), 1) } else { (rows, 0) }
    }
    /// The state of a layer in the buffer of that number, which has so many elements of a sequence.
    pub fn state<'g>(&'g self, layer: usize, plane: usize, name: &str, dims: &[usize]) -> State<'g> {
        let width: usize = dims.iter().product();
        let own: Vec<Dim> = dims.iter().map(|&dim| Dim::from(dim)).collect();
        let several = if self.is_batch() { vec![Dim::from(self.tokens())] } else { Vec::new() };
        let all: Vec<Dim> = several.iter().copied().chain(own.iter().copied()).collect();
        let (count, contiguous) = (self.options.state_rows(), self.options.contiguous);
        let shape = if contiguous { own } else { dims![count, width].to_vec() };
        let buffer = self.bound(Bind::State(layer, plane), self.capture.state(name, &shape, Scalar::F32));
        let rows = (!contiguous).then(|| self.state_rows().clamp_index(count - 1).cast(Scalar::I64));
        let before = rows.map_or(buffer, |rows| buffer.gather(rows));
        let before = before.reshape(&all);
        let begun = match self.options.tokens {
            TokenClass::Batch { .. } => {
                let axes: Vec<Dim> = several.into_iter().chain(dims.iter().map(|_| Dim::from(1))).collect();
                self.each_position().gt(0).reshape(&axes)
            }
            _ => self.position().gt(0),
        };
        State { before: begun.select(before, 0.0), buffer, rows }
    }
    /// Makes `value`, whose elements are in the order of [`State::before`], what a state is after these tokens.
    pub fn keep<'g>(&'g self, state: &State<'g>, value: Tensor<'g>) {
        let after = match state.rows {
            Some(rows) => {
                let [sequences, _] = self.sequences();
                let width = state.buffer.dims()[1];
                state.buffer.scatter(value.reshape(dims![sequences, width]), rows)
            }
            None => state.buffer.assign(value, self.capture.int(0)),
        };
        self.capture.output_state(after);
    }
    /// The row of states of each sequence: `[sequences]` i32.
    fn state_rows(&self) -> Tensor<'_> {
        let [sequences, _] = self.sequences();
        let (name, bind) = match self.is_batch() {
            true => ("state_rows", Bind::StateRows),
            false => ("state_row", Bind::StateRow),
        };
        self.once(&self.states, || self.input(name, bind, dims![sequences], Scalar::I32))
    }
}
