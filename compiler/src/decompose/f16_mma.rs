//! Contractions of a packed weight with several tokens, where warps multiply fragments of halves: activations are rounded to halves, the weight's elements where they are
//! unpacked, and products are added in f32. Halves are f16; of formats whose scales are powers of two of any size, bf16. Scales are within the weight's elements, so
//! nothing is left to do for every group of terms, as there is in integers; and since no sum ends with a group, each lane of a row may have a group of its own, which
//! it reads as one wide load.
//!
//! Activations have a buffer of their own, in the order in which lanes read it ([`place`]).

use super::operands::{Operands, Suits, moved, repeats};
use crate::ir::layout::{Layout, Packing};
use crate::ir::mma::fragment::OF_LANE;
use crate::ir::nest::strided;
use gristmill_uop::fragment::Fragment;
use gristmill_uop::machine::{Machine, MachineKind};
use gristmill_uop::{Arg, Graph, Id, ReduceOp, Scalar};
use std::iter::successors;

/// Lanes of a warp that share a row, or a column.
pub const LANES: i64 = 4;
/// Fewest of them: of two products.
const LEAST_OF_LANE: i64 = 8;
/// Terms of a wide load of 16 bytes.
pub const WIDE: i64 = 8;
/// Terms whose codes are bytes of a word.
pub const QUAD: i64 = 4;
/// The largest f16: what is beyond it is taken for it.
const LARGEST: f64 = 65504.0;
/// Activations in f16 are divided by so much, and the weight's elements multiplied, a power of two, so that products stay the same: 65,504 · 32 is the largest activation
/// then, 2⁻¹⁹ the least difference between small ones, and elements up to 2,047 fit.
const SHIFT: f64 = 32.0;
/// Instructions of a thread for each product of a group of terms in integers, after the fragment's own: a shift, a conversion, two factors. Counted, not measured.
const OF_GROUP: f64 = 4.0;
/// f32 operations of a term that these are, of which an instruction counts as two.
pub const GROUP_OF_A_TERM: f64 = 2.0 * OF_GROUP / OF_LANE as f64;
/// Fewest tokens that share what is unpacked, as one alone has no columns beside it, though most of a fragment's are empty then: of integers each token is multiplied after the other. Steps of two sequences took an H100 5 to 21 %
/// less than by integers, of four 19 to 34 % (five models).
const LEAST: i64 = 2;
/// The same where a row has many steps that warps cannot share, as their number is odd: as many as a fragment has columns. Queries of gpt-oss, 45 steps, take an H100 27 us so, and two tokens 10 by
/// integers.
const LEAST_OF_ODD: i64 = 8;
/// Steps of a row, at most, that one warp takes about as fast as several would: GLM's keys of each head have 3. Between 3 and 45 nothing was measured.
const FEW_STEPS: i64 = 8;

/// Rows and tokens of a workgroup's tile where several warps share columns. Smaller tiles read more of the second-level cache than it has time for (an H200's product of 2,048
/// rows and 512 tokens by tiles of 128 and 64: 75 us, 45 by warps that have columns of their own), and so do what is left of rows (V2-Lite's 576 of 2,048 tokens: 53 us, 31).
pub const TILE_OF_GROUPS: [i64; 2] = [256, 128];
/// Tokens of a tile whose weights data tells, where several warps share columns. Gate and up of GLM's experts, 128 tokens each of 2,048, on an H200: 444 us by warps that have columns of their
/// own and 32 tokens, 366 so.
pub const LEAST_OF_GROUP: i64 = 64;
/// Rows of a tile of two sums that share columns, which is half as high.
pub const ROWS_OF_GROUP: i64 = TILE_OF_GROUPS[0] / 2;

/// The product of halves, and the node that has a buffer for it.
pub struct F16Product {
    /// The sum.
    pub sum: Id,
    /// Activations.
    pub rounded: Id,
    /// How they lie.
    pub order: Order,
}

/// The order of activations in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Order {
    /// Terms of a step: of all lanes that share a row.
    pub step: i64,
    /// Are there products of several warps to gain by them?
    pub group: bool,
    /// Are there some that would lose?
    pub alone: bool,
}

impl Order {
    /// Are they for the products of several warps?
    pub fn is_of_groups(self) -> bool {
        self.group && !self.alone
    }
    /// The order for those who read the one and those who read the other.
    pub fn and(self, other: Order) -> Order {
        Order { group: self.group || other.group, alone: self.alone || other.alone, ..self }
    }
}

