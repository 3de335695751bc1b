//! Factors that all terms of a sum share, behind the sum: a decision `factor`. A norm multiplies a row of activations by a number that the whole row is folded for. What a product with a weight waits for
//! is then their codes alone, which are of groups of the row; the number is folded meanwhile, by a kernel beside (`Hint::beside`), and multiplies the sums where they are read. Where what is left of the row waits for
//! the same number, as it does behind a gate, nothing would be gained.
//!
//! Of one row alone: products of several are of halves (`f16_mma.rs`), whose range activations without their norm's factor may leave.

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

/// Products that activations are taken apart into: more are no model's.
const DEEPEST: usize = 4;
/// Loads that a workgroup waits for one after the other while it folds a row: those of the row and of the sum. Norm and encoding of 2,048 to 2,880 numbers take an H100 1.9 to 2.5 us, encoding alone 1.2 to 1.3 (experiments, 122).
const WAITS_OF_A_FOLD: f64 = 2.0;

/// Moves factors behind the contractions below `roots`, where that is decided.
pub fn defer_norm_scale(
    g: &mut Graph,
    roots: &mut [Id],
    hints: &mut FxHashMap<Id, Hint>,
    function: &Function,
    target: &Target,
    decider: &mut Decider,
) {
    // Without launches of several kernels nothing is folded beside another.
    if !(target.factors && target.merge) {
        return;
    }
    let order = g.toposort(roots);
    let product =
        |&id: &Id| Product::from_node(g, id, function).filter(|of| !of.is_asked_for(g, hints)).map(|of| (id, of));
    let products: Vec<(Id, Product)> = order.iter().filter_map(product).collect();
    let mut norms = Norms::for_products(g, &products, function);
    let of_base: FxHashMap<Id, Id> = products.iter().map(|(id, of)| (*id, of.base)).collect();
    let mut map: FxHashMap<Id, Id> = FxHashMap::default();
    for id in order {
        let n = g[id].clone();
        let src: Sources = n.src.iter().map(|s| map[s]).collect();
        let mut new = if src == n.src { id } else { g.build(n.op, n.dtype, src, n.arg) };
        if let Some(&base) = of_base.get(&id)
            && let Some(of) = Product::from_node(g, new, function)
            && let Some(apart) = norms.apart(g, base, of.base, target, decider)
        {
            for node in apart.factors.iter().map(|&f| folded(g, f)) {
                hints.entry(node).or_insert_with(Hint::beside);
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

/// A contraction of a weight with one row of activations.
struct Product {
    weight: Id,
    /// Activations, moved to the product's shape.
    x: Id,
    /// What `x` moves the row of.
    base: Id,
    /// The weight's slot.
    slot: u32,
}

impl Product {
    fn from_node(g: &Graph, id: Id, function: &Function) -> Option<Product> {
        let Arg::Reduce(ReduceOp::Add, axes) = &g[id].arg else { return None };
        let product = &g[g[id].src[0]];
        let last = g.dims(g[id].src[0]).len().checked_sub(1)?;
        if product.op != Op::Mul || axes[..] != [last as u8] || g.scalar(id) != Scalar::F32 {
            return None;
        }
        let sides = [(product.src[0], product.src[1]), (product.src[1], product.src[0])];
        let (weight, x, slot) = sides.into_iter().find_map(|(w, x)| Some((w, x, weight_of(g, function, w)?)))?;
        let base = base_of(g, x);
        let (_, rows) = g.dims(base).split_last()?;
        let one_row = rows.iter().all(|&d| g.int_value(d) == Some(1)) && g.dims(x).len() == last + 1;
        one_row.then_some(Product { weight, x, base, slot })
    }
    /// Do decompositions ask something of its row, or of what moves it?
    fn is_asked_for(&self, g: &Graph, hints: &FxHashMap<Id, Hint>) -> bool {
        let chain = std::iter::successors(Some(self.x), |&x| (x != self.base).then(|| g[x].src[0]));
        chain.into_iter().any(|x| hints.contains_key(&x))
    }
    /// Its sums without these factors, multiplied by them.
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

/// The slot of a weight as it is read: plain numbers of a table, or packed.
fn weight_of(g: &Graph, function: &Function, mut id: Id) -> Option<u32> {
    loop {
        let n = &g[id];
        match &n.arg {
            Arg::Param(slot) | Arg::Packed(slot, _) => {
                let is_weight = function.slots.get(*slot as usize).is_some_and(|s| s.kind == SlotKind::Weight);
                return is_weight.then_some(*slot);
            }
            _ if n.op.is_movement() || matches!(n.op, Op::Decode | Op::Cast | Op::Gather) => id = n.src[0],
            _ => return None,
        }
    }
}

/// A row of activations without factors that are the same along it.
struct Apart {
    row: Id,
    /// The factors, a number each.
    factors: Vec<Id>,
}

impl Apart {
    /// Takes those factors out of `base` that are folded from something; none where what is left waits for one of them all the same, as a product of two rows does that have it both.
    fn from_base(g: &mut Graph, base: Id) -> Option<Apart> {
        let mut all = Apart { row: base, factors: vec![] };
        while let Some((row, factor)) = without_one(g, all.row, DEEPEST) {
            all.row = row;
            all.factors.push(g[factor].src[0]);
        }
        let folds: Vec<Id> = all.factors.iter().map(|&f| folded(g, f)).collect();
        let waits = g.any(all.row, |n, _| folds.contains(&n));
        (!all.factors.is_empty() && !waits).then_some(all)
    }
}

/// What is left of a product without one factor that is the same along its row, and that, repeated along the row.
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
    // A number that all elements are has no dims.
    let is_row = |of: Id| g.dims(of) == g.dims(x);
    if let Some((factor, row)) = sides.into_iter().find(|&(factor, row)| is_folded(factor) && is_row(row)) {
        return Some((row, factor));
    }
    sides.into_iter().find_map(|(product, other)| {
        let (row, factor) = without_one(g, product, depth - 1)?;
        Some((g.mul(row, other), factor))
    })
}

/// What is folded for a factor: what it repeats.
fn folded(g: &Graph, mut factor: Id) -> Id {
    while matches!(g[factor].op, Op::Reshape | Op::Expand | Op::Permute) {
        factor = g[factor].src[0];
    }
    factor
}

/// Rows of activations that products read, by their nodes: one decision each.
struct Norms {
    names: FxHashMap<Id, String>,
    /// Sums that their products have.
    sums: FxHashMap<Id, f64>,
    behind: FxHashMap<Id, bool>,
}

impl Norms {
    /// Called by the weights that read them, those of the same weights by their order.
    fn for_products(g: &Graph, products: &[(Id, Product)], function: &Function) -> Norms {
        let (mut bases, mut readers): (Vec<Id>, FxHashMap<Id, BTreeSet<u32>>) = Default::default();
        let mut sums: FxHashMap<Id, f64> = FxHashMap::default();
        for (id, of) in products {
            if !readers.contains_key(&of.base) {
                bases.push(of.base);
            }
            readers.entry(of.base).or_default().insert(of.slot);
            *sums.entry(of.base).or_default() += g.dims(*id).iter().map(|&d| typical(g, d)).product::<f64>();
        }
        let full_name = function.full_name();
        let mut alike = Alike::default();
        let mut name = |base: Id| {
            let all: Vec<&str> = readers[&base].iter().map(|&slot| &*function.slots[slot as usize].name).collect();
            alike.name(format!("{full_name} {}", all.join(" · ")))
        };
        let names = bases.into_iter().map(|base| (base, name(base))).collect();
        Norms { names, sums, behind: FxHashMap::default() }
    }
    /// `now` without its factors, where they are to stand behind the products of `base`, which it has become.
    fn apart(&mut self, g: &mut Graph, base: Id, now: Id, target: &Target, decider: &mut Decider) -> Option<Apart> {
        let apart = Apart::from_base(g, now)?;
        let machine = &target.machine;
        let seconds = [self.sums[&base] / machine.operations, WAITS_OF_A_FOLD * machine.latency];
        let name = &self.names[&base];
        let decide = || decider.choose(DEFER_NORM_SCALE.at(name.clone(), seconds)) == 0;
        self.behind.entry(base).or_insert_with(decide).then_some(apart)
    }
}
