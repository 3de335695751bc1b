//! Asynchronous copies: what a thread loads from memory and writes to a stage as it is needs no registers, and the thread need not wait for it.

use crate::lower::linear_ir::Statement;
use gristmill_uop::{Graph, Id, Op};
use rustc_hash::FxHashMap;

/// Bytes of a copy without registers: `cp.async` bypasses the L1 cache with 16 alone.
const BYTES: usize = 16;

/// `statements` with such wide writes as copies. The loads stay: whether anything else reads them the device's compiler sees.
pub fn async_copies(g: &Graph, statements: Vec<Statement>) -> Vec<Statement> {
    // Buffer and offset of the wide loads from memory, by the loads of all their bytes in order.
    let mut loaded: FxHashMap<Vec<Id>, [Id; 2]> = FxHashMap::default();
    let copied = |s: Statement| match s {
        Statement::Wide(buffer, at, bytes, parts) => {
            if bytes == BYTES && g[buffer].op == Op::Param {
                loaded.insert(parts.iter().map(|p| p.0).collect(), [buffer, at]);
            }
            Statement::Wide(buffer, at, bytes, parts)
        }
        Statement::WideWrite(buffer, at, bytes, values) => match loaded.get(&values) {
            Some(&from) if bytes == BYTES && g[buffer].op == Op::Local => {
                Statement::AsyncCopy { to: [buffer, at], from, plus: [0; 2], bytes, when: None }
            }
            _ => Statement::WideWrite(buffer, at, bytes, values),
        },
        s => s,
    };
    shown(g, statements.into_iter().map(copied).collect())
}

/// Without the word to products of several warps of nests that only copy: what copies have brought is there for them.
fn shown(g: &Graph, statements: Vec<Statement>) -> Vec<Statement> {
    let mut written = false;
    let kept = |s: &Statement| {
        match s {
            Statement::Nest { .. } => written = false,
            Statement::Write(buffer, ..) | Statement::WideWrite(buffer, ..) => written |= g[*buffer].op == Op::Local,
            Statement::WritesShown => return written,
            _ => {}
        }
        true
    };
    statements.into_iter().filter(kept).collect()
}
