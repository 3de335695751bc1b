//! Contractions of a packed weight with several tokens by f16 MMA fragments of a warp. Activations
//! are rounded to f16, the weight is dequantised to f16 in registers, and products accumulate in
//! f32. Formats with arbitrary power-of-two scales use bf16 instead.
//!
//! Scales are applied to the weight's elements, so no work remains per group of terms, as in
//! integer products. Since no sum ends with a group, each lane of a row may have a group of its
//! own, which it reads with one wide load.
//!
//! Activations are materialised in the order in which lanes read them ([`place`]).

use super::operands::{Operands, Suits, moved, repeats};
use crate::ir::layout::{Layout, Packing};
use crate::ir::mma::fragment::OF_LANE;
use crate::ir::nest::strided;
use gristmill_uop::fragment::Fragment;
use gristmill_uop::machine::{Machine, MachineKind};
use gristmill_uop::{Arg, Graph, Id, ReduceOp, Scalar};
use std::iter::successors;

/// Lanes of a warp that share a row, or a column, of a fragment.
pub const LANES: i64 = 4;
/// Fewest terms per lane and step: those of two MMA instructions.
const MIN_OF_LANE: i64 = 8;
/// Terms of a 16-byte load.
pub const WIDE: i64 = 8;
/// Terms whose codes are the bytes of a 32-bit word.
pub const QUAD: i64 = 4;
/// Largest finite f16; activations are clamped to ±this.
const LARGEST: f64 = 65504.0;
/// Power of two that f16 activations are divided by and weights multiplied by. The largest
/// activation is then 65,504 · 32, the least difference between small ones 2⁻¹⁹, and weights up
/// to 2,047 fit.
const SHIFT: f64 = 32.0;
/// Instructions per thread and group of terms of an integer product, after the MMA: a shift, a
/// conversion, two multiplications. Counted, not measured.
const OF_GROUP: f64 = 4.0;
/// f32 operations per term that those instructions cost, at two operations an instruction.
pub const GROUP_OF_A_TERM: f64 = 2.0 * OF_GROUP / OF_LANE as f64;

/// An f16 product and its materialised activations.
pub struct F16Product {
    /// Reduction node of the product.
    pub sum: Id,
    /// Rounded activations, which are materialised.
    pub rounded: Id,
    /// Memory order of the activations.
    pub order: Order,
}

/// Memory order of rounded activations.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Order {
    /// Terms per step, over all lanes that share a row.
    pub step: i64,
    /// Whether some reader is faster with warpgroup MMA.
    pub group: bool,
    /// Whether some reader needs warp MMA or is slower with warpgroup MMA.
    pub alone: bool,
}

impl Order {
    /// Whether the activations are stored in the order of warpgroup MMA.
    pub fn is_of_groups(self) -> bool {
        self.group && !self.alone
    }
    /// Merges the orders wanted by two readers.
    pub fn and(self, other: Order) -> Order {
        Order {
            group: self.group || other.group,
            alone: self.alone || other.alone,
            ..self
        }
    }
}

/// Whether an f16 MMA costs less per term than an int8 MMA with its per-group work.
fn pays(machine: &Machine, of: &Fragment) -> bool {
    let Some(bytes) = machine.fragment(Scalar::I8) else {
        return true;
    };
    machine.term_of(of) < machine.term_of(bytes) + GROUP_OF_A_TERM
}

/// A contraction as f16 fragments compute it.
struct Multiplied {
    /// Operand type, f16 or bf16.
    operand: Scalar,
    /// The machine's MMA instruction.
    of: &'static Fragment,
    /// Tokens that share the weight, at most.
    tokens: i64,
    /// Terms per row, and per step.
    terms: i64,
    step: i64,
}

