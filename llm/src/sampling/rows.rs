//! Greedy choice of a token for each row of a batch, as a device function.

use super::grid::{COLUMNS, parts_of_rows, row_count};
use gristmill_tensor::dims;
use gristmill_tensor::function::Capture;
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::dtype::Scalar;
use gristmill_uop::function::Function;

/// Returns the function `sample.greedy.rows` for `n` rows of logits, `n` from 1 to `max_rows`.
///
/// Input: logits `[n, vocabulary]` f32. Output: for each row the first id with the largest logit,
/// `[n]` i32, or −1 if a logit is NaN or infinite, or none is above −∞.
pub fn rows_function(vocabulary: usize, max_rows: usize) -> Function {
    let c = Capture::new(format!("sample.greedy.rows{max_rows}"));
    let n = row_count(&c, max_rows);
    let (parts, columns) = (vocabulary.div_ceil(COLUMNS), COLUMNS);
    let logits = c.input("logits", dims![n, vocabulary], Scalar::F32);
    let x = parts_of_rows(logits, n, vocabulary);
    let of_part = x.max(&[2]);
    let largest = of_part.max(&[1]);
    let part = first_true(of_part.equals(largest.unsqueeze(1)), parts, dims![n, parts]);
    let row = c.iota(dims![n], 0) * parts as i64 + part.clamp_index(parts - 1);
    let found = x.reshape(dims![n * parts as i64, columns]).gather(row);
    let column = first_true(
        found.equals(largest.unsqueeze(1)),
        columns,
        dims![n, columns],
    );
    let id = (part * columns as i64 + column).clamp_index(vocabulary - 1);
    // Comparisons with NaN are false.
    let below = x
        .lt(f64::from(f32::MAX))
        .cast(Scalar::I32)
        .sum(&[2])
        .sum(&[1]);
    let sound = below.equals((parts * columns) as i64) & largest.gt(f64::from(f32::MIN));
    c.output("tokens", sound.select(id, c.constant(-1.0, Scalar::I32)));
    c.finish()
}

/// Returns the first true index of each row of `hit [n, m]`, or the last index if there is none.
fn first_true<'g>(hit: Tensor<'g>, m: usize, dims: &[gristmill_tensor::tensor::Dim]) -> Tensor<'g> {
    let c = hit.capture();
    let (last, back) = (m as i64 - 1, -1i64);
    let place = c.iota(dims, 1) * back + last;
    hit.select(place, c.constant(0.0, Scalar::I32)).max(&[1]) * back + last
}
