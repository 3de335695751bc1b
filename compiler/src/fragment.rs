//! A warp's matrix product of halves: its shape, and the sums that it can be. Decompositions ask for such sums, the mapping to threads lays them out
//! (`map/fragment_tiling.rs`), lowering makes them instructions (`lower/mma_f16.rs`), and the price counts them.

use gristmill_uop::machine::MMA_F16;
use gristmill_uop::{Arg, Graph, Id, Op, ReduceOp, Scalar};

/// Rows of a product.
pub const ROWS: i64 = MMA_F16.rows;
/// Lanes that hold different rows: two each.
pub const LANES: i64 = MMA_F16.rows / 2;
/// Terms of a product.
pub const TERMS: i64 = MMA_F16.terms;
/// Lanes that hold different outputs: two columns each.
pub const OUTPUTS: i64 = MMA_F16.columns / 2;
/// Threads that a product is spread over: a subgroup.
pub const WARP: i64 = LANES * OUTPUTS;
/// Fewer outputs beside one another are not worth it: columns would be surplus.
pub const ENOUGH: i64 = OUTPUTS;
/// A sum of products of halves.
pub struct Sum {
    /// What depends on the rows.
    pub rows: Id,
    /// What depends on the columns, and on the part.
    pub columns: Id,
    /// The range over the two parts, if the columns' values have two.
    pub part: Option<Id>,
}

impl Sum {
    /// Are the rows in a stage?
    pub fn staged_rows(&self, g: &Graph) -> bool {
        g[g[self.rows].src[0]].op == Op::Local
    }
    /// The sum that a node is, if it is one.
    pub fn of(g: &Graph, id: Id) -> Option<Sum> {
        let n = &g[id];
        let product = (n.op == Op::Reduce && matches!(n.arg, Arg::Reduce(ReduceOp::Add, _))).then(|| &g[n.src[0]])?;
        let half = |x: Id| {
            let from = g[x].src.first().copied().filter(|_| g[x].op == Op::Cast && g.scalar(x) == Scalar::F32)?;
            (g[from].op == Op::Load && g.scalar(from) == Scalar::F16).then_some(from)
        };
        if product.op != Op::Mul {
            return None;
        }
        let (a, b) = (half(product.src[0])?, half(product.src[1])?);
        // Values in two parts are on both sides where neither are halves: columns are what a stage holds.
        // Where both are, what has more elements are the rows.
        let elements = |x: Id| g.max_of(g[g[x].src[0]].src[0]);
        let staged = |x: Id| g[g[x].src[0]].op == Op::Local;
        let mut found = n.src[1..].iter().filter_map(|&part| {
            let depends = |x: Id| g.free_ranges(x).contains(&part);
            let (rows, columns) = if depends(a) { (b, a) } else { (a, b) };
            let is_part =
                g.int_value(g[part].src[0]) == Some(2) && depends(columns) && !depends(rows) && staged(columns);
            is_part.then_some(Sum { rows, columns, part: Some(part) })
        });
        let whole = || match (staged(a), staged(b)) {
            (true, false) => Some(Sum { rows: b, columns: a, part: None }),
            (false, true) => Some(Sum { rows: a, columns: b, part: None }),
            (true, true) if elements(a) > elements(b) => Some(Sum { rows: a, columns: b, part: None }),
            (true, true) if elements(a) < elements(b) => Some(Sum { rows: b, columns: a, part: None }),
            _ => None,
        };
        found.next().or_else(whole)
    }
}