impl Multiplied {
    /// Matches a contraction to the machine's fragments; `None` if it does not fit.
    fn from_operands(
        g: &Graph,
        of: Operands,
        layout: Layout,
        packing: &Packing,
        machine: &Machine,
    ) -> Option<Multiplied> {
        let operand = match packing.scales_of_bits() {
            None => Scalar::F16,
            // Power-of-two scales, which bf16 can represent.
            Some(Scalar::F32) => Scalar::BF16,
            Some(_) => return None,
        };
        let fragment = machine
            .fragment(operand)
            .filter(|_| machine.kind == MachineKind::Gpu)?;
        let &[ref front @ .., columns] = g.dims(of.x) else {
            return None;
        };
        let shared = (0..front.len())
            .filter(|&axis| repeats(g, of.weight, axis))
            .map(|axis| g.max_of(front[axis]));
        let tokens = shared.product();
        let terms = g.int_value(columns)?;
        let whole = g
            .int_value(*front.last()?)
            .is_some_and(|n| n % fragment.rows == 0);
        let fits =
            layout != Layout::File && packing.group % QUAD == 0 && g.scalar(of.base) == Scalar::F32;
        let step = step(terms)?;
        (whole && fits && tokens >= machine.gpu_facts().fragment_tokens).then_some(Multiplied {
            operand,
            of: fragment,
            tokens,
            terms,
            step,
        })
    }
    /// Fewest tokens for which measurements favour this form.
    fn least(&self, machine: &Machine) -> i64 {
        let (steps, facts) = (self.terms / self.step, machine.gpu_facts());
        if steps % 2 == 0 || steps <= facts.steps_of_one_warp {
            facts.fragment_tokens
        } else {
            facts.fragment_tokens_of_odd_rows
        }
    }
}

/// Returns how f16 fragments suit a contraction of a weight with this layout and packing.
pub fn suits(
    g: &Graph,
    of: Operands,
    layout: Layout,
    packing: &Packing,
    machine: &Machine,
) -> Suits {
    let multiplied = Multiplied::from_operands(g, of, layout, packing, machine);
    multiplied.map_or(Suits::Not, |m| {
        Suits::by(m.tokens >= m.least(machine) && pays(machine, m.of))
    })
}

/// Rewrites a contraction as a product of f16 fragments; [`suits`] must allow it.
pub fn product(
    g: &mut Graph,
    of: Operands,
    layout: Layout,
    packing: &Packing,
    machine: &Machine,
) -> F16Product {
    let Some(by) = Multiplied::from_operands(g, of, layout, packing, machine) else {
        unreachable!("no fragments suit {of:?}")
    };
    let Operands { weight, x, base } = of;
    let (activations, weight) = if by.operand == Scalar::F16 {
        shifted(g, base, weight)
    } else {
        (base, weight)
    };
    let rounded = g.cast(activations, by.operand);
    let x = moved(g, x, base, rounded);
    let weight = g.cast(weight, by.operand);
    let [weight, x] = [weight, x].map(|side| g.cast(side, Scalar::F32));
    let product = g.mul(weight, x);
    let order = order(g, weight, &by, machine);
    let last = g.dims(x).len() - 1;
    F16Product {
        sum: g.reduce(product, &[last], ReduceOp::Add),
        rounded,
        order,
    }
}

/// The activation order that suits this product by itself.
fn order(g: &Graph, weight: Id, by: &Multiplied, machine: &Machine) -> Order {
    let (dims, step, tokens) = (g.dims(weight), by.step, by.tokens);
    let &[.., rows, columns] = dims else {
        return Order {
            step,
            group: false,
            alone: true,
        };
    };
    let facts = machine.gpu_facts();
    let (high, wide) = (facts.warpgroup_tile_rows, facts.warpgroup_tile_tokens);
    let outputs: i64 = dims[..dims.len() - 1]
        .iter()
        .map(|&d| g.max_of(d))
        .product();
    let others = outputs / tokens / g.max_of(rows).max(1);
    let tiles = others * (g.max_of(rows) / high) * ((tokens + wide - 1) / wide);
    // Enough tiles that nearly every processor unit has one.
    let group = machine.fragments.iter().any(Fragment::is_of_group)
        && 4 * tiles >= 3 * machine.units as i64;
    // With MoE there are more token tiles than expert weights, and small ones do not pay. The ring
    // buffer of warpgroup MMA needs a loop, so more than one step.
    let whole = g
        .int_value(rows)
        .is_some_and(|n| n % rows_of_warpgroup(machine) == 0)
        && g.int_value(columns) != Some(step);
    let small = others > matrices(g, weight) && tokens < facts.warpgroup_expert_tokens;
    Order {
        step,
        group,
        alone: by.operand != Scalar::F16 || !whole || small,
    }
}

