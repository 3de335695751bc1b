//! Products of several warps that read stages: who waits for them, and for whose writes they wait.

use super::f16;
use crate::ir::nest::Nest;
use crate::lower::linear_ir::Statement;
use crate::lower::memory::pipeline::multistage::UNDER_WAY;
use gristmill_uop::fragment::Fragment;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op};
use rustc_hash::FxHashSet;

/// Stages that such products read.
pub fn multiplied(g: &Graph, nests: &[Id], target: &Target) -> FxHashSet<Id> {
    let mut all = FxHashSet::default();
    for &nest in nests {
        let Nest { value, closed, .. } = Nest::from_store(g, nest);
        let found = |n: Id| f16::stages(g, n, &closed, target);
        all.extend(g.toposort(&[value]).into_iter().flat_map(found));
    }
    all
}

/// A product of several warps that a statement adds, of columns in a stage: not in a ring, which is of words.
#[derive(Clone, Copy)]
pub struct OfStages {
    /// The stage of its columns.
    pub columns: Id,
    /// That of its rows, if they are no words of lanes.
    pub rows: Option<Id>,
}

impl OfStages {
    /// The product that a statement adds, if it is one.
    pub fn from_statement(g: &Graph, s: &Statement) -> Option<OfStages> {
        let Statement::Accumulate(_, value) = s else { return None };
        let n = Some(&g[*value]).filter(|n| n.op == Op::MmaShared)?;
        let columns = n.src[n.src.len() - 3];
        let rows = Some(n.src[0]).filter(|_| Fragment::has_rows_in_memory(n));
        g.scalar(columns).is_half().then_some(OfStages { columns, rows })
    }
}

/// `statements` with waits for such products: but for the last, before another begins whose rows take registers; and for all of them where their block has no other.
pub fn ended(g: &Graph, statements: Vec<Statement>) -> Vec<Statement> {
    let mut out = Vec::with_capacity(statements.len());
    for (at, s) in statements.iter().enumerate() {
        out.push(s.clone());
        let Some(product) = OfStages::from_statement(g, s) else { continue };
        if is_last(g, &statements[at + 1..]) {
            out.push(Statement::ProductsEnded(0));
        } else if product.rows.is_none() {
            out.push(Statement::ProductsEnded(UNDER_WAY));
        }
    }
    out
}

/// Has the block that these statements go on with no such product?
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