/// Does the machine's product of such halves take less than the one of bytes with the sums of groups in integers?
fn pays(machine: &Machine, of: &Fragment) -> bool {
    let Some(bytes) = machine.fragment(Scalar::I8) else { return true };
    machine.term_of(of) < machine.term_of(bytes) + GROUP_OF_A_TERM
}

/// A contraction as fragments of halves multiply it.
struct Multiplied {
    /// Their type.
    operand: Scalar,
    /// The machine's product of them.
    of: &'static Fragment,
    /// Tokens that share the weight, at most.
    tokens: i64,
    /// Terms of a row, and of a step.
    terms: i64,
    step: i64,
}

impl Multiplied {
    /// The contraction of a weight that lies so, where it fits the machine's fragments.
    fn from_operands(
        g: &Graph,
        of: Operands,
        layout: Layout,
        packing: &Packing,
        machine: &Machine,
    ) -> Option<Multiplied> {
        let operand = match packing.scales_of_bits() {
            None => Scalar::F16,
            // Powers of two, which bf16 has.
            Some(Scalar::F32) => Scalar::BF16,
            Some(_) => return None,
        };
        let fragment = machine.fragment(operand).filter(|_| machine.kind == MachineKind::Gpu)?;
        let &[ref front @ .., columns] = g.dims(of.x) else { return None };
        let shared = (0..front.len()).filter(|&axis| repeats(g, of.weight, axis)).map(|axis| g.max_of(front[axis]));
        let tokens = shared.product();
        let terms = g.int_value(columns)?;
        let whole = g.int_value(*front.last()?).is_some_and(|n| n % fragment.rows == 0);
        let fits = layout != Layout::File && packing.group % QUAD == 0 && g.scalar(of.base) == Scalar::F32;
        let step = step(terms)?;
        (whole && fits && tokens >= LEAST).then_some(Multiplied { operand, of: fragment, tokens, terms, step })
    }
    /// Fewest tokens that measurements are for.
    fn least(&self) -> i64 {
        let steps = self.terms / self.step;
        if steps % 2 == 0 || steps <= FEW_STEPS { LEAST } else { LEAST_OF_ODD }
    }
}

/// How fragments of halves suit a contraction of a weight that lies so.
pub fn suits(g: &Graph, of: Operands, layout: Layout, packing: &Packing, machine: &Machine) -> Suits {
    let multiplied = Multiplied::from_operands(g, of, layout, packing, machine);
    multiplied.map_or(Suits::Not, |m| Suits::by(m.tokens >= m.least() && pays(machine, m.of)))
}

/// The contraction, if fragments of halves suit it, as a product of these.
pub fn product(g: &mut Graph, of: Operands, layout: Layout, packing: &Packing, machine: &Machine) -> F16Product {
    let Some(by) = Multiplied::from_operands(g, of, layout, packing, machine) else {
        unreachable!("no fragments suit {of:?}")
    };
    let Operands { weight, x, base } = of;
    let (activations, weight) = if by.operand == Scalar::F16 { shifted(g, base, weight) } else { (base, weight) };
    let rounded = g.cast(activations, by.operand);
    let x = moved(g, x, base, rounded);
    let weight = g.cast(weight, by.operand);
    let [weight, x] = [weight, x].map(|side| g.cast(side, Scalar::F32));
    let product = g.mul(weight, x);
    let order = order(g, weight, &by, machine);
    let last = g.dims(x).len() - 1;
    F16Product { sum: g.reduce(product, &[last], ReduceOp::Add), rounded, order }
}

/// The order of activations that suits a product of `weight` by itself.
fn order(g: &Graph, weight: Id, by: &Multiplied, machine: &Machine) -> Order {
    let (dims, step, tokens) = (g.dims(weight), by.step, by.tokens);
    let &[.., rows, columns] = dims else { return Order { step, group: false, alone: true } };
    let [high, wide] = TILE_OF_GROUPS;
    let outputs: i64 = dims[..dims.len() - 1].iter().map(|&d| g.max_of(d)).product();
    let others = outputs / tokens / g.max_of(rows).max(1);
    let tiles = others * (g.max_of(rows) / high) * ((tokens + wide - 1) / wide);
    // As many as nearly every multiprocessor has one of.
    let group = machine.fragments.iter().any(Fragment::is_of_group) && 4 * tiles >= 3 * machine.units as i64;
    // Of tiles of tokens that data gives their weights there are more than weights, and small ones are not worth it; and a ring wants a loop: of one step there is none.
    let whole = g.int_value(rows).is_some_and(|n| n % ROWS_OF_GROUP == 0) && g.int_value(columns) != Some(step);
    let small = others > matrices(g, weight) && tokens < LEAST_OF_GROUP;
    Order { step, group, alone: by.operand != Scalar::F16 || !whole || small }
}

