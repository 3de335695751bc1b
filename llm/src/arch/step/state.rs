//! Recurrent states of layers, for one sequence or one row per sequence.
//!
//! A step has tokens of one sequence, or one token each of several. With several sequences, states
//! and rows have a leading axis of sequences.

use super::super::plan::{Bind, Logits, StepKind};
use super::StepFunction;
use gristmill_tensor::dims;
use gristmill_tensor::tensor::{Dim, Tensor};
use gristmill_uop::dtype::Scalar;

/// Recurrent state of a layer within a step.
pub(in super::super) struct State<'g> {
    /// State before the step's tokens, zeros at position 0: `[dims..]` or `[sequences, dims..]`.
    pub before: Tensor<'g>,
    /// The whole buffer and the rows of the sequences in it. In a contiguous step the buffer is the
    /// sequence's row alone.
    buffer: Tensor<'g>,
    rows: Option<Tensor<'g>>,
}

impl StepFunction<'_> {
    /// Returns the number of sequences and of tokens per sequence as scalars; one of them is 1.
    pub fn sequences(&self) -> [Tensor<'_>; 2] {
        assert!(
            !self.is_mixed(),
            "states of a piece and of tokens of others"
        );
        let one = self.capture.int(1);
        if self.is_batch() {
            [self.tokens(), one]
        } else {
            [one, self.tokens()]
        }
    }
    /// Returns the number of leading tokens that recurrent states are left after, as a scalar;
    /// `None` if it is all.
    pub fn kept_tokens(&self) -> Option<Tensor<'_>> {
        let is_drafted = self.options.logits == Logits::Drafted;
        is_drafted.then(|| self.capture.var("kept", 1, self.options.tokens.max()))
    }
    /// Returns `values [tokens, columns]` of the first `kept` tokens, and 0 for the others.
    pub fn of_kept<'g>(
        &'g self,
        values: Tensor<'g>,
        columns: Tensor<'g>,
        kept: Tensor<'g>,
    ) -> Tensor<'g> {
        let token = self.capture.iota(dims![self.tokens(), columns], 0);
        token.cast(Scalar::I64).lt(kept).select(values, 0.0)
    }
    /// Reshapes rows `[n, ..]` to `[tokens, ..]` or `[sequences, tokens, ..]`. Also returns
    /// the axis of tokens.
    pub fn sequence_rows<'g>(&'g self, rows: Tensor<'g>) -> (Tensor<'g>, usize) {
        if self.is_batch() {
            (rows.unsqueeze(1), 1)
        } else {
            (rows, 0)
        }
    }
    /// Returns the state of a layer with dims `dims` per sequence; `plane` is the buffer's index.
    pub fn state<'g>(
        &'g self,
        layer: usize,
        plane: usize,
        name: &str,
        dims: &[usize],
    ) -> State<'g> {
        let width: usize = dims.iter().product();
        let own: Vec<Dim> = dims.iter().map(|&dim| Dim::from(dim)).collect();
        let several = if self.is_batch() {
            vec![Dim::from(self.tokens())]
        } else {
            Vec::new()
        };
        let all: Vec<Dim> = several.iter().copied().chain(own.iter().copied()).collect();
        let (count, contiguous) = (self.options.state_rows(), self.options.contiguous);
        let shape = if contiguous {
            own
        } else {
            dims![count, width].to_vec()
        };
        let buffer = self.bound(
            Bind::State(layer, plane),
            self.capture.state(name, &shape, Scalar::F32),
        );
        let rows =
            (!contiguous).then(|| self.state_rows().clamp_index(count - 1).cast(Scalar::I64));
        let before = rows.map_or(buffer, |rows| buffer.gather(rows));
        let before = before.reshape(&all);
        let begun = match self.options.tokens {
            StepKind::BatchedDecode { .. } => {
                let axes: Vec<Dim> = several
                    .into_iter()
                    .chain(dims.iter().map(|_| Dim::from(1)))
                    .collect();
                self.each_position().gt(0).reshape(&axes)
            }
            _ => self.position().gt(0),
        };
        State {
            before: begun.select(before, 0.0),
            buffer,
            rows,
        }
    }
    /// Stores `value`, with elements in the order of [`State::before`], as the
    /// state after these tokens.
    pub fn write_state<'g>(&'g self, state: &State<'g>, value: Tensor<'g>) {
        let after = match state.rows {
            Some(rows) => {
                let [sequences, _] = self.sequences();
                let width = state.buffer.dims()[1];
                state
                    .buffer
                    .scatter(value.reshape(dims![sequences, width]), rows)
            }
            None => state.buffer.assign(value, self.capture.int(0)),
        };
        self.capture.output_state(after);
    }
    /// Returns the state row of each sequence: `[sequences]` i32.
    fn state_rows(&self) -> Tensor<'_> {
        let [sequences, _] = self.sequences();
        let (name, bind) = match self.is_batch() {
            true => ("state_rows", Bind::StateRows),
            false => ("state_row", Bind::StateRow),
        };
        self.once(&self.states, || {
            self.input(name, bind, dims![sequences], Scalar::I32)
        })
    }
}
