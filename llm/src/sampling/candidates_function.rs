//! What a device tells the host of the logits of each row of a step of several sequences, so that the host can choose without them: the first [`BEST`] ids in order, and the
//! weight of all.
//!
//! Parameters differ from row to row, and so does what may come next. Most of it is the host's affair but for two things: which ids are ranked at all, a bit each, and
//! which logits are told as they are besides, because the host changes them (biases, penalties) and does not have them ranked. So nothing is rounded on a device that the host would round.
//! Where any id may come, the host would need all logits: such a token is drawn on the device.

use super::choose::{MAX_CANDIDATES, REQUEST_PARAMS};
use super::grid::{COLUMNS, plain};
use super::row_sampling::RowSampler;
use super::top_ids::{LogitRows, top_ids};
use super::weight::weight_of;
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::Function;

/// Most logits of a row that are told as they are: penalties look 64 tokens back unless said, and a request of OpenAI's may have biases for 300 tokens.
pub const MAX_CHANGED_LOGITS: usize = 384;

/// Bits of a word.
const WORD_BITS: usize = 32;

/// Words of a row of bits, one for each id and none for others: whole rows of a grid.
pub fn mask_words(vocabulary: usize) -> usize {
    vocabulary.div_ceil(COLUMNS) * (COLUMNS / WORD_BITS)
}

/// The function `sample.ranks` for `n` rows of logits over a vocabulary, `n` from 1 to `most`. Its slots: logits `[n, vocabulary]` f32; a bit for each id that is ranked
/// `[n, words]` i32; the numbers of each request `[n, 4]` f32, and the random number of each `[n]` i32; ids whose logits are told `[n, MAX_CHANGED_LOGITS]` i32, and these logits f32; the first ids in
/// descending order of their logits, of equal ones the lower id first `[n, BEST]` i32, and their logits f32, where what is not ranked, and what is no id, has −∞; the sum of the
/// [weights](super::weight) of all that are ranked `[n]` i64; whether all of those are numbers below infinity `[n]` i32; the id that is drawn with these numbers among all that are ranked `[n]` i32.
pub fn candidates_function(vocabulary: usize, most: usize) -> Function {
    let c = Capture::new(format!("sample.ranks{most}"));
    let n = if most == 1 { c.int(1) } else { c.var("n", 1, most) };
    let (parts, columns) = (vocabulary.div_ceil(COLUMNS), COLUMNS);
    let logits = c.input("logits", dims![n, vocabulary], Scalar::F32);
    let bits = c.input("bits", dims![n, parts * (columns / WORD_BITS)], Scalar::I32);
    let numbers = c.input("requests", dims![n, REQUEST_PARAMS], Scalar::F32);
    let random = c.input("random", dims![n], Scalar::I32);
    let changed = c.input("changed", dims![n, MAX_CHANGED_LOGITS], Scalar::I32);
    let all = logits.reshape(dims![n * vocabulary as i64]);
    c.output("raw", all.gather(logit_index(changed, c.iota(dims![n, MAX_CHANGED_LOGITS], 0), vocabulary)));
    let shape = dims![n, parts, columns];
    let x = match vocabulary % columns {
        0 => logits.reshape(shape),
        _ => {
            all.gather(logit_index(c.iota(shape, 1) * columns as i64 + c.iota(shape, 2), c.iota(shape, 0), vocabulary))
        }
    };
    let by_word = dims![n, parts, columns / WORD_BITS, WORD_BITS];
    let bit = (bits.reshape(dims![n, parts, columns / WORD_BITS, 1]) >> c.iota(by_word, 3)) & 1i64;
    let x = bit.reshape(shape).equals(1i64).select(x, f64::NEG_INFINITY);
    let of_part = x.max(&[2]);
    let largest = of_part.max(&[1]);
    let (values, ids) = top_ids(&LogitRows { x, of_row: of_part, n, rows: parts, columns }, MAX_CANDIDATES);
    c.output("ids", ids);
    c.output("values", values);
    let below = x - largest.unsqueeze(1).unsqueeze(2);
    c.output("total", weight_of(below, plain(below)).sum(&[2]).sum(&[1]));
    // Comparisons with what is no number are false.
    let below = x.lt(f64::from(f32::MAX)).cast(Scalar::I32).sum(&[2]).sum(&[1]);
    c.output("sound", below.equals((parts * columns) as i64).cast(Scalar::I32));
    c.output("drawn", RowSampler { x, of_part, largest, n, vocabulary, numbers, random }.among_all());
    c.finish()
}

/// Where the logits of these ids in these rows lie among all.
fn logit_index<'g>(id: Tensor<'g>, row: Tensor<'g>, vocabulary: usize) -> Tensor<'g> {
    row * vocabulary as i64 + id.clamp_index(vocabulary - 1)
}
