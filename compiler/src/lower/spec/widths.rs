//! Accesses are as wide as a machine's least type: what legalising leaves. Narrower writes are left where the machine writes parts of words.

use super::super::code::{KernelCode, Statement};
use super::super::legalise;
use super::error::{Checked, LinearError};
use gristmill_uop::machine::Machine;
use gristmill_uop::text::print_node;
use gristmill_uop::{Graph, Op};

/// Are all loads and writes as wide as the machine's least type, but for parts of words that it can write? The first that is not.
///
/// # Errors
/// Which, and the node that shows it.
pub fn check_widths(g: &Graph, kernel: &KernelCode, machine: &Machine) -> Checked {
    let least = machine.least_bytes;
    if least == 1 {
        return Ok(());
    }
    for code in &kernel.bodies {
        for (statement, s) in code.statements.iter().enumerate() {
            let narrow = match s {
                Statement::Define(id) if g[*id].op == Op::Load => {
                    let n = &g[*id];
                    (!legalise::is_whole(g, n.src[0], n.src[1], n.dtype.scalar, least as i64)).then_some(*id)
                }
                Statement::Write(_, _, value) if !machine.part_writes => {
                    (g.scalar(*value).bytes() < least).then_some(*value)
                }
                Statement::Add(addition) if !machine.part_writes => {
                    addition.values.iter().copied().find(|&v| g.scalar(v).bytes() < least)
                }
                _ => None,
            };
            if let Some(id) = narrow {
                let rule = "a load or a write is as wide as the machine's least type, and aligned";
                return Err(LinearError { rule, statement, node: print_node(g, id) });
            }
        }
    }
    Ok(())
}
