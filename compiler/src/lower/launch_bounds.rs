//! Launch bounds of a GPU's kernel: how many workgroups a multiprocessor shall have room for. It bounds the registers of a thread. Without a number the
//! device's compiler takes so few that loads wait for one another.

use super::code::{Code, Statement};
use gristmill_uop::{Graph, Id, Op};

/// Accumulators of a loop above which a workgroup has a multiprocessor's registers to itself.
const ACCUMULATORS: usize = 8;
/// Tiles of matrix products of halves above which it has, too.
const TILES: usize = 8;
/// Workgroups beside one another on a multiprocessor, at least; and at most, where that is as many as there are.
const BESIDE: i64 = 2;
const MOST_BESIDE: i64 = 3;

/// Workgroups of these bodies that a multiprocessor shall have room for, where `beside` of them come to each.
pub fn resident(g: &Graph, bodies: &[Code], beside: i64) -> i64 {
    let many = bodies.iter().any(|b| accumulators(g, &b.statements) > ACCUMULATORS);
    let wide = bodies.iter().any(|b| tiles(g, &b.statements) > TILES);
    match beside {
        _ if many || wide => 1,
        MOST_BESIDE if !bodies.iter().any(|b| products(g, &b.statements)) => MOST_BESIDE,
        _ => BESIDE,
    }
}

/// Are there matrix products? Their tiles take what registers there are.
pub(super) fn products(g: &Graph, statements: &[Statement]) -> bool {
    let is_product = |id: Id| matches!(g[id].op, Op::Mma | Op::MmaHalf);
    statements.iter().any(|s| match s {
        Statement::Define(id) | Statement::Accumulate(_, id) => is_product(*id),
        _ => false,
    })
}

/// The most tiles of matrix products of halves that a nest keeps.
fn tiles(g: &Graph, statements: &[Statement]) -> usize {
    let nests = statements.split(|s| matches!(s, Statement::Nest { .. }));
    let tiles = |s: &&Statement| matches!(s, Statement::Accumulator(acc) if g[*acc].dtype.lanes > 1);
    nests.map(|nest| nest.iter().filter(tiles).count()).max().unwrap_or(0)
}

/// The most accumulators that a loop adds to, with those of the loops around it. Tiles of matrix products are made to leave room (`map/fragment_tiling.rs`).
fn accumulators(g: &Graph, statements: &[Statement]) -> usize {
    let mut open = vec![0];
    let mut most = 0;
    for s in statements {
        match s {
            Statement::Accumulator(acc) if g[*acc].dtype.lanes == 1 => *open.last_mut().expect("one for all") += 1,
            s if s.opens() => {
                most = most.max(open.iter().sum());
                open.push(0);
            }
            Statement::End => {
                open.pop();
            }
            _ => {}
        }
    }
    most
}