/// Matrices of rows in the packed weight that `w` moves.
fn matrices(g: &Graph, w: Id) -> i64 {
    let order = g.toposort(&[w]);
    let stored = order.into_iter().find(|&n| matches!(g[n].arg, Arg::Packed(..)));
    let dims = stored.map_or(&[][..], |n| g.dims(n));
    dims[..dims.len().saturating_sub(2)].iter().map(|&d| g.max_of(d)).product()
}

/// Terms of a step over rows of so many.
fn step(columns: i64) -> Option<i64> {
    let of_lane = successors(Some(OF_LANE), |n| Some(n / 2)).take_while(|&n| n >= LEAST_OF_LANE);
    of_lane.map(|n| LANES * n).find(|step| columns % step == 0)
}

/// Activations that f16 has, and a weight whose products with them are the same.
pub(super) fn shifted(g: &mut Graph, x: Id, w: Id) -> (Id, Id) {
    let [down, up, least, most] = [1.0 / SHIFT, SHIFT, -LARGEST, LARGEST].map(|v| g.constant(Scalar::F32.one(), v));
    let x = g.mul(x, down);
    let x = g.max(x, least);
    (g.min(x, most), g.mul(w, up))
}

/// Where the element `k` of row `row` of `rows` lies: what a warp's lanes read at once lies together, of eight rows beside one another 512 bytes; and of four
/// terms, whose codes are bytes of a word, every second one beside the other. Where several warps share them, 16 bytes are what the four lanes multiply at once.
pub fn place(g: &mut Graph, order: Order, rows: i64, row: Id, k: Id) -> Id {
    let step = order.step;
    let loads = step / LANES / WIDE;
    let [step, of_lane, wide, quad, two] = [step, step / LANES, WIDE, QUAD, 2].map(|n| g.int(n));
    let (number, within) = (g.idiv(k, step), g.modulo(k, step));
    let (lane, within) = (g.idiv(within, of_lane), g.modulo(within, of_lane));
    let (load, within) = (g.idiv(within, wide), g.modulo(within, wide));
    let (of_quad, term) = (g.idiv(within, quad), g.modulo(within, quad));
    let (odd, high) = (g.modulo(term, two), g.idiv(term, two));
    let of_row = match order.is_of_groups() {
        false => [(lane, WIDE), (of_quad, QUAD), (odd, 2)],
        true => [(of_quad, 2 * WIDE), (odd, WIDE), (lane, 2)],
    };
    let before = [(number, loads * rows * LANES * WIDE), (load, rows * LANES * WIDE), (row, LANES * WIDE)];
    strided(g, &[&before[..], &of_row, &[(high, 1)]].concat())
}

/// A term's number in digits, each with its count and with how far apart in a row its values are: those of a unit of 16 bytes, the first of which are neighbours, and those of
/// the units that follow one another of a row.
pub fn digits(order: Order) -> [Vec<[i64; 2]>; 2] {
    let [high, odd, quad, lane] = [[2, 2], [2, 1], [2, QUAD], [LANES, order.step / LANES]];
    match order.is_of_groups() {
        false => [vec![high, odd, quad], vec![lane]],
        true => [vec![high, lane], vec![odd, quad]],
    }
}

/// The first term of a word of the unit of that number within so many units of four, in that order of several warps: `of_lane` is the first term of the lane that
/// multiplies it. The second is as far behind it as [`word`] says.
pub fn unit_word(g: &mut Graph, unit: Id, four: i64, of_lane: i64) -> Id {
    let [two, quad, before] = [2, QUAD, of_lane + 2 * QUAD * four].map(|n| g.int(n));
    let (of_quad, odd) = (g.idiv(unit, two), g.modulo(unit, two));
    let of_quad = g.mul(of_quad, quad);
    let at = g.add(of_quad, odd);
    g.add(at, before)
}

/// The first term of a lane's word of that number within a step, and the distance to its second.
pub fn word(number: i64) -> [i64; 2] {
    [QUAD * (number / 2) + number % 2, 2]
}
