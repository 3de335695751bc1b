//! Products of several warps that read their columns from stages: who waits for them, and for whose writes they wait.

use super::code::Statement;
use super::copies_ahead::UNDER_WAY;
use super::mma_f16;
use crate::nest::Nest;
use gristmill_uop::target::Target;
use gristmill_uop::{Graph, Id, Op};
use rustc_hash::FxHashSet;

/// Stages that such products read.
pub fn multiplied(g: &Graph, nests: &[Id], target: &Target) -> FxHashSet<Id> {
    let mut all = FxHashSet::default();
    for &nest in nests {
        let Nest { value, closed, .. } = Nest::of(g, nest);
        let found = |n: Id| mma_f16::staged_columns(g, n, &closed, target);
        all.extend(g.toposort(&[value]).into_iter().filter_map(found));
    }
    all
}

/// The stage that a statement's product reads, if it adds one: not a ring, which is of words.
pub fn read_by(g: &Graph, s: &Statement) -> Option<Id> {
    let Statement::Accumulate(_, value) = s else { return None };
    let n = &g[*value];
    let buffer = (n.op == Op::MmaShared).then(|| n.src[n.src.len() - 3])?;
    g.scalar(buffer).is_half().then_some(buffer)
}

/// `statements` with waits for such products: but for the last, before another begins, as its rows take registers; and for all of them where their block has no other.
pub fn ended(g: &Graph, statements: Vec<Statement>) -> Vec<Statement> {
    let mut out = Vec::with_capacity(statements.len());
    for (at, s) in statements.iter().enumerate() {
        out.push(s.clone());
        if read_by(g, s).is_some() {
            let under_way = if is_last(g, &statements[at + 1..]) { 0 } else { UNDER_WAY };
            out.push(Statement::ProductsEnded(under_way));
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
            s if depth == 0 && read_by(g, s).is_some() => return false,
            _ => {}
        }
    }
    true
}
