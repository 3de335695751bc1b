//! A choice among the best few: they are found in order, ties included, in three steps that each keep as many parts of the vocabulary as
//! ids are wanted.
//!
//! Of parts ranked by their largest logit (of equal ones the earlier first), the first k hold the first k ids: an id in another part
//! has k ids before it, one in each of these. So rows of 256 become k rows, those k rows of 16, those k ids. To rank n things
//! takes n² comparisons: 2.5 million for 64 of 154,880 ids, of which no kernel waits for another but at the three steps.

use super::grid::{Grid, Request, at_least, count, plain, sums_before, sums_up_to};
use super::weight::{part_of, target_of, weight_of};
use gristmill_tensor::dims;
use gristmill_tensor::tensor::Tensor;
use gristmill_uop::dtype::Scalar;

/// Length of the shorter rows.
const SHORT: usize = 16;

/// Places, among `n` values with ids, of the `k` largest in descending order; of equal ones the lower id comes first. i32.
fn largest<'g>(value: Tensor<'g>, id: Tensor<'g>, n: usize, k: usize) -> Tensor<'g> {
    let c = value.capture();
    let before = value.unsqueeze(1).lt(value.unsqueeze(0))
        | (value.unsqueeze(1).equals(value.unsqueeze(0)) & id.unsqueeze(0).lt(id.unsqueeze(1)));
    let rank = before.cast(Scalar::I32).sum(&[1]);
    let hot = rank.unsqueeze(0).equals(c.iota(dims![k, n], 0));
    (hot.cast(Scalar::I32) * c.iota(dims![k, n], 1)).sum(&[1]).clamp_index(n - 1)
}

/// The first `k` ids with their logits, in order: f32 and i32.
fn first_ids<'g>(grid: &Grid<'g>, k: usize) -> (Tensor<'g>, Tensor<'g>, usize) {
    let c = grid.x.capture();
    let rows = k.min(grid.rows);
    let row = largest(grid.row_max, c.iota(dims![grid.rows], 0), grid.rows, rows);
    let parts = rows * (grid.columns / SHORT);
    let x = grid.x.gather(row).reshape(dims![parts, SHORT]);
    let of_row = dims![rows, grid.columns / SHORT];
    let start = (row.unsqueeze(1) * grid.columns as i64 + c.iota(of_row, 1) * SHORT as i64).reshape(dims![parts]);
    let kept = k.min(parts);
    let part = largest(x.max(&[1]), start, parts, kept);
    let n = kept * SHORT;
    let id = (start.gather(part).unsqueeze(1) + c.iota(dims![kept, SHORT], 1)).reshape(dims![n]);
    let x = x.gather(part).reshape(dims![n]);
    let k = k.min(n);
    let place = largest(x, id, n, k);
    (x.gather(place), id.gather(place), k)
}

/// The id drawn from the first `most`, after truncation.
pub(super) fn best<'g>(grid: &Grid<'g>, request: &Request<'g>, most: usize) -> Tensor<'g> {
    let c = grid.x.capture();
    let (x, id, n) = first_ids(grid, most);
    let below = x - grid.largest;
    let place = c.iota(dims![n], 0);
    // Probabilities are those among the first k; an id stays while those before it have not enough together.
    let among = place.lt(request.top_k.cast(Scalar::I32));
    let none = c.constant(0.0, Scalar::I64);
    let mass = among.select(weight_of(below, plain(below)), none);
    let wanted = part_of(mass.sum(&[0]), request.top_p);
    let inside = id.lt(grid.vocabulary as i64);
    let stays = among & inside & sums_before(mass, n).lt(wanted) & at_least(x, grid.largest + request.min_p);
    let weight = stays.select(weight_of(below, request.scale), none);
    let target = target_of(weight.sum(&[0]), request.random);
    // The first whose sum is above the target.
    let place = count(target.lt(sums_up_to(weight, n))) * -1i64 + n as i64;
    id.gather(place.clamp_index(n - 1).reshape(dims![1])).reshape(dims![])
}
