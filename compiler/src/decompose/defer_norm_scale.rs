//! Moves factors common to all terms of a sum from the activations to the
//! sum: the decision `factor`.
//!
//! A norm multiplies a row of activations by one number, which is a reduction over the whole row.
//! After the rewrite the product with a weight waits only for the row's quantised values; their
//! scales are per group. The norm's reduction runs in a parallel kernel of the same launch
//! (`Hint::concurrent`), and its result scales the sums where they are read. If the rest of the row
//! depends on the same number, as it does after a gate, nothing is gained and nothing is moved.
//!
//! Only for a single row: products of several rows are f16 (`f16_mma.rs`), and activations without
//! their norm's factor may exceed its range.

use super::int8::{base_of, rename};
use super::operands::{moved, repeats};
use crate::decision::{Alike, DEFER_NORM_SCALE, Decider};
use crate::ir::hints::Hint;
use crate::ir::size_estimate::typical;
use gristmill_uop::function::{Function, SlotKind};
use gristmill_uop::target::Target;
use gristmill_uop::{Arg, Graph, Id, Op, ReduceOp, Scalar, Sources};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// Bound on nested multiplications searched for a factor; no model has more.
const DEEPEST: usize = 4;

/// Moves factors from activations to the sums of the contractions below `roots`,
/// where it is decided.
pub fn defer_norm_scale(
    g: &mut Graph,
    roots: &mut [Id],
    hints: &mut FxHashMap<Id, Hint>,
    function: &Function,
    target: &Target,
    decider: &mut Decider,
) {
    // Without horizontal fusion the reduction cannot run in parallel with another kernel.
    if !(target.factors && target.merge) {
        return;
    }
    let order = g.toposort(roots);
    let product = |&id: &Id| {
        Product::from_node(g, id, function)
            .filter(|of| !of.is_asked_for(g, hints))
            .map(|of| (id, of))
    };
    let products: Vec<(Id, Product)> = order.iter().filter_map(product).collect();
    let mut norms = Norms::for_products(g, &products, function);
    let of_base: FxHashMap<Id, Id> = products.iter().map(|(id, of)| (*id, of.base)).collect();
    let mut map: FxHashMap<Id, Id> = FxHashMap::default();
    for id in order {
        let n = g[id].clone();
        let src: Sources = n.src.iter().map(|s| map[s]).collect();
        let mut new = if src == n.src {
            id
        } else {
            g.build(n.op, n.dtype, src, n.arg)
        };
        if let Some(&base) = of_base.get(&id)
            && let Some(of) = Product::from_node(g, new, function)
            && let Some(apart) = norms.apart(g, base, of.base, target, decider)
        {
            for node in apart.factors.iter().map(|&f| folded(g, f)) {
                hints.entry(node).or_insert_with(Hint::concurrent);
            }
            new = of.without(g, &apart);
        }
        map.insert(id, new);
    }
    for r in roots {
        *r = map[r];
    }
    rename(hints, &map);
}

/// A contraction of a weight with one row of activations (matrix–vector product).
struct Product {
    weight: Id,
    /// Activations, moved to the product's shape.
    x: Id,
    /// The row of activations that `x` moves.
    base: Id,
    /// Function slot of the weight.
    slot: u32,
}

impl Product {
    fn from_node(g: &Graph, id: Id, function: &Function) -> Option<Product> {
        let Arg::Reduce(ReduceOp::Add, axes) = &g[id].arg else {
            return None;
        };
        let product = &g[g[id].src[0]];
        let last = g.dims(g[id].src[0]).len().checked_sub(1)?;
        if product.op != Op::Mul || axes[..] != [last as u8] || g.scalar(id) != Scalar::F32 {
            return None;
        }
        let sides = [
            (product.src[0], product.src[1]),
            (product.src[1], product.src[0]),
        ];
        let (weight, x, slot) = sides
            .into_iter()
            .find_map(|(w, x)| Some((w, x, weight_of(g, function, w)?)))?;
        let base = base_of(g, x);
        let (_, rows) = g.dims(base).split_last()?;
        let one_row =
            rows.iter().all(|&d| g.int_value(d) == Some(1)) && g.dims(x).len() == last + 1;
        one_row.then_some(Product {
            weight,
            x,
            base,
            slot,
        })
    }
    /// Whether a hint exists for the row or for a node that moves it.
    fn is_asked_for(&self, g: &Graph, hints: &FxHashMap<Id, Hint>) -> bool {
        let chain = std::iter::successors(Some(self.x), |&x| (x != self.base).then(|| g[x].src[0]));
        chain.into_iter().any(|x| hints.contains_key(&x))
    }
    /// Rebuilds the contraction without these factors and multiplies its sums by them.
    fn without(&self, g: &mut Graph, apart: &Apart) -> Id {
        let x = moved(g, self.x, self.base, apart.row);
        let product = g.mul(self.weight, x);
        let last = g.dims(product).len() - 1;
        let sum = g.reduce(product, &[last], ReduceOp::Add);
        let dims = g.shape(sum);
        apart.factors.iter().fold(sum, |sum, &factor| {
            let ones = vec![g.int(1); dims.len()];
            let factor = g.reshape(factor, &ones);
            let factor = g.expand(factor, &dims);
            g.mul(sum, factor)
        })
    }
}