/// Rows of a tile of warpgroup MMA with two sums that share columns: half the height.
pub fn rows_of_warpgroup(machine: &Machine) -> i64 {
    machine.gpu_facts().warpgroup_tile_rows / 2
}

/// Number of matrices in the packed weight below `w`, such as experts.
fn matrices(g: &Graph, w: Id) -> i64 {
    let order = g.toposort(&[w]);
    let stored = order
        .into_iter()
        .find(|&n| matches!(g[n].arg, Arg::Packed(..)));
    let dims = stored.map_or(&[][..], |n| g.dims(n));
    dims[..dims.len().saturating_sub(2)]
        .iter()
        .map(|&d| g.max_of(d))
        .product()
}

/// Terms per step that divide a row of `columns` terms.
fn step(columns: i64) -> Option<i64> {
    let of_lane = successors(Some(OF_LANE), |n| Some(n / 2)).take_while(|&n| n >= MIN_OF_LANE);
    of_lane.map(|n| LANES * n).find(|step| columns % step == 0)
}

/// Scales activations down into f16's range and clamps them; scales the weight up to compensate.
pub(super) fn shifted(g: &mut Graph, x: Id, w: Id) -> (Id, Id) {
    let [down, up, least, most] =
        [1.0 / SHIFT, SHIFT, -LARGEST, LARGEST].map(|v| g.constant(Scalar::F32.one(), v));
    let x = g.mul(x, down);
    let x = g.max(x, least);
    (g.min(x, most), g.mul(w, up))
}

/// Returns the memory position of element `k` of row `row` of `rows`.
///
/// Elements that a warp loads at once are contiguous: 512 bytes for eight adjacent rows. In each
/// four terms (the bytes of a word), terms two apart are adjacent. For warpgroup MMA 16 bytes hold
/// the terms that the four lanes multiply at once.
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
    let before = [
        (number, loads * rows * LANES * WIDE),
        (load, rows * LANES * WIDE),
        (row, LANES * WIDE),
    ];
    strided(g, &[&before[..], &of_row, &[(high, 1)]].concat())
}

/// Splits a term's index into mixed-radix digits, each `[count, stride along the row]`.
///
/// The first list has the digits within a 16-byte unit, fastest first; the second those of
/// consecutive units of a row.
pub fn digits(order: Order) -> [Vec<[i64; 2]>; 2] {
    let [high, odd, quad, lane] = [[2, 2], [2, 1], [2, QUAD], [LANES, order.step / LANES]];
    match order.is_of_groups() {
        false => [vec![high, odd, quad], vec![lane]],
        true => [vec![high, lane], vec![odd, quad]],
    }
}

/// First term of a word of unit `unit` within group `four` of units, in the order of warpgroup MMA.
///
/// `of_lane` is the first term of the lane that multiplies the word. The distance to its second
/// term is that of [`word`].
pub fn unit_word(g: &mut Graph, unit: Id, four: i64, of_lane: i64) -> Id {
    let [two, quad, before] = [2, QUAD, of_lane + 2 * QUAD * four].map(|n| g.int(n));
    let (of_quad, odd) = (g.idiv(unit, two), g.modulo(unit, two));
    let of_quad = g.mul(of_quad, quad);
    let at = g.add(of_quad, odd);
    g.add(at, before)
}

/// Returns the first term of a lane's word `number` within a step, and the distance
/// to its second term.
pub fn word(number: i64) -> [i64; 2] {
    [QUAD * (number / 2) + number % 2, 2]
}
