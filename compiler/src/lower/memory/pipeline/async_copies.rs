//! Turns loads that are written unchanged to a stage into asynchronous copies. They need no
//! registers and do not block the thread.

use crate::lower::linear_ir::Statement;
use gristmill_uop::{Graph, Id, Op};
use rustc_hash::FxHashMap;

/// Bytes of an asynchronous copy: `cp.async` bypasses the L1 cache only with 16.
const BYTES: usize = 16;

/// Replaces wide writes of loaded values by copies. The loads stay; the device's compiler removes
/// them if they are unused.
pub fn async_copies(g: &Graph, statements: Vec<Statement>) -> Vec<Statement> {
    // Buffer and offset of each wide load from memory, by its loads in byte order.
    let mut loaded: FxHashMap<Vec<Id>, [Id; 2]> = FxHashMap::default();
    let copied = |s: Statement| match s {
        Statement::Wide(buffer, at, bytes, parts) => {
            if bytes == BYTES && g[buffer].op == Op::Param {
                loaded.insert(parts.iter().map(|p| p.0).collect(), [buffer, at]);
            }
            Statement::Wide(buffer, at, bytes, parts)
        }
        Statement::WideWrite(buffer, at, bytes, values) => match loaded.get(&values) {
            Some(&from) if bytes == BYTES && g[buffer].op == Op::Local => Statement::AsyncCopy {
                to: [buffer, at],
                from,
                plus: [0; 2],
                bytes,
                when: None,
            },
            _ => Statement::WideWrite(buffer, at, bytes, values),
        },
        s => s,
    };
    shown(g, statements.into_iter().map(copied).collect())
}

/// Removes the fences from nests that only copy: copied data need none
/// before asynchronous MMA products.
fn shown(g: &Graph, statements: Vec<Statement>) -> Vec<Statement> {
    let mut written = false;
    let kept = |s: &Statement| {
        match s {
            Statement::Nest { .. } => written = false,
            Statement::Write(buffer, ..) | Statement::WideWrite(buffer, ..) => {
                written |= g[*buffer].op == Op::Local
            }
            Statement::WritesShown => return written,
            _ => {}
        }
        true
    };
    statements.into_iter().filter(kept).collect()
}
