//! Sampling from the first few ids, which are ranked in [order](super::top_ids).

use super::grid::{Grid, RequestParams, at_least, count, exclusive_sums, inclusive_sums, plain};
use super::top_ids::{LogitRows, top_ids};
use super::weight::{probability_share_of, target_of, weight_of};
use gristmill_tensor::dims;
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::dtype::Scalar;

/// Returns the id drawn from the first `n` after truncation.
pub(super) fn top_k<'g>(grid: &Grid<'g>, request: &RequestParams<'g>, n: usize) -> Tensor<'g> {
    let c = grid.x.capture();
    let rows = LogitRows {
        x: grid.x.unsqueeze(0),
        of_row: grid.row_max.unsqueeze(0),
        n: c.int(1),
        rows: grid.rows,
        columns: grid.columns,
    };
    let (x, id) = top_ids(&rows, n);
    let (x, id) = (x.reshape(dims![n]), id.reshape(dims![n]));
    let below = x - grid.largest;
    let place = c.iota(dims![n], 0);
    // Probabilities are relative to the first k; an id remains while the ids before it have less
    // than top-p in total.
    let among = place.lt(request.top_k.cast(Scalar::I32));
    let none = c.constant(0.0, Scalar::I64);
    let mass = among.select(weight_of(below, plain(below)), none);
    let wanted = probability_share_of(mass.sum(&[0]), request.top_p);
    let inside = id.lt(grid.vocabulary as i64);
    let stays = among
        & inside
        & exclusive_sums(mass, n).lt(wanted)
        & at_least(x, grid.largest + request.min_p);
    let weight = stays.select(weight_of(below, request.scale), none);
    let target = target_of(weight.sum(&[0]), request.random);
    // The first id with a prefix sum above the target.
    let place = count(target.lt(inclusive_sums(weight, n))) * -1i64 + n as i64;
    id.gather(place.clamp_index(n - 1).reshape(dims![1]))
        .reshape(dims![])
}
