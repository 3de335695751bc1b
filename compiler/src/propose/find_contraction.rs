//! Finds contractions by their index maps: sums of products over ranges that both factors depend
//! on, where each factor has output axes that the other has not. A factor may be packed (codes and
//! scales of a weight).

use crate::decompose::int8::Derived;
use crate::ir::nest::{host_bound, outermost_reductions};
use gristmill_uop::{Arg, Graph, Id, Op, RangeKind, ReduceOp};
use rustc_hash::FxHashSet;

/// A factor of the product, or several packed ones with the same access pattern.
#[derive(Clone, Debug)]
pub struct Factor {
    /// Ranges of the nests' loops that it depends on.
    pub loops: FxHashSet<Id>,
    /// Interleaved rows of a packed factor; 1 otherwise.
    pub lanes: i64,
    /// Steps of a row of a packed factor; 1 otherwise.
    pub steps: i64,
}

impl Default for Factor {
    fn default() -> Factor {
        Factor {
            loops: FxHashSet::default(),
            lanes: 1,
            steps: 1,
        }
    }
}

/// A contraction and its factors.
#[derive(Clone, Debug)]
pub struct Contraction {
    /// All packed operands, as one factor.
    pub packed: Option<Factor>,
    /// Both factors, if the sum is of their plain product; integer contractions have another form.
    pub factors: Option<[Factor; 2]>,
}

impl Contraction {
    /// Finds the contraction of these nests, if any.
    pub fn from_nests(g: &Graph, nests: &[Id], derived: &Derived) -> Option<Contraction> {
        let found = Contraction {
            packed: packed(g, nests, derived),
            factors: factors(g, nests),
        };
        (found.packed.is_some() || found.factors.is_some()).then_some(found)
    }
    /// For each factor, the last of these axes that only it depends on and that has a bound
    /// known to the host.
    pub fn own_axes(&self, g: &Graph, axes: &[Id]) -> Option<[usize; 2]> {
        let [a, b] = self.factors.as_ref()?;
        let alone = |x: &Factor, other: &Factor| {
            (0..axes.len()).rev().find(|&i| {
                host_bound(g, axes[i])
                    && x.loops.contains(&axes[i])
                    && !other.loops.contains(&axes[i])
            })
        };
        Some([alone(a, b)?, alone(b, a)?])
    }
}

/// Packed operands that sums of these nests iterate over.
fn packed(g: &Graph, nests: &[Id], derived: &Derived) -> Option<Factor> {
    let mut rows = Factor::default();
    for &nest in nests {
        let closed = &g[nest].src[3..];
        let order = g.toposort(&[nest]);
        let loads: Vec<Id> = order
            .iter()
            .copied()
            .filter(|&m| packed_slot(g, m).is_some())
            .collect();
        // Most sums use no packed operand, so loads are only searched below those that may.
        for n in order
            .into_iter()
            .filter(|&n| g[n].op == Op::Reduce && loads.iter().any(|&m| walks(g, n, m)))
        {
            for load in g
                .toposort(&[g[n].src[0]])
                .into_iter()
                .filter(|&m| walks(g, n, m))
            {
                let Some(slot) = packed_slot(g, load).filter(|_| steps_along(g, n, load)) else {
                    continue;
                };
                let walked = g[n].src[1..]
                    .iter()
                    .filter(|&&r| g.range_kind(r) == Some(RangeKind::Reduce));
                rows.steps = walked
                    .map(|&r| g.max_of(g[r].src[0]))
                    .max()
                    .unwrap_or(1)
                    .max(rows.steps);
                rows.lanes = derived
                    .layouts
                    .get(&slot)
                    .map_or(rows.lanes, |l| rows.lanes.max(l.0.lanes()));
                rows.loops.extend(
                    g.free_ranges(load)
                        .iter()
                        .copied()
                        .filter(|r| closed.contains(r)),
                );
            }
        }
    }
    (!rows.loops.is_empty()).then_some(rows)
}

/// Slot of the packed operand that `m` loads from, if any.
fn packed_slot(g: &Graph, m: Id) -> Option<u32> {
    match g[*g[m].src.first()?].arg {
        Arg::Packed(slot, _) if g[m].op == Op::Load => Some(slot),
        _ => None,
    }
}

/// Whether `x` depends on a range of the sum `n`.
fn walks(g: &Graph, n: Id, x: Id) -> bool {
    g.free_ranges(x).iter().any(|r| g[n].src[1..].contains(r))
}

/// Whether the address of `load` itself advances along a range of the sum `n`. An address selected
/// by data, such as the bias of a token's next expert, restarts with each term.
fn steps_along(g: &Graph, n: Id, load: Id) -> bool {
    let mut stack = g[load].src[1..].to_vec();
    let mut seen = FxHashSet::default();
    while let Some(at) = stack.pop() {
        match g[at].op {
            Op::Load | Op::Index | Op::Reduce => {}
            Op::Range if g[n].src[1..].contains(&at) => return true,
            _ => stack.extend(g[at].src.iter().copied().filter(|&s| seen.insert(s))),
        }
    }
    false
}

/// Factors of the first sum whose factors both depend on its ranges and each have
/// loops of their own.
fn factors(g: &Graph, nests: &[Id]) -> Option<[Factor; 2]> {
    nests.iter().find_map(|&nest| {
        let closed = &g[nest].src[3..];
        outermost_reductions(g, nest).into_iter().find_map(|n| {
            let product = &g[g[n].src[0]];
            if !matches!(g[n].arg, Arg::Reduce(ReduceOp::Add, _)) || product.op != Op::Mul {
                return None;
            }
            let factor = |x: Id| {
                let free = g.free_ranges(x);
                let loops: FxHashSet<Id> = free
                    .iter()
                    .copied()
                    .filter(|r| closed.contains(r))
                    .collect();
                walks(g, n, x).then(|| Factor {
                    loops,
                    ..Factor::default()
                })
            };
            let (a, b) = (factor(product.src[0])?, factor(product.src[1])?);
            let apart = !a.loops.is_subset(&b.loops) && !b.loops.is_subset(&a.loops);
            apart.then_some([a, b])
        })
    })
}
