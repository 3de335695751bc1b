//! Steps of text encoders: whole texts, in which every token attends to every other one.
//!
//! A step has several texts one after the other, and a row of padding after the last. Attention
//! never reads past the last row: positions of a partial tile are mapped to it, so padding is what
//! they hold. Tokens of other texts and padding are masked by additional elements of queries and
//! keys, one for each text: that of a key is 1 for its own text, those of a query are far below 0
//! for all others.

use super::super::plan::{Bind, MAX_TEXTS};
use super::StepFunction;
use gristmill_tensor::dims;
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::shape::Scoring;

/// Additional elements of queries and keys, the last one for padding: a multiple of the depth of an
/// MMA fragment.
const COLUMNS: usize = MAX_TEXTS + 1;
/// Added to the unscaled score of a token of another text; within f16.
const APART: f64 = -30_000.0;

impl StepFunction<'_> {
    /// Returns the position of each token in its text.
    pub fn text_positions(&self, context: usize) -> Tensor<'_> {
        self.each_position().clamp_index(context - 1)
    }
    /// Returns the cosines and sines `[n, dims/2, 2]` of the tokens from RoPE table `table`.
    pub fn text_rope(&self, table: usize, dims: usize) -> Tensor<'_> {
        let rows = self.options.rows;
        let table_dims = dims![rows, dims / 2, 2];
        self.input("rope", Bind::Rope(table), table_dims, Scalar::F32)
            .gather(self.text_positions(rows))
    }
    /// Computes attention of queries, keys and values `[n, heads, ..]` within each text. A `window`
    /// is the distance of the farthest tokens that see each other, in both directions.
    pub fn text_attention<'g>(
        &'g self,
        [q, k, v]: [Tensor<'g>; 3],
        scores: Scoring,
        window: Option<usize>,
    ) -> Tensor<'g> {
        let n = self.tokens();
        let texts = self.input("texts", Bind::Texts, dims![n], Scalar::I32);
        let number = self.capture.iota(dims![n, COLUMNS], 1);
        let own = number.equals(texts.unsqueeze(1)).cast(Scalar::F32);
        let with_columns = |x: Tensor<'g>, columns: Tensor<'g>| {
            let heads = x.dim(1);
            let columns = columns.unsqueeze(1).expand(dims![n, heads, COLUMNS]);
            Tensor::cat(&[x, columns], 2)
        };
        let q = with_columns(q, (own - 1.0) * -APART);
        let k = with_columns(k, own);
        let [q, k, v] = [q, k, v].map(|x| self.round_to_cache(x));
        // The causal mask of a later position covers the tokens behind a query.
        let first = match window {
            Some(window) => self.capture.int(window),
            None => n - 1,
        };
        let seen = window.map(|window| 2 * window + 1);
        q.attention_within([k, v], [first, n], scores, seen, None)
    }
}