/// Finds the slot of a weight, packed or plain, through movements, casts, decoding and gathers.
fn weight_of(g: &Graph, function: &Function, mut id: Id) -> Option<u32> {
    loop {
        let n = &g[id];
        match &n.arg {
            Arg::Param(slot) | Arg::Packed(slot, _) => {
                let is_weight = function
                    .slots
                    .get(*slot as usize)
                    .is_some_and(|s| s.kind == SlotKind::Weight);
                return is_weight.then_some(*slot);
            }
            _ if n.op.is_movement() || matches!(n.op, Op::Decode | Op::Cast | Op::Gather) => {
                id = n.src[0]
            }
            _ => return None,
        }
    }
}

/// A row of activations, without the factors that are constant along it.
struct Apart {
    row: Id,
    /// The factors, one element each.
    factors: Vec<Id>,
}

impl Apart {
    /// Splits the factors that contain a reduction off `base`.
    ///
    /// `None` if there are none, or if the remaining row still depends on one of the reductions, as
    /// a product of two normalised rows does.
    fn from_base(g: &mut Graph, base: Id) -> Option<Apart> {
        let mut all = Apart {
            row: base,
            factors: vec![],
        };
        while let Some((row, factor)) = without_one(g, all.row, DEEPEST) {
            all.row = row;
            all.factors.push(g[factor].src[0]);
        }
        let folds: Vec<Id> = all.factors.iter().map(|&f| folded(g, f)).collect();
        let waits = g.any(all.row, |n, _| folds.contains(&n));
        (!all.factors.is_empty() && !waits).then_some(all)
    }
}

/// Splits one factor that is constant along the row off a product: returns the rest and the factor,
/// expanded along the row.
fn without_one(g: &mut Graph, x: Id, depth: usize) -> Option<(Id, Id)> {
    if depth == 0 || g[x].op != Op::Mul {
        return None;
    }
    let last = g.dims(x).len().checked_sub(1)?;
    let sides = [(g[x].src[0], g[x].src[1]), (g[x].src[1], g[x].src[0])];
    let is_folded = |of: Id| {
        let one = repeats(g, of, last) && g.max_elements(folded(g, of)) == 1;
        one && g.any(of, |_, n| n.op == Op::Reduce)
    };
    // A scalar constant has no dims.
    let is_row = |of: Id| g.dims(of) == g.dims(x);
    if let Some((factor, row)) = sides
        .into_iter()
        .find(|&(factor, row)| is_folded(factor) && is_row(row))
    {
        return Some((row, factor));
    }
    sides.into_iter().find_map(|(product, other)| {
        let (row, factor) = without_one(g, product, depth - 1)?;
        Some((g.mul(row, other), factor))
    })
}

/// Looks through movements to the reduced value of a factor.
fn folded(g: &Graph, mut factor: Id) -> Id {
    while matches!(g[factor].op, Op::Reshape | Op::Expand | Op::Permute) {
        factor = g[factor].src[0];
    }
    factor
}

/// Rows of activations that products read, one decision per row.
struct Norms {
    names: FxHashMap<Id, String>,
    /// Number of output elements of each row's products.
    sums: FxHashMap<Id, f64>,
    behind: FxHashMap<Id, bool>,
}

impl Norms {
    /// Names each row by the weights that read it; rows with the same weights
    /// are numbered in order.
    fn for_products(g: &Graph, products: &[(Id, Product)], function: &Function) -> Norms {
        let (mut bases, mut readers): (Vec<Id>, FxHashMap<Id, BTreeSet<u32>>) = Default::default();
        let mut sums: FxHashMap<Id, f64> = FxHashMap::default();
        for (id, of) in products {
            if !readers.contains_key(&of.base) {
                bases.push(of.base);
            }
            readers.entry(of.base).or_default().insert(of.slot);
            *sums.entry(of.base).or_default() +=
                g.dims(*id).iter().map(|&d| typical(g, d)).product::<f64>();
        }
        let full_name = function.full_name();
        let mut alike = Alike::default();
        let mut name = |base: Id| {
            let all: Vec<&str> = readers[&base]
                .iter()
                .map(|&slot| &*function.slots[slot as usize].name)
                .collect();
            alike.name(format!("{full_name} {}", all.join(" · ")))
        };
        let names = bases.into_iter().map(|base| (base, name(base))).collect();
        Norms {
            names,
            sums,
            behind: FxHashMap::default(),
        }
    }
    /// Returns the row `now` and its factors if they are to be moved; `base` is
    /// its node before rewriting.
    fn apart(
        &mut self,
        g: &mut Graph,
        base: Id,
        now: Id,
        target: &Target,
        decider: &mut Decider,
    ) -> Option<Apart> {
        let apart = Apart::from_base(g, now)?;
        let machine = &target.machine;
        let seconds = [
            self.sums[&base] / machine.operations,
            machine.gpu_facts().row_sum_latencies * machine.latency,
        ];
        let name = &self.names[&base];
        let decide = || decider.choose(DEFER_NORM_SCALE.at(name.clone(), seconds)) == 0;
        self.behind
            .entry(base)
            .or_insert_with(decide)
            .then_some(apart)
    }
}
