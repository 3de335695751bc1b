//! Device function that computes sampling candidates for each row of a batch: the first
//! [`MAX_CANDIDATES`] ids in order and the total weight, so that the host can sample
//! without reading all logits.
//!
//! Sampling parameters and grammar masks differ by row. The device needs only two of them: a bit
//! mask of the ranked ids, and the ids with logits that the host changes (biases, penalties);
//! these logits are returned unranked. So all rounding that depends on parameters happens on the
//! host. If neither top-k nor top-p truncates, the host would need all logits; such a token is
//! sampled on the device.

use super::grid::{COLUMNS, plain, row_count};
use super::row_sampling::RowSampler;
use super::sampling_method::{MAX_CANDIDATES, REQUEST_PARAMS};
use super::top_ids::{LogitRows, top_ids};
use super::weight::weight_of;
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::Function;

/// Maximum changed logits of a row: penalties cover the last 64 tokens by default, and an OpenAI
/// request may have 300 biases.
pub const MAX_CHANGED_LOGITS: usize = 384;

/// Bits of a mask word.
const WORD_BITS: usize = 32;

/// Returns the words of a bit mask with one bit for each id, padded to whole rows of a grid.
pub fn mask_words(vocabulary: usize) -> usize {
    vocabulary.div_ceil(COLUMNS) * (COLUMNS / WORD_BITS)
}

/// Returns the function `sample.ranks` for `n` rows of logits, `n` from 1 to `max_rows`.
///
/// Inputs:
/// - logits `[n, vocabulary]` f32
/// - bit mask of the ranked ids `[n, words]` i32
/// - parameters of each request `[n, 4]` f32
/// - random number of each request `[n]` i32
/// - ids of changed logits `[n, MAX_CHANGED_LOGITS]` i32
///
/// Outputs:
/// - logits of the changed ids, f32
/// - the first ids by descending logit, ties by ascending id, `[n, MAX_CANDIDATES]` i32
/// - their logits f32; −∞ for ids that are masked or outside the vocabulary
/// - sum of the [weights](super::weight) of all ranked ids `[n]` i64
/// - whether no ranked logit is NaN or +∞ `[n]` i32
/// - the id sampled from all ranked ids with these parameters `[n]` i32
pub fn candidates_function(vocabulary: usize, max_rows: usize) -> Function {
    let c = Capture::new(format!("sample.ranks{max_rows}"));
    let n = row_count(&c, max_rows);
    let (parts, columns) = (vocabulary.div_ceil(COLUMNS), COLUMNS);
    let logits = c.input("logits", dims![n, vocabulary], Scalar::F32);
    let bits = c.input("bits", dims![n, parts * (columns / WORD_BITS)], Scalar::I32);
    let numbers = c.input("requests", dims![n, REQUEST_PARAMS], Scalar::F32);
    let random = c.input("random", dims![n], Scalar::I32);
    let changed = c.input("changed", dims![n, MAX_CHANGED_LOGITS], Scalar::I32);
    let all = logits.reshape(dims![n * vocabulary as i64]);
    c.output(
        "raw",
        all.gather(logit_index(
            changed,
            c.iota(dims![n, MAX_CHANGED_LOGITS], 0),
            vocabulary,
        )),
    );
    let shape = dims![n, parts, columns];
    let x = match vocabulary % columns {
        0 => logits.reshape(shape),
        _ => all.gather(logit_index(
            c.iota(shape, 1) * columns as i64 + c.iota(shape, 2),
            c.iota(shape, 0),
            vocabulary,
        )),
    };
    let by_word = dims![n, parts, columns / WORD_BITS, WORD_BITS];
    let bit = (bits.reshape(dims![n, parts, columns / WORD_BITS, 1]) >> c.iota(by_word, 3)) & 1i64;
    let x = bit.reshape(shape).equals(1i64).select(x, f64::NEG_INFINITY);
    let of_part = x.max(&[2]);
    let largest = of_part.max(&[1]);
    let (values, ids) = top_ids(
        &LogitRows {
            x,
            of_row: of_part,
            n,
            rows: parts,
            columns,
        },
        MAX_CANDIDATES,
    );
    c.output("ids", ids);
    c.output("values", values);
    let below = x - largest.unsqueeze(1).unsqueeze(2);
    c.output("total", weight_of(below, plain(below)).sum(&[2]).sum(&[1]));
    c.output("sound", are_below_infinity(x, parts * columns));
    c.output(
        "drawn",
        RowSampler {
            x,
            of_part,
            largest,
            n,
            vocabulary,
            numbers,
            random,
        }
        .among_all(),
    );
    c.finish()
}

/// Returns whether each row `[n, parts, columns]` has no NaN or +∞ among its `count` logits.
fn are_below_infinity(x: Tensor<'_>, count: usize) -> Tensor<'_> {
    // Comparisons with NaN are false.
    let below = x
        .lt(f64::from(f32::MAX))
        .cast(Scalar::I32)
        .sum(&[2])
        .sum(&[1]);
    below.equals(count as i64).cast(Scalar::I32)
}

/// Returns the flat index of the logits of these ids in these rows.
fn logit_index<'g>(id: Tensor<'g>, row: Tensor<'g>, vocabulary: usize) -> Tensor<'g> {
    row * vocabulary as i64 + id.clamp_index(vocabulary - 1)
}
