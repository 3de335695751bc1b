//! Synchronises asynchronous multi-warp MMA products (wgmma) that read stages: waits for their
//! completion, and for writes to their operands.

use super::f16;
use crate::ir::nest::Nest;
use crate::lower::linear_ir::Statement;
use crate::lower::memory::pipeline::multistage::UNDER_WAY;
use gristmill_uop::fragment::Fragment;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op};
use rustc_hash::FxHashSet;

/// Returns the stages that such products read.
pub fn multiplied(g: &Graph, nests: &[Id], target: &Target) -> FxHashSet<Id> {
    let mut all = FxHashSet::default();
    for &nest in nests {
        let Nest { value, closed, .. } = Nest::from_store(g, nest);
        let found = |n: Id| f16::stages(g, n, &closed, target);
        all.extend(g.toposort(&[value]).into_iter().flat_map(found));
    }
    all
}

/// An asynchronous MMA product in a statement, with its columns in a stage of 16-bit floats; ring
/// buffers contain words instead.
#[derive(Clone, Copy)]
pub struct OfStages {
    /// Stage of the columns.
    pub columns: Id,
    /// Stage of the rows; `None` if they are in registers.
    pub rows: Option<Id>,
}

impl OfStages {
    /// Returns the product that a statement accumulates, if it is one.
    pub fn from_statement(g: &Graph, s: &Statement) -> Option<OfStages> {
        let Statement::Accumulate(_, value) = s else {
            return None;
        };
        let n = Some(&g[*value]).filter(|n| n.op == Op::MmaShared)?;
        let columns = n.src[n.src.len() - 3];
        let rows = Some(n.src[0]).filter(|_| Fragment::has_rows_in_memory(n));
        g.scalar(columns)
            .is_half()
            .then_some(OfStages { columns, rows })
    }
}

/// Inserts waits for such products: for all but the last before another product with rows in
/// registers, and for all after the last product of a block.
pub fn ended(g: &Graph, statements: Vec<Statement>) -> Vec<Statement> {
    let mut out = Vec::with_capacity(statements.len());
    for (at, s) in statements.iter().enumerate() {
        out.push(s.clone());
        let Some(product) = OfStages::from_statement(g, s) else {
            continue;
        };
        if is_last(g, &statements[at + 1..]) {
            out.push(Statement::ProductsEnded(0));
        } else if product.rows.is_none() {
            out.push(Statement::ProductsEnded(UNDER_WAY));
        }
    }
    out
}

/// Returns whether the rest of the current block contains no such product.
fn is_last(g: &Graph, rest: &[Statement]) -> bool {
    let mut depth = 0;
    for s in rest {
        match s {
            s if s.opens() => depth += 1,
            Statement::End if depth == 0 => return true,
            Statement::End => depth -= 1,
            s if depth == 0 && OfStages::from_statement(g, s).is_some() => return false,
            _ => {}
        }
    }
    true
}
